"""Profiles of kinds block, file and offcpu beside bcc's biolatency, fileslower and offcputime on the same run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import SampleKind
from tests.bench.machine import SYSTEM_PYTHON
from tests.kernel.observing import Watch
from tests.kernel.profiled import Profiled, profiled
from tests.rig import RigError
from tests.rig.kernel_headers import kernel_headers

LEAST_NS = 1_000_000
KINDS = {"biolatency": SampleKind.BLOCK, "fileslower": SampleKind.FILE, "offcputime": SampleKind.OFF_CPU}
TRIED = subprocess.run([SYSTEM_PYTHON, "-c", "import bcc"], capture_output=True, check=False).returncode

pytestmark = [
    pytest.mark.skipif(TRIED != 0, reason="bcc is not installed (Debian: apt-get install python3-bpfcc)"),
    pytest.mark.alone(
        reason="among many waits of many programs more come close to the least that is counted"
    ),
]

PROGRAM = """
import mmap, os, sys, time
path = sys.argv[1]
with open(path, "wb") as file:
    file.write(bytes(64 << 20))
os.sync()
print("ready", file=sys.stderr, flush=True)
sys.stdin.readline()
direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
block = mmap.mmap(-1, 1 << 16)
for _ in range(211):
    os.readv(direct, [block])
cold = os.open(path, os.O_RDONLY)
for _ in range(13):
    os.posix_fadvise(cold, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(cold, 0, 0)
    os.read(cold, 16 << 20)
for _ in range(43):
    time.sleep(0.007)
print("done", 0, 0, flush=True)
sys.stdin.readline()
"""


class Compared:
    """Ours, and theirs: power of two in microseconds → events."""

    def __init__(self, ours: Profiled, theirs: Mapping[str, Mapping[str, int]]) -> None:
        self.ours, self._theirs = ours, theirs

    def buckets(self, name: str) -> tuple[list[int], list[int]]:
        """Of each event its bucket, in order: ours and theirs."""
        values = self.ours.of_kind(KINDS[name])["value"]
        mine = np.floor(np.log2(np.maximum(values // 1000, 1))).astype(int) + 1  # bpf_log2l counts from 1
        theirs = [int(bucket) for bucket, count in self._theirs[name].items() for _ in range(count)]
        return sorted(mine.tolist()), sorted(theirs)


@pytest.fixture(scope="module")
def compared(kernel: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    with ExitStack() as stack:
        try:
            stack.enter_context(kernel_headers())
        except RigError as error:
            pytest.skip(str(error))
        watch: Callable[..., Watch] = lambda **options: stack.enter_context(Watch(**options))  # noqa: E731
        taken = profiled(watch, ProfileKind.BLOCK, ProfileKind.FILE, ProfileKind.OFFCPU)
        with _Bcc(taken) as theirs:
            folder = tmp_path_factory.mktemp("disk")
            theirs.run([sys.executable, "-c", PROGRAM, str(folder / "data.bin")])
        yield Compared(taken, theirs.counted)


class _Bcc:
    """bcc beside a run: attached to the process before it goes on."""

    def __init__(self, taken: Profiled) -> None:
        self._taken, self._running = taken, ExitStack()
        self.counted: dict[str, dict[str, int]] = {}

    def __enter__(self) -> _Bcc:
        return self

    def __exit__(self, *failure: object) -> None:
        self._running.close()

    def run(self, command: list[str]) -> None:
        """To its end."""
        tracer: list[subprocess.Popen[str]] = []

        def attach(pid: int) -> None:
            script = str(Path(__file__).with_name("bcc_latencies.py"))
            process = subprocess.Popen(
                [SYSTEM_PYTHON, script, str(pid), str(LEAST_NS)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._running.callback(_end, process)
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "attached\n":
                raise AssertionError(process.stderr.read()[-2000:])
            tracer.append(process)

        def finish() -> None:
            tracer[0].send_signal(signal.SIGINT)
            output, _ = tracer[0].communicate(timeout=30)
            self.counted.update(json.loads(output))

        self._taken.run(command, before=attach, also=finish)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    process.wait()


@pytest.mark.parametrize(("name", "least"), [("biolatency", 211), ("fileslower", 10), ("offcputime", 43)])
def test_the_same_events_are_in_the_same_histogram(compared: Compared, name: str, least: int) -> None:
    ours, theirs = compared.buckets(name)
    assert len(ours) >= least
    # Between two looks at the clock an event may come to the next bucket, or over the least that is reported.
    few = max(4, len(theirs) // 20)
    assert abs(len(ours) - len(theirs)) <= few
    shorter = min(len(ours), len(theirs))
    apart = np.abs(np.array(ours[-shorter:]) - np.array(theirs[-shorter:]))
    assert np.count_nonzero(apart > 1) <= few
    assert np.count_nonzero(apart) <= max(few, len(theirs) // 5), (ours, theirs)
    print(f"{name}: {len(ours)} events, bcc {len(theirs)}; {np.count_nonzero(apart)} in the next bucket")
