"""Run programs of the gallery under ``otelgpu diagnose stall``, and say of which another cause was named first.

``python -m tests.gallery.run [NAME…]``. Each is started under the command, or, with a quota, in a control group of its
own; both go before what else the machine does, as on one that does nothing else. ``--recordings FOLDER`` keeps what was
recorded (:mod:`tests.gallery.recordings`), for :mod:`tests.gallery.results`. Programs with PyTorch are run by the
interpreter that the variable ``TORCH_PYTHON`` names.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from otelgpu.diagnose.stall.verdicts import StallReport
from tests.gallery.cases import CASES, Case
from tests.gallery.results import Said, said_of
from tests.rig import ROOT
from tests.rig.priority import FIRST

_CGROUPS: Final = Path("/sys/fs/cgroup")
_TORCH_PYTHON: Final = "TORCH_PYTHON"
"""Variable of the environment with the interpreter that has PyTorch, where it is not this one."""


def diagnose(name: str, case: Case, recording: Path | None = None) -> Said:
    """Run one program under the command; one with a quota is attached to, when it is in its control group.

    ``recording``: a file that what was recorded goes to.
    """
    command = ["-m", "otelgpu", "diagnose", "stall"]
    if recording is not None:
        command = ["-m", "tests.gallery.recordings", str(recording)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, control_group(case, folder) as prefix, ExitStack() as stack:
        python = os.environ.get(_TORCH_PYTHON, sys.executable) if case.torch else sys.executable
        program = [python, "-m", "tests.gallery.programs", name, folder]
        if case.native:
            program = ["sh", "-c", 'exec "$@" > /dev/null', "sh", compiled(case.native, folder), name, folder]
        program = [*prefix, *program]
        target, device = ["--", *program], ["--device-calls"] if case.device else []
        if case.quota:
            running = stack.enter_context(subprocess.Popen([*FIRST, *program], cwd=ROOT, env=environ))
            stack.callback(running.kill)
            time.sleep(1.0)
            target = ["-p", str(running.pid), "-d", "5"]
        done = subprocess.run(
            [*FIRST, sys.executable, *command, "--json", *device, *target],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    if done.returncode not in (0, 3, 4):
        raise AssertionError(f"{name}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return said_of(msgspec.json.decode(done.stdout, type=StallReport))


def compiled(name: str, folder: str) -> str:
    """A native program."""
    made = os.path.join(folder, "native")
    compiler = "c++" if name.endswith(".cpp") else "cc"
    source = Path(__file__).parent / "programs" / name
    subprocess.run([compiler, "-O2", "-g", "-pthread", "-o", made, source], check=True)
    return made


@contextmanager
def control_group(case: Case, folder: str) -> Iterator[list[str]]:
    """How a program is started in the control group that it has to be in; of most: as it is."""
    device = os.stat(folder).st_dev
    number, rate = f"{os.major(device)}:{os.minor(device)}", case.read_mb_per_s * 1_000_000
    if case.quota:
        # The most shares there are: niceness counts inside a group, and others outside are not to hold it back.
        quota = str(round(case.quota * 100_000))
        v1 = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": quota, "cpu.shares": "262144"}
        kind, v2 = "cpu", {"cpu.max": f"{quota} 100000", "cpu.weight": "10000"}
    elif rate:
        kind, v1, v2 = (
            "blkio",
            {"blkio.throttle.read_bps_device": f"{number} {rate}"},
            {"io.max": f"{number} rbps={rate}"},
        )
    else:
        yield []
        return
    is_v1 = (_CGROUPS / kind).is_dir()
    group = (_CGROUPS / kind if is_v1 else _CGROUPS) / f"otelgpu-gallery-{os.getpid()}"
    group.mkdir()
    try:
        for name, text in (v1 if is_v1 else v2).items():
            (group / name).write_text(text)
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    finally:
        group.rmdir()


def main(names: Iterable[str], folder: Path | None = None) -> int:
    """How many programs of those had another cause named first, or something not said."""
    wrong = 0
    for name in names or CASES:
        said = diagnose(name, CASES[name], None if folder is None else folder / f"{name}.json.xz")
        faults = said.faults(CASES[name])
        wrong += bool(faults)
        print(f"{'WRONG' if faults else 'ok   '} {name:22} {said.cause:20} {said.text or '-'}", flush=True)
        for each in faults:
            print(f"      {each}", flush=True)
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="run the gallery")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--recordings", type=Path, help="a folder that what was recorded goes to")
    given = parser.parse_args()
    sys.exit(min(main(given.names, given.recordings), 1))
