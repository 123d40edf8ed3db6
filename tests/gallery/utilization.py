"""``python -m tests.gallery.utilization [NAME…]``: run programs under ``otelgpu diagnose utilization``; a table of what
was said.

Each is started under the command, on a device of the fake runtime and the fake NVML, before what else the machine
does; the verdict that comes first counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from otelgpu.diagnose.utilization.sentences import sentence
from otelgpu.diagnose.utilization.verdicts import UtilizationReport
from tests.gallery.programs.device import BLOCK_US, FAKES, nvml
from tests.rig import ROOT
from tests.rig.priority import FIRST

NOTHING: Final = "nothing"


class Case(Struct, frozen=True, kw_only=True):
    """What a program has to be said of. ``cause``: "" of a healthy one; ``says``: what the text has to have.

    ``devices``: of its machine; ``live``: it is run in CI, as it is what shows that something is seen at all.
    """

    cause: str
    says: tuple[str, ...] = ()
    devices: int = 1
    live: bool = False


CASES: Final[Mapping[str, Case]] = {
    "interactive_kernel": Case(cause="interactive", says=("ipykernel_launcher",), live=True),
    "unused_devices": Case(cause="oversubscription", says=("leaves it 4 devices, and it uses 1",), devices=4),
    "shared_device": Case(cause="oversubscription", says=("ran kernels on GPU 0 for",), live=True),
    "unreleased": Case(cause="unreleased", says=("no call of CUDA in the last",), live=True),
    "not_deep_learning": Case(cause="not_deep_learning"),
    "small_batch": Case(cause="batch_size", says=("1 blocks", "132 multiprocessors"), live=True),
    "memory_in_loop": Case(cause="gpu_memory"),
    "checkpoint": Case(cause="checkpointing", says=("model.pt", "checkpoint")),
    "pageable_copy": Case(cause="host_transfer", says=("GB/s",)),
    "decode_in_loop": Case(cause="preprocessing", says=("steps.py", "work")),
    "slow_loader": Case(cause="preprocessing", says=("slow_loader",)),
    "download": Case(cause="external_data", says=("download",), live=True),
    "upload": Case(cause="result_upload", says=("upload",)),
    "without_cuda": Case(cause="library_installation", says=("PyTorch",), live=True),
    "item_each_step": Case(cause="api_misuse", says=("copies of at most 256 bytes to the host",), live=True),
    "two_at_once": Case(cause="preprocessing"),
    "device_bound": Case(cause="", live=True),
    "looks_seldom": Case(cause=""),
    "prefetched": Case(cause=""),
    "checkpoint_in_thread": Case(cause=""),
}


class Said(Struct, frozen=True, kw_only=True):
    """What was said of a program: the cause that came first, ``nothing`` or ``inconclusive``; and all of it."""

    cause: str
    text: str
    document: UtilizationReport


def diagnose(name: str, *options: str, recording: Path | None = None) -> Said:
    """Run one program under the command. ``recording``: a file that what was recorded goes to."""
    command = ["-m", "otelgpu", "diagnose", "utilization"]
    if recording is not None:
        command = ["-m", "tests.gallery.recorded_jobs", str(recording)]
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "LD_LIBRARY_PATH": str(FAKES),
            "FAKE_NVML": str(Path(folder) / "nvml.txt"),
            "FAKE_CUDART_KERNEL_US": "0",
            "FAKE_CUDART_KERNEL_US_PER_BLOCK": str(BLOCK_US),
            "FAKE_CUDART_COPY_GB_PER_S": "10",
            "FAKE_CUDART_DEVICES": "4",
        }
        environ.pop("CUDA_VISIBLE_DEVICES", None)
        (Path(folder) / "nvml.txt").write_text(nvml(CASES[name].devices if name in CASES else 1, used=0))
        program = [sys.executable, "-m", "tests.gallery.programs", name, folder]
        done = subprocess.run(
            [*FIRST, sys.executable, *command, "--json", *options, "--", *program],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    if done.returncode not in (0, 3, 4):
        raise AssertionError(f"{name}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return said_of(json.loads(done.stdout))


def said_of(document: Mapping[str, object]) -> Said:
    """In a document of ``--json``."""
    return said_in(msgspec.convert(document, UtilizationReport))


def said_in(report: UtilizationReport) -> Said:
    """By its first verdict."""
    first = report.verdicts[0] if report.verdicts else None
    lines = [
        line for each in report.verdicts for line in (sentence(each), *(one.text for one in each.evidence))
    ]
    return Said(
        cause=NOTHING if first is None else first.cause or first.klass, text="\n".join(lines), document=report
    )


def confusion(said: Mapping[str, str]) -> list[tuple[str, dict[str, int]]]:
    """A row for each label: how often each cause was named first."""
    rows: dict[str, Counter[str]] = {}
    for name, cause in said.items():
        rows.setdefault(CASES[name].cause or NOTHING, Counter())[cause] += 1
    return [(label, dict(counts)) for label, counts in rows.items()]


def main(names: Iterable[str], folder: Path | None = None) -> int:
    """How many programs had another cause named first."""
    wrong, named = 0, {}
    for name in names or CASES:
        kept = None if folder is None else folder / f"{name}.json.xz"
        said, want = diagnose(name, recording=kept), CASES[name].cause or NOTHING
        missing = [each for each in CASES[name].says if each not in said.text]
        named[name] = said.cause
        is_right = said.cause == want and not missing
        wrong += not is_right
        print(
            f"{'ok   ' if is_right else 'WRONG'} {name:22} {want:20} {said.cause:20} {said.text or '-'}",
            flush=True,
        )
        if not is_right:
            print(f"      not said: {missing}; {said.document.table} {said.document.limits}", flush=True)
    print("\n| Label | Programs | Named first |\n| --- | --- | --- |")
    for label, counts in confusion(named):
        print(f"| {label} | {sum(counts.values())} | {', '.join(f'{c} {n}' for c, n in counts.items())} |")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="run the gallery")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--recordings", type=Path, help="a folder that what was recorded goes to")
    given = parser.parse_args()
    sys.exit(min(main(given.names, given.recordings), 1))
