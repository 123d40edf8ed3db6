"""Python stacks of each CPython that is installed, sampled live: names, files and lines, in the order of the truth.

The program says its own stack (tests/fakes/programs/python_stacks.py) and stays in it. The interpreters' evaluation
frames among the native ones are compared too: one for each frame that was entered from C.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from otelgpu.families.profiles.discover.interpreters import Interpreters
from otelgpu.families.profiles.discover.programs import attach_profiling, constants, wanted
from otelgpu.families.profiles.discover.python_code import IMPLAUSIBLE, UNREADABLE
from otelgpu.families.profiles.discover.unwind_tables import UnwindTables
from otelgpu.kernel.loader import LoadedFamily, load_family, read_image
from otelgpu.kernel.perf_events import attach_clocks
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.samples import Frame
from otelgpu.symbols.cpython.image import FREE_THREADED, STRIPPED, UNKNOWN_VERSION
from tests.rig.pythons import Python, TruthFrame, pythons
from tests.unit.elf.elf_builders import compile_c

pytestmark = pytest.mark.long

SETTINGS = ProfileSettings(kinds=frozenset((ProfileKind.CPU,)), frequency_hz=199)
STACKS = ("through_c", "generators", "coroutines", "threads", "ünïcödé_日本")
LEAST_SAMPLES = 3
LIMIT_S = 60.0  # samples are of processor time, which a busy machine gives late
PYTHON_ENTRY = 1 << 32
MAX_PYTHON_FRAMES = 128


@dataclass(frozen=True)
class Taken:
    """One stack as it was sampled. ``python``: (code, instruction and flags); ``native``: addresses."""

    native: tuple[int, ...]
    python: tuple[tuple[int, int], ...]
    end: str

    @property
    def entries(self) -> int:
        return sum(bool(word & PYTHON_ENTRY) for _, word in self.python)


class Sampler:
    """The family with its clocks, and what says to it where interpreters are."""

    def __init__(self, loaded: LoadedFamily) -> None:
        self.loaded = loaded
        self.interpreters = Interpreters(loaded)
        self.unwind = UnwindTables(loaded)
        ends = loaded.image.btf.enumerators("stack_end")
        self._ends = {number: name for name, number in ends.items()}
        self._parts: dict[int, dict[int, np.void]] = defaultdict(dict)  # each stack is reported once

    def observe(self, tgid: int) -> None:
        self.loaded.map("scope_processes").put(struct.pack("<I", tgid), b"\1")
        self.interpreters.see(tgid)
        self.unwind.see(tgid)
        assert self.unwind.settle(60)
        self._drain(tgid, None)

    def forget(self, tgid: int) -> None:
        self.loaded.map("scope_processes").delete(struct.pack("<I", tgid))
        self.interpreters.forget(tgid)
        self.unwind.forget(tgid)

    def take(self, tgid: int, *, least: int = LEAST_SAMPLES, tid: int | None = None) -> list[Taken]:
        """The stack of each sample of a process or thread, until there are enough."""
        samples: list[int] = []
        until = time.monotonic() + LIMIT_S
        while len(samples) < least and time.monotonic() < until:
            time.sleep(0.05)
            samples += self._drain(tgid, tid)
        assert len(samples) >= least, f"{len(samples)} samples in {LIMIT_S} s"
        return [self._stack(self._parts[number]) for number in samples]

    def _drain(self, tgid: int, tid: int | None) -> list[int]:
        """Stacks by the samples that there are."""
        samples: list[int] = []
        for batch in self.loaded.drain():
            records = batch.records[batch.records["head"]["tgid"] == tgid]
            for record in records:
                if batch.kind == "profile_stack":
                    self._parts[int(record["stack"])][int(record["part"])] = record
                elif tid in (None, int(record["head"]["tid"])):
                    samples.append(int(record["stack"]))
        return samples

    def _stack(self, parts: dict[int, np.void]) -> Taken:
        first = parts[0]
        words = [int(word) for number in sorted(parts) for word in parts[number]["words"]]
        kernel, user, python = (int(first[name]) for name in ("kernel", "user", "python"))
        pairs = words[kernel + user : kernel + user + 2 * python]
        return Taken(
            native=tuple(words[kernel : kernel + user]),
            python=tuple(zip(pairs[::2], pairs[1::2], strict=True)),
            end=self._ends[int(first["end"])],
        )

    def names(self, tgid: int, stack: Taken) -> list[Frame | None]:
        return [self.interpreters.code(tgid, code, word & 0xFFFFFFFF) for code, word in stack.python if code]

    def evaluations(self, tgid: int, stack: Taken) -> int:
        ranges = self.interpreters.evaluators(tgid)
        return sum(any(start <= address < end for start, end in ranges) for address in stack.native)


@pytest.fixture(scope="module")
def sampler(kernel: None) -> Iterator[Sampler]:
    loaded = load_family(
        read_image("profile"),
        constants=constants(SETTINGS),
        ring_bytes=1 << 22,
        wanted=wanted(SETTINGS.kinds),
    )
    made = Sampler(loaded)
    attach_clocks(loaded, SETTINGS.frequency_hz)
    yield made
    made.interpreters.close()
    made.unwind.close()
    loaded.close()


@contextmanager
def running(python: Python, stack: str) -> Iterator[tuple[int, list[TruthFrame]]]:
    process, truth = python.start(stack)
    try:
        yield process.pid, truth
    finally:
        process.kill()
        process.wait()


@contextmanager
def observed(sampler: Sampler, python: Python, stack: str) -> Iterator[tuple[int, list[TruthFrame]]]:
    with running(python, stack) as (tgid, truth):
        sampler.observe(tgid)
        try:
            yield tgid, truth
        finally:
            sampler.forget(tgid)


def reported(frames: list[Frame | None]) -> list[TruthFrame | None]:
    return [(frame.name, frame.file, frame.line) if frame else None for frame in frames]


def newest() -> Python:
    return next(python for python in reversed(pythons()) if python.root is None)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("python", pythons(), ids=str)
def test_each_sample_has_the_programs_stack(sampler: Sampler, python: Python, stack: str) -> None:
    with observed(sampler, python, stack) as (tgid, truth):
        for taken in sampler.take(tgid):
            assert reported(sampler.names(tgid, taken)) == truth
            assert taken.end == "STACK_COMPLETE"
            assert sampler.evaluations(tgid, taken) == taken.entries


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_a_stack_that_is_too_deep_keeps_its_leaf_and_says_so(sampler: Sampler, python: Python) -> None:
    with observed(sampler, python, "deep") as (tgid, truth):
        for taken in sampler.take(tgid):
            assert reported(sampler.names(tgid, taken)) == truth[:MAX_PYTHON_FRAMES]
            assert taken.end == "STACK_TOO_DEEP"
    assert len(truth) > 500


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_frames_of_all_interpreters_that_a_thread_is_in_are_reported(
    sampler: Sampler, python: Python
) -> None:
    with observed(sampler, python, "interpreters") as (tgid, truth):
        for taken in sampler.take(tgid):
            found = reported(sampler.names(tgid, taken))
            assert found[: len(truth)] == truth
            assert [frame and frame[0] for frame in found[len(truth) :]] == ["interpreters", "<module>"]
            assert sampler.evaluations(tgid, taken) == taken.entries


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_a_thread_is_found_among_many(sampler: Sampler, python: Python) -> None:
    with observed(sampler, python, "many_threads") as (tgid, truth):
        assert reported(sampler.names(tgid, sampler.take(tgid, least=10)[-1])) == truth


def test_more_threads_than_one_sample_looks_at_are_looked_at_by_several(sampler: Sampler) -> None:
    before = sampler.loaded.counters()["python_threads_cut"]
    with observed(sampler, newest(), "thousands_of_threads") as (tgid, truth):
        stacks = [sampler.names(tgid, taken) for taken in sampler.take(tgid, least=40)]
    assert reported(stacks[-1]) == truth
    assert sampler.loaded.counters()["python_threads_cut"] == before + 2


def test_a_program_without_python_has_no_python_frames(sampler: Sampler, tmp_path: Path) -> None:
    program = compile_c(tmp_path, "spin", "int main(void) { for (;;) ; }")
    with subprocess.Popen([program]) as process:
        sampler.observe(process.pid)
        assert not sampler.interpreters.see(process.pid)
        stacks = sampler.take(process.pid)
        sampler.forget(process.pid)
        process.kill()
    assert all(not taken.python for taken in stacks)


THREAD = """
#include <pthread.h>
static void *spin(void *unused) { for (;;) ; }
void start(void) { pthread_t thread; pthread_create(&thread, 0, spin, 0); }
"""


def test_a_thread_that_knows_no_python_has_no_python_frames(sampler: Sampler, tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libspin.so", THREAD, "-shared", "-fPIC", "-pthread")
    script = (
        f"import ctypes, time; ctypes.CDLL({str(library)!r}).start(); print('x', flush=True); time.sleep(99)"
    )
    with subprocess.Popen(newest().command("-c", script), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sampler.observe(process.pid)
        assert sampler.interpreters.see(process.pid)
        tids = {int(name) for name in os.listdir(f"/proc/{process.pid}/task")} - {process.pid}
        stacks = sampler.take(process.pid, tid=tids.pop())
        sampler.forget(process.pid)
        process.kill()
    assert all(not taken.python for taken in stacks)


# Prints the number of the thread that it starts last, which need not be the greatest.
NEWEST_AMONG_MANY = """
import ctypes, os, threading, time
for _ in range(900):
    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
