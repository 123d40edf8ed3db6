"""Programs whose stacks are known, sampled live: kernel, native and Python frames come by name, in their order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from otelgpu.families.profiles.decode import ProfileDecoder
from otelgpu.model.inputs import Batch, Input, Tick
from otelgpu.model.profiles import FrameType
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.samples import Frame, StackNamed
from tests.kernel.observing import WAIT_S, Watch
from tests.unit.elf.elf_builders import compile_c

# Without frame pointers. Most of its time is the kernel's: it fills a page after the other with zeros.
NATIVE: Final = r"""
    #include <cstdlib>
    #include <fcntl.h>
    #include <unistd.h>
    namespace app {
    static char page[1 << 20];
    template <class T> __attribute__((noinline)) long fill(T descriptor) {
        long done = read(descriptor, page, sizeof page);
        asm volatile("" ::: "memory");
        return done + 1;
    }
    struct Reader {
        int descriptor;
        __attribute__((noinline)) long again(int times) {
            long total = 0;
            for (int i = 0; i < times; i++) { total += fill<int>(descriptor); asm volatile("" ::: "memory"); }
            return total;
        }
    };
    }
    int main() {
        app::Reader reader{open("/dev/zero", O_RDONLY)};
        long total = 0;
        for (;;) { total += reader.again(100); asm volatile("" ::: "memory"); }
        return total != 0;
    }
"""

PYTHON: Final = """\
import hashlib

DATA = b"x" * (1 << 20)

class Model:
    def __call__(self, batch):
        return self.forward(batch)

    def forward(self, batch):
        return sorted(range(3), key=lambda item: digest(item))

def digest(item):
    return hashlib.sha256(DATA).hexdigest()

def train(model):
    while True:
        model(1)

train(Model())
"""


LEARNT_S: Final = 300.0  # an emulated machine (tests/vm) takes minutes for the tables of libpython


@pytest.fixture(scope="module")
def watch(kernel: None) -> Iterator[Watch]:
    settings = ProfileSettings(kinds=frozenset({ProfileKind.CPU}), frequency_hz=499)
    with Watch(families=("profile",), profile=settings) as watching:
        yield watching


def cpu_s(pid: int) -> float:
    """Processor time of a program of one thread: samples are of that, and come late on a busy machine."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def sampled(watch: Watch, *command: str | Path, seconds: float = 2.5) -> Counter[tuple[Frame, ...]]:
    """Samples of a program by their stacks, which are complete once its files are known."""
    program = subprocess.Popen(command)
    try:
        watch.observe(program.pid)
        until = time.monotonic() + LEARNT_S
        while not any(is_complete(item, program.pid) for item in watch.inputs[-20:]):
            watch.pump(0.1)
            assert time.monotonic() < until, "no stack was complete"
        watch.pump(0.3)
        first, began_s = len(watch.inputs), cpu_s(program.pid)
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and cpu_s(program.pid) < began_s + seconds:
            watch.pump(0.2)
    finally:
        program.kill()
        program.wait()
    watch.pump(0.2)
    stacks: dict[int, StackNamed] = {}
    decoder = ProfileDecoder()
    found: Counter[tuple[Frame, ...]] = Counter()
    waiting: list[int] = []
    truncated = 0
    for place, item in enumerate(watch.inputs):
        if isinstance(item, StackNamed) and item.tgid == program.pid:
            stacks[item.stack] = item
        elif isinstance(item, Batch) and item.family == "profile" and place >= first:
            rows = decoder.samples(item)
            waiting += rows["stack"][rows["tgid"] == program.pid].tolist()
        elif isinstance(item, Tick):  # whatever a sample names was reported by now
            for stack in waiting:
                named = stacks[stack]
                truncated += bool(named.truncated)
                if not named.truncated:
                    found[named.frames] += 1
            waiting.clear()
    watch.inputs.clear()
    total = truncated + sum(found.values())
    assert total >= seconds * 499 / 2, f"{total} samples of {seconds} s of processor time"
    assert truncated <= total / 20, f"{truncated} of {total} are not complete"
    return found


def is_complete(item: Input, tgid: int) -> bool:
    return isinstance(item, StackNamed) and item.tgid == tgid and not item.truncated


def names(frames: tuple[Frame, ...], *types: FrameType) -> list[str]:
    return [frame.name for frame in frames if frame.type in types]


def test_a_native_program_is_named_from_the_kernel_to_its_start(watch: Watch, tmp_path: Path) -> None:
    flags = ("-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-Wl,--build-id")
    program = compile_c(tmp_path, "reader", NATIVE, *flags, with_compiler="g++")
    stacks = sampled(watch, program)
    in_kernel = 0
    for frames, count in stacks.items():
        types = [frame.type for frame in frames]
        assert types == sorted(types, key=[FrameType.KERNEL, FrameType.NATIVE].index), (
            "kernel frames come first"
        )
        native = names(frames, FrameType.NATIVE)
        start = native.index("main") if "main" in native else 0
        if FrameType.KERNEL not in types or "main" not in native:
            continue
        kernel = names(frames, FrameType.KERNEL)
        if "read" in " ".join(kernel):
            in_kernel += count
            callees = [name.partition(" [clone")[0] for name in native[start - 2 : start]]
            assert callees == ["long app::fill<int>(int)", "app::Reader::again(int)"]
            assert native[0].endswith("read") and native[-1] == "_start"
            own = next(frame for frame in frames if frame.name == "main")
            assert own.file == str(program) and len(own.build_id) == 40
    total = stacks.total()
    assert in_kernel > 0.8 * total, f"{in_kernel} of {total} samples are of the kernel's reading"


def test_a_python_program_is_python_and_native_frames_together(watch: Watch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PYTHON)
    stacks = sampled(watch, sys.executable, script)
    whole = in_c = 0
    for frames, count in stacks.items():
        python = names(frames, FrameType.PYTHON)
        if python[:1] != ["digest"]:
            continue
        whole += count
        assert python == [
            *(
                "digest",
                "Model.forward.<locals>.<lambda>",
                "Model.forward",
                "Model.__call__",
                "train",
                "<module>",
            )
        ]
        reported = [frame.name for frame in frames]
        between = reported[
            reported.index("Model.forward.<locals>.<lambda>") + 1 : reported.index("Model.forward")
        ]
        assert "list_sort" in " ".join(between) and "builtin_sorted" in " ".join(between)
        assert not any(
            "EvalFrame" in name or name == "_PyEval_Vector" for name in reported[: reported.index("<module>")]
        )
        assert reported[-1] == "_start"
        digest = next(frame for frame in frames if frame.name == "digest")
        assert (digest.file, digest.line) == (
            str(script),
            PYTHON.splitlines().index("    return hashlib.sha256(DATA).hexdigest()") + 1,
        )
        in_c += count * (frames[0].type is not FrameType.PYTHON)
    total = stacks.total()
    assert whole > 0.9 * total, f"{whole} of {total} samples are of the digest"
    assert in_c > 0.9 * whole, "the digest is computed in C"


def test_what_matters_is_counted_and_nothing_else_was_lost(watch: Watch) -> None:
    lost = {key: count for key, count in watch.source.totals().items() if key[0] == "profile" and count}
    assert not {"stack_parts_lost", "stack_damaged", "python_unmatched", "evaluators_unmatched"} & {
        reason for _, reason in lost
    }