before = set(os.listdir("/proc/self/task"))
ctypes.CDLL({library!r}).start()
print(*set(os.listdir("/proc/self/task")) - before, flush=True)
time.sleep(99)
"""


def test_a_thread_that_knows_no_python_is_seldom_looked_for_among_many(
    sampler: Sampler, tmp_path: Path
) -> None:
    library = compile_c(tmp_path, "libspin.so", THREAD, "-shared", "-fPIC", "-pthread")
    script = NEWEST_AMONG_MANY.format(library=str(library))
    with subprocess.Popen(newest().command("-c", script), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        tid = int(process.stdout.readline())
        sampler.observe(process.pid)
        sampler.take(process.pid, tid=tid)
        table, key = sampler.loaded.map("python_threads"), struct.pack("<II", tid, process.pid)
        rows = set()
        for _ in range(20):
            rows.add(table.get(key) or b"")
            sampler.take(process.pid, tid=tid, least=1)
        sampler.forget(process.pid)
        process.kill()
    layout = sampler.loaded.image.btf.dtype("python_thread")
    known = np.concatenate([np.frombuffer(row, layout) for row in rows])
    # A row can be read in the middle of a search, which then says where it is.
    known = known[known["interpreter"] == 0]
    assert set(known["own"].tolist()) == {0}
    assert (known["looked"] > 900).all()
    # Each search puts the next off, by a quarter of a millisecond for each thread that it looked at.
    again_ns = np.unique(known["again_ns"]).astype(np.int64)
    assert len(again_ns) > 1 and np.diff(again_ns).min() >= 900 * 250_000


BEGINNING = """
#include <pthread.h>
#include <stdio.h>
struct object { long references; const void *type; };
struct frame { const struct object *code; const struct frame *previous; long instruction, is_entry; };
struct cframe { const struct frame *current; const struct cframe *previous; };
struct state { const struct state *next; pthread_t thread; const struct cframe *cframe; };
struct interpreter { const struct interpreter *next; const struct state *threads; };
static const struct object type, other, code = { 1, &type }, text = { 1, &other };
static const struct frame caller = { &code, 0, 0, 1 }, none = { &text, 0, 0, 0 };
static const struct cframe outer = { &caller, 0 }, begins = { &none, &outer };
static struct state state = { 0, 0, &begins };
static const struct interpreter interpreter = { 0, &state };
static const struct interpreter *const runtime = &interpreter;
int main(void)
{
	state.thread = pthread_self();
	printf("%lu %lu\\n", (unsigned long)&runtime, (unsigned long)&code);
	fflush(stdout);
	for (;;)
		;
}
"""


def test_an_evaluation_that_begins_is_not_taken_for_what_its_stack_holds(
    sampler: Sampler, tmp_path: Path
) -> None:
    """In 3.11 and 3.12 it is known some instructions before its frame is: a program that stays between these."""
    process_of = sampler.loaded.image.btf.dtype("python_process")
    numbers = sampler.loaded.image.btf.enumerators("python_frames")
    made = np.zeros(1, dtype=process_of)
    made["next_interpreter"], made["threads"], made["next_thread"], made["thread_id"] = 0, 8, 0, 8
    made["frame"], made["cframe_current"], made["has_cframe"] = 16, 0, 1
    made["code"], made["previous"], made["instruction"], made["owner"] = 0, 8, 16, 24
    made["frame_bytes"], made["frames"] = 32, numbers["PYTHON_FRAMES_ENTRIES"]
    program = compile_c(tmp_path, "begins", BEGINNING, "-pthread")
    with subprocess.Popen([program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        runtime, code = map(int, process.stdout.readline().split())
        made["runtime"] = runtime
        sampler.observe(process.pid)
        sampler.loaded.map("interpreters").put(struct.pack("<I", process.pid), made.tobytes())
        sampler.take(process.pid)  # of which the first may be from before
        stacks = sampler.take(process.pid)
        sampler.loaded.map("interpreters").delete(struct.pack("<I", process.pid))
        sampler.forget(process.pid)
        process.kill()
    for taken in stacks:
        assert [(address, bool(word & PYTHON_ENTRY)) for address, word in taken.python] == [
            (0, True),
            (code, True),
        ]


def test_code_that_released_the_lock_has_its_python_frames(sampler: Sampler, tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libspin.so", "void spin(void) { for (;;) ; }", "-shared", "-fPIC")
    opened = f"import ctypes\nspin = ctypes.CDLL({str(library)!r}).spin\n"
    script = opened + "def call(): spin()\nprint('x', flush=True)\ncall()"
    with subprocess.Popen(newest().command("-c", script), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sampler.observe(process.pid)
        stacks = [reported(sampler.names(process.pid, taken)) for taken in sampler.take(process.pid)]
        sampler.forget(process.pid)
        process.kill()
    assert stacks[-1] == [("call", "<string>", 3), ("<module>", "<string>", 5)]


def test_a_thread_that_sleeps_has_its_python_frames(kernel: None) -> None:
    settings = ProfileSettings(kinds=frozenset((ProfileKind.OFFCPU,)), off_cpu_least_us=1000)
    loaded = load_family(
        read_image("profile"),
        constants=constants(settings),
        ring_bytes=1 << 22,
        wanted=wanted(settings.kinds),
    )
    script = "import time\ndef nap():\n while True: time.sleep(0.01)\nprint('x', flush=True)\nnap()"
    sleeping = Sampler(loaded)
    try:
        attach_profiling(loaded, settings)
        for python in pythons():
            with subprocess.Popen(python.command("-c", script), stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                sleeping.observe(process.pid)
                stacks = [
                    reported(sleeping.names(process.pid, taken)) for taken in sleeping.take(process.pid)
                ]
                sleeping.forget(process.pid)
                process.kill()
            assert stacks[-1] == [("nap", "<string>", 3), ("<module>", "<string>", 5)], python
    finally:
        sleeping.interpreters.close()
        sleeping.unwind.close()
        loaded.close()


@pytest.fixture
def environment(tmp_path: Path) -> Python:
    """A virtual environment of the newest interpreter."""
    python = newest()
    subprocess.run(python.command("-m", "venv", "--without-pip", str(tmp_path / "venv")), check=True)
    return Python(version=python.version, path=tmp_path / "venv/bin/python", include=python.include)


def test_virtual_environments_are_followed(sampler: Sampler, environment: Python) -> None:
    with observed(sampler, environment, "through_c") as (tgid, truth):
        assert sampler.interpreters.version(tgid) == environment.version
        assert reported(sampler.names(tgid, sampler.take(tgid)[-1])) == truth


def test_an_interpreter_that_was_deleted_is_followed(sampler: Sampler, tmp_path: Path) -> None:
    static = next((python for python in pythons() if python.path.stat().st_size > 1 << 20), None)
    if static is None:
        pytest.skip(
            f"needs an interpreter that is in its program; there are {[str(each) for each in pythons()]}"
        )
    copy = shutil.copy(static.path, tmp_path / "service")
    environment = {**os.environ, "PYTHONHOME": str(static.path.parent.parent)}
    script = "import time\nprint('x', flush=True)\nwhile True: pass"
    with subprocess.Popen([copy, "-c", script], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.unlink(copy)
        sampler.observe(process.pid)
        stacks = [reported(sampler.names(process.pid, taken)) for taken in sampler.take(process.pid)]
        sampler.forget(process.pid)
        process.kill()
    assert stacks[-1] == [("<module>", "<string>", 3)]


def test_a_forked_child_is_an_interpreter_of_its_own(sampler: Sampler) -> None:
    script = (
        "import os, time\nif os.fork():\n time.sleep(99)\nprint(os.getpid(), flush=True)\nwhile True: pass"
    )
    with subprocess.Popen(newest().command("-c", script), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            sampler.observe(child)
            stacks = [reported(sampler.names(child, taken)) for taken in sampler.take(child)]
            sampler.forget(child)
        finally:
            os.kill(child, 9)
            process.kill()
    assert stacks[-1] == [("<module>", "<string>", 5)]


def test_a_library_that_is_loaded_late_is_found_when_it_is_mapped(sampler: Sampler, tmp_path: Path) -> None:
    library = next(
        (
            found
            for python in pythons()
            for found in python.path.parent.parent.glob("lib/libpython3.*.so.1.0")
        ),
        None,
    )
    if library is None:
        pytest.skip(f"needs a libpython; {[str(each.path) for each in pythons()]} have none beside them")
    source = """
    #include <dlfcn.h>
    #include <stdio.h>
    int main(int n, char **v) {
        getchar();
        void *lib = dlopen(v[1], RTLD_NOW | RTLD_GLOBAL);
        ((void (*)(void))dlsym(lib, "Py_Initialize"))();
        puts("x"); fflush(stdout);
        return ((int (*)(const char *, void *))dlsym(lib, "PyRun_SimpleStringFlags"))(v[2], 0);
    }"""
    program = compile_c(tmp_path, "embedding", source, "-ldl")
    environment = {**os.environ, "PYTHONHOME": str(library.parent.parent)}
    command = [str(program), str(library), "while True: pass"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        sampler.observe(process.pid)
        assert not sampler.interpreters.see(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        sampler.interpreters.mapped(process.pid)
        assert sampler.interpreters.see(process.pid)
        stacks = [reported(sampler.names(process.pid, taken)) for taken in sampler.take(process.pid)]
        sampler.forget(process.pid)
        process.kill()
    assert stacks[-1] == [("<module>", "<string>", 1)]


# -- What cannot be read ---------------------------------------------------------------------------------------


def test_addresses_that_hold_no_code_are_counted(sampler: Sampler) -> None:
    with observed(sampler, newest(), "through_c") as (tgid, _):
        code = sampler.take(tgid)[-1].python[0][0]
        before = dict(sampler.interpreters.counters)
        assert sampler.interpreters.code(tgid, code, 0) is not None
        for address in (0, 8, code + 8, (1 << 47) - 4096, 1 << 63):
            assert sampler.interpreters.code(tgid, address, 0) is None
    counters = sampler.interpreters.counters
    assert sum(counters[name] - before[name] for name in (UNREADABLE, IMPLAUSIBLE)) == 5


def test_a_process_that_has_ended_is_counted(sampler: Sampler) -> None:
    with running(newest(), "through_c") as (tgid, _):
        sampler.observe(tgid)
        code = sampler.take(tgid)[-1].python[0][0]
    before = sampler.interpreters.counters[UNREADABLE]
    assert sampler.interpreters.code(tgid, code, 0) is None
    assert sampler.interpreters.counters[UNREADABLE] == before + 1
    sampler.forget(tgid)


def test_code_at_an_address_that_was_used_before_is_noticed(sampler: Sampler) -> None:
    script = """
import sys
for number in range(1000):
    source = chr(10) * number + f"def function_{number}(): pass"
    code = compile(source, f"file{number}", "exec")
    address = id(code)
    print(address, number, flush=True)
    sys.stdin.readline()
    del code
"""
    with subprocess.Popen(
        newest().command("-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen: dict[int, int] = {}
        again = 0
        line = process.stdout.readline()
        sampler.interpreters.see(process.pid)
        for _ in range(100):
            address, number = map(int, line.split())
            frame = sampler.interpreters.code(process.pid, address, 1 << 16)
            assert frame is not None
            assert frame.file == f"file{number}"
            again += address in seen
            seen[address] = number
            process.stdin.write("\n")
            process.stdin.flush()
            line = process.stdout.readline()
        sampler.interpreters.forget(process.pid)
        process.kill()
    assert again > 10


RUNS_ON = 'int main(void) { puts("x"); fflush(stdout); for (;;) ; }'


@pytest.mark.parametrize(
    ("source", "flags", "reason"),
    [
        ('struct { char c[8]; long v[120]; } _PyRuntime = {"xdebugpy", {0x030f00f0}};', (), UNKNOWN_VERSION),
        ('struct { char c[8]; long v[120]; } _PyRuntime = {"xdebugpy", {0x030e00f0, 1}};', (), FREE_THREADED),
        ("int unrelated;", ("-s",), STRIPPED),
    ],
)
def test_an_interpreter_that_is_not_followed_is_counted_once(
    sampler: Sampler, tmp_path: Path, source: str, flags: tuple[str, ...], reason: str
) -> None:
    program = compile_c(
        tmp_path, "python3.15", f"#include <stdio.h>\n{source} {RUNS_ON}", "-rdynamic", *flags
    )
    before = sampler.interpreters.counters[reason]
    with subprocess.Popen([program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not sampler.interpreters.see(process.pid)
        sampler.interpreters.mapped(process.pid)
        assert not sampler.interpreters.see(process.pid)
        sampler.interpreters.forget(process.pid)
        process.kill()
    assert sampler.interpreters.counters[reason] == before + 1


def test_nothing_is_left_of_a_process_that_is_forgotten(sampler: Sampler) -> None:
    with running(newest(), "through_c") as (tgid, _):
        sampler.observe(tgid)
        sampler.take(tgid)
        assert sampler.loaded.map("interpreters").get(struct.pack("<I", tgid)) is not None
        open_before = len(os.listdir("/proc/self/fd"))
        sampler.interpreters.code(tgid, 1 << 20, 0)
        sampler.forget(tgid)
        assert sampler.loaded.map("interpreters").get(struct.pack("<I", tgid)) is None
        assert len(os.listdir("/proc/self/fd")) <= open_before


def test_the_interpreter_of_these_tests_is_among_those_that_are_found() -> None:
    assert any(python.version == sys.version.split()[0] for python in pythons())
