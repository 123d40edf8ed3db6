"""Stacks of living, dead and odd processes → frames by name; parts that come, come late and never come."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from otelgpu.families.profiles.discover import stacks
from otelgpu.families.profiles.discover.kernel_functions import KernelFunctions
from otelgpu.families.profiles.discover.stacks import PYTHON_ENTRY, UNKNOWN, UNREADABLE_CODE, StackNamer
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Records
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame, StackNamed
from otelgpu.processes.elf_files import open_elf
from otelgpu.processes.maps import Mapping, read_maps
from tests.rig.examples import examples
from tests.unit.elf.elf_builders import compile_c

BTF = read_image("profile").btf
RECORD = BTF.dtype("profile_stack")
PART_WORDS = RECORD["words"].shape[0]
ENDS = {number: word for word, number in BTF.enumerators("stack_end").items()}
NUMBER = {word: number for number, word in ENDS.items()}
OWN = os.getpid()
KERNEL = 0xFFFFFFFF81000000
KALLSYMS = (
    f"{KERNEL:016x} T vfs_write\n{KERNEL + 0x100:016x} T do_syscall_64\n{KERNEL + 0x200:016x} T other\n"
)

# Prints where its functions lie, then waits for its input to end. At -O0 they lie one behind the other.
PROGRAM = r"""
    #include <stdio.h>
    __attribute__((noinline)) void axpy(float a, float *x, float *y) { *y += a * *x; }
    __attribute__((noinline)) void scale(float *x) { *x *= 2; }
    extern "C" { __attribute__((noinline)) void __restore_rt() { }
                 __attribute__((noinline)) void _PyEval_EvalFrameDefault() { }
                 __attribute__((noinline)) void _TAIL_CALL_LOAD_FAST() { }
                 __attribute__((noinline)) void interrupted() { } }
    int main(int argc, char **argv) {
        float x = 1, y = 2; axpy(3, &x, &y); scale(&x); __restore_rt(); interrupted();
        printf("%p %p %p %p %p %p %p\n", (void *)axpy, (void *)scale, (void *)__restore_rt, (void *)interrupted,
               (void *)_PyEval_EvalFrameDefault, (void *)_TAIL_CALL_LOAD_FAST, (void *)main); fflush(stdout);
        getchar(); return 0;
    }
"""
NAMES = ("axpy", "scale", "restore", "interrupted", "evaluator", "tail_call", "main")


class Running:
    """A started program and the addresses that it printed."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.pid = self.process.pid
        self.at = dict(zip(NAMES, (int(w, 16) for w in self.process.stdout.readline().split()), strict=True))

    def end(self) -> None:
        self.process.communicate(timeout=10)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    return compile_c(folder, "app", PROGRAM, "-O0", "-Wl,--build-id", with_compiler="g++")


@pytest.fixture
def running(program: Path) -> Iterator[Running]:
    started = Running(program)
    yield started
    started.end()


class Pythons:
    """Code objects by address; what is evaluated where."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.ranges: Sequence[tuple[int, int]] = ()
        self.tail_calls = False
        self.expected: list[tuple[int, list[int]]] = []

    def expect(self, tgid: int, addresses: Iterable[int]) -> None:
        self.expected.append((tgid, list(addresses)))

    def code(self, tgid: int, address: int, instruction: int) -> Frame | None:
        name = self.names.get(address)
        return Frame(type=FrameType.PYTHON, name=name, line=instruction) if name else None

    def evaluators(self, tgid: int) -> Sequence[tuple[int, int]]:
        return self.ranges

    def has_tail_calls(self, tgid: int) -> bool:
        return self.tail_calls


@pytest.fixture
def pythons() -> Pythons:
    return Pythons()


@pytest.fixture
def namer(tmp_path: Path, pythons: Pythons) -> Iterator[StackNamer]:
    (tmp_path / "kallsyms").write_text(KALLSYMS)
    made = StackNamer(ENDS, pythons, kernel=KernelFunctions(path=tmp_path / "kallsyms"))
    yield made
    made.close()


def parts(
    tgid: int,
    *,
    kernel: Sequence[int] = (),
    user: Sequence[int] = (),
    python: Sequence[tuple[int, int]] = (),
    stack: int = 1,
    end: str = "STACK_COMPLETE",
) -> Records:
    """All parts of one stack, in their order."""
    words = [*kernel, *user, *(word for pair in python for word in pair)]
    count = max(-(-len(words) // PART_WORDS), 1)
    records = np.zeros(count, dtype=RECORD)
    records["head"]["tgid"], records["stack"], records["end"] = tgid, stack, NUMBER[end]
    records["kernel"], records["user"], records["python"] = len(kernel), len(user), len(python)
    records["part"] = np.arange(count)
    for part in range(count):
        some = words[part * PART_WORDS : (part + 1) * PART_WORDS]
        records["words"][part][: len(some)] = some
    return records


class Memory:
    """Code of a file at a place of one's choice in this process."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)

    def put(self, path: Path, address: int | None = None) -> int:
        fixed = mmap.MAP_PRIVATE | (0x10 if address is not None else 0)
        with path.open("rb") as file:
            size = path.stat().st_size
            found = self.libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_EXEC, fixed, file.fileno(), 0)
        assert found not in (None, ctypes.c_void_p(-1).value)
        return int(found)


def named(namer: StackNamer, records: Records) -> StackNamed:
    namer.add(records)
    (found,) = namer.collect()
    return found


def reported(stack: StackNamed) -> list[str]:
    return [frame.name for frame in stack.frames]


def counted(namer: StackNamer) -> dict[str, int]:
    return {reason: count for reason, count in namer.counters.items() if count}


# -- names ------------------------------------------------------------------------------------------------


def test_native_frames_have_their_names_file_and_build(
    running: Running, namer: StackNamer, program: Path
) -> None:
    (frame,) = named(namer, parts(running.pid, user=[running.at["axpy"] + 4])).frames
    assert (frame.type, frame.name) == (FrameType.NATIVE, "axpy(float, float*, float*)")
    assert (frame.system_name, frame.file) == ("_Z4axpyfPfS_", str(program))
    assert len(frame.build_id) == 40 and 0 < frame.address < program.stat().st_size
    assert counted(namer) == {}


def test_a_caller_is_where_the_call_was_made_and_not_where_it_returns_to(
    running: Running, namer: StackNamer
) -> None:
    stack = named(namer, parts(running.pid, user=[running.at["scale"], running.at["scale"]]))
    assert reported(stack) == ["scale(float*)", "axpy(float, float*, float*)"]


def test_what_a_signal_interrupted_is_no_caller(running: Running, namer: StackNamer) -> None:
    user = [running.at["axpy"], running.at["restore"] + 1, running.at["interrupted"]]
    assert reported(named(namer, parts(running.pid, user=user)))[1:] == ["__restore_rt", "interrupted"]


def test_kernel_frames_come_first_and_report_no_address(running: Running, namer: StackNamer) -> None:
    kernel = [KERNEL + 0x10, KERNEL + 0x200, KERNEL - 0x1000]
    stack = named(namer, parts(running.pid, kernel=kernel, user=[running.at["axpy"]]))
    assert reported(stack) == ["vfs_write", "do_syscall_64", "[kernel]", "axpy(float, float*, float*)"]
    assert all(frame.address == 0 and f"{KERNEL >> 24:x}" not in str(frame) for frame in stack.frames[:3])
    assert counted(namer) == {"kernel_symbol_missing": 1}


def test_a_kernel_whose_addresses_are_hidden_is_counted(tmp_path: Path) -> None:
    (tmp_path / "kallsyms").write_text("0000000000000000 T vfs_write\n")
    namer = StackNamer(ENDS, kernel=KernelFunctions(path=tmp_path / "kallsyms"))
    assert reported(named(namer, parts(OWN, kernel=[KERNEL, KERNEL]))) == ["[kernel]", "[kernel]"]
    assert counted(namer) == {"kernel_symbols_hidden": 2}
    namer.close()


def own_mapping(path: str) -> Mapping:
    return next(mapping for mapping in read_maps(OWN) if mapping.path == path)


def test_the_vdso_has_names(namer: StackNamer) -> None:
    vdso = own_mapping("[vdso]")
    names = set()
    for offset in range(0x400, vdso.end - vdso.start, 0x40):
        (frame,) = named(namer, parts(OWN, user=[vdso.start + offset], stack=offset)).frames
        assert frame.file == "[vdso]"
        names.add(frame.name)
    assert "__vdso_clock_gettime" in names or "clock_gettime" in names


def test_the_functions_of_our_own_library_are_not_the_leaf(tmp_path: Path, namer: StackNamer) -> None:
    source = "void otelgpu_call_began(void) {} void call_begin(void) {} void cudaMalloc(void) {}"
    flags = ("-shared", "-fPIC", "-nostdlib", "-O0", "-Wl,-z,noseparate-code")
    library = compile_c(tmp_path, "libotelgpu_inject.so", source, *flags)
    base = Memory().put(library)
    with open_elf(library) as file:
        at = file.image.function_offsets(["otelgpu_call_began", "call_begin", "cudaMalloc"])
    user = [base + at["otelgpu_call_began"], base + at["call_begin"] + 1, base + at["cudaMalloc"] + 1]
    assert reported(named(namer, parts(OWN, user=user))) == ["cudaMalloc"]
    assert reported(named(namer, parts(OWN, user=[*user[2:], user[1]], stack=2))) == [
        "cudaMalloc",
        "call_begin",
    ]


def test_what_is_mapped_nowhere_and_what_is_gone_is_unknown(namer: StackNamer) -> None:
    assert named(namer, parts(OWN, user=[0x10])).frames == (UNKNOWN,)
    assert named(namer, parts(1 << 30, user=[0x10], stack=2)).frames == (UNKNOWN,)
    assert counted(namer) == {"stack_address_unmapped": 1, "stack_process_gone": 1}


def test_a_deleted_program_is_still_named(tmp_path: Path, namer: StackNamer) -> None:
    running = Running(compile_c(tmp_path, "gone", PROGRAM, "-O0", with_compiler="g++"))
    try:
        if not os.access(f"/proc/{running.pid}/map_files", os.R_OK):
            pytest.skip("map_files wants CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE")
        (tmp_path / "gone").unlink()
        assert reported(named(namer, parts(running.pid, user=[running.at["scale"]]))) == ["scale(float*)"]
    finally:
        running.end()


def test_a_process_that_has_ended_is_named_if_it_was_seen(program: Path, namer: StackNamer) -> None:
    running = Running(program)
    namer.see(running.pid)
    running.end()
    assert reported(named(namer, parts(running.pid, user=[running.at["scale"]]))) == ["scale(float*)"]


def test_a_stripped_program_gives_module_and_offset(tmp_path: Path, namer: StackNamer) -> None:
    running = Running(compile_c(tmp_path, "bare", PROGRAM, "-s", with_compiler="g++"))
    try:
        (frame,) = named(namer, parts(running.pid, user=[running.at["scale"]])).frames
        assert frame.name == f"bare+{frame.address:#x}" and frame.system_name == ""
        assert counted(namer) == {"stack_symbol_missing": 1}
    finally:
        running.end()


@pytest.fixture
def generated() -> Iterator[int]:
    """A page of code that is in no file."""
    page = mmap.mmap(
        -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE
    )
    holder = ctypes.c_char.from_buffer(page)
    yield ctypes.addressof(holder)
    del holder
    page.close()


def test_code_made_at_run_time_has_the_name_that_its_compiler_wrote(
    namer: StackNamer, generated: int
) -> None:
    path = Path(f"/tmp/perf-{OWN}.map")
    try:
        assert reported(named(namer, parts(OWN, user=[generated]))) == ["[anonymous]"]
        path.write_text(f"{generated:x} 20 LazyCompile:*fib app.js:1\n")
        namer.forget(OWN)
        (frame,) = named(namer, parts(OWN, user=[generated + 8], stack=2)).frames
        assert (frame.name, frame.file) == ("LazyCompile:*fib app.js:1", "[jit]")
    finally:
        path.unlink(missing_ok=True)


# -- Python -----------------------------------------------------------------------------------------------


def test_python_frames_stand_for_the_frames_that_evaluate_them(
    running: Running, namer: StackNamer, pythons: Pythons
) -> None:
    pythons.names = {0x1000: "forward", 0x2000: "handler"}
    user = [running.at["axpy"], running.at["evaluator"] + 1, running.at["main"] + 1]
    stack = named(namer, parts(running.pid, user=user, python=[(0x1000, 7), (0x2000, 9 | PYTHON_ENTRY)]))
    assert reported(stack) == ["axpy(float, float*, float*)", "forward", "handler", "main"]
    assert [frame.line for frame in stack.frames] == [0, 7, 9, 0]
    assert counted(namer) == {}


def test_what_evaluates_is_known_by_address_too(
    running: Running, namer: StackNamer, pythons: Pythons
) -> None:
    pythons.names = {0x1000: "forward"}
    pythons.ranges = [(running.at["interrupted"], running.at["interrupted"] + 4)]
    user = [running.at["axpy"], running.at["interrupted"] + 1, running.at["main"] + 1]
    stack = named(namer, parts(running.pid, user=user, python=[(0x1000, PYTHON_ENTRY)]))
    assert reported(stack) == ["axpy(float, float*, float*)", "forward", "main"]


@pytest.mark.parametrize("by_name", [True, False])
def test_an_instruction_that_is_a_function_belongs_to_its_evaluation(
    running: Running, namer: StackNamer, pythons: Pythons, by_name: bool
) -> None:
    pythons.names, pythons.tail_calls = {0x1000: "forward"}, not by_name
    instruction = running.at["tail_call" if by_name else "interrupted"] + 1
    user = [running.at["axpy"], instruction, running.at["evaluator"] + 1, running.at["main"] + 1]
    stack = named(namer, parts(running.pid, user=user, python=[(0x1000, PYTHON_ENTRY)]))
    assert reported(stack) == ["axpy(float, float*, float*)", "forward", "main"]


def test_code_that_cannot_be_read_is_a_frame(running: Running, namer: StackNamer) -> None:
    user = [running.at["evaluator"], running.at["main"] + 1]
    stack = named(namer, parts(running.pid, user=user, python=[(0x5000, PYTHON_ENTRY)]))
    assert stack.frames[0] == UNREADABLE_CODE and reported(stack)[1] == "main"


def test_an_evaluation_that_runs_no_function_yet_is_no_frame(
    running: Running, namer: StackNamer, pythons: Pythons
) -> None:
    pythons.names = {0x1000: "caller"}
    user = [running.at["evaluator"], running.at["evaluator"] + 1, running.at["main"] + 1]
    stack = named(namer, parts(running.pid, user=user, python=[(0, PYTHON_ENTRY), (0x1000, PYTHON_ENTRY)]))
    assert reported(stack) == ["caller", "main"]
    assert counted(namer) == {}


def test_more_than_one_evaluation_without_a_frame_is_counted(
    running: Running, namer: StackNamer, pythons: Pythons
) -> None:
    pythons.names = {0x1000: "caller"}
    evaluation = running.at["evaluator"] + 1
    one = parts(running.pid, user=[evaluation, evaluation], python=[(0x1000, PYTHON_ENTRY)])
    assert reported(named(namer, one)) == ["_PyEval_EvalFrameDefault", "caller"]
    assert counted(namer) == {}
    two = parts(running.pid, user=[evaluation] * 3, python=[(0x1000, PYTHON_ENTRY)], stack=2)
    assert reported(named(namer, two)) == ["_PyEval_EvalFrameDefault"] * 2 + ["caller"]
    assert counted(namer) == {"evaluators_unmatched": 2}


def test_a_stack_with_a_frame_without_a_name_is_named_anew_when_it_is_reported_again(
    running: Running, namer: StackNamer, pythons: Pythons
) -> None:
    record = parts(running.pid, user=[running.at["evaluator"]], python=[(0x5000, PYTHON_ENTRY)])
    assert reported(named(namer, record)) == ["[python]"]
    pythons.names = {0x5000: "forward"}
    assert reported(named(namer, record)) == ["forward"]


def test_a_frame_whose_name_comes_late_is_reported_when_it_is_there(
    running: Running, namer: StackNamer, pythons: Pythons, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_LATER_S", (0.0, 0.0, 0.0))
    record = parts(running.pid, user=[running.at["evaluator"]], python=[(0x5000, PYTHON_ENTRY)])
    namer.add(record)
    assert [reported(stack) for stack in namer.collect()] == [["[python]"]]
    assert namer.collect() == []
    pythons.names = {0x5000: "forward"}
    assert [reported(stack) for stack in namer.collect()] == [["forward"]]
    assert namer.collect() == [] and namer._later == []


def test_a_frame_that_stays_without_a_name_is_given_up(
    running: Running, namer: StackNamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_LATER_S", (0.0, 0.0, 0.0))
    namer.add(parts(running.pid, user=[running.at["evaluator"]], python=[(0x5000, PYTHON_ENTRY)]))
    assert [len(namer.collect()) for _ in range(6)] == [1, 0, 0, 0, 0, 0]
    assert namer._later == []


def test_what_is_to_be_named_later_is_bounded_and_ends_with_its_process(
    running: Running, namer: StackNamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_MAX_LATER", 5)
    for number in range(1, 20):
        one = parts(
            running.pid, user=[running.at["evaluator"]], python=[(0x5000, PYTHON_ENTRY)], stack=number
        )
        named(namer, one)
    assert len(namer._later) == 5
    namer.forget(running.pid)
    assert namer._later == []


def test_every_reason_that_is_counted_has_its_words(namer: StackNamer) -> None:
    unused = {"stack_text_unreadable", "stack_mapping_anonymous"}
    assert namer.counters.keys() - unused <= stacks.REASONS.keys()


# -- parts ------------------------------------------------------------------------------------------------


def test_a_long_stack_is_put_together_of_parts_in_any_order(running: Running, namer: StackNamer) -> None:
    user = [running.at["axpy"], *[running.at["main"] + 1] * 150]
    namer.add(parts(running.pid, kernel=[KERNEL] * 50, user=user, end="STACK_TOO_DEEP")[::-1])
    (stack,) = namer.collect()
    assert (
        reported(stack)
        == ["vfs_write"] * 1 + ["[kernel]"] * 49 + ["axpy(float, float*, float*)"] + ["main"] * 150
    )
    assert stack.truncated == "too_deep"


def test_parts_may_come_in_two_collections(running: Running, namer: StackNamer) -> None:
    whole = parts(running.pid, user=[running.at["main"] + 1] * 100)
    namer.add(whole[:1])
    assert namer.collect() == []
    namer.add(whole[1:])
    assert [len(stack.frames) for stack in namer.collect()] == [100]
    assert counted(namer) == {} and namer.to_report_again == []


def test_a_part_that_is_lost_cuts_the_stack_and_is_asked_for_again(
    running: Running, namer: StackNamer
) -> None:
    whole = parts(running.pid, user=[running.at["main"] + 1] * 150, stack=77)
    namer.add(whole[[0, 2]])
    assert namer.collect() == []
    (stack,) = namer.collect()
    assert (len(stack.frames), stack.truncated) == (PART_WORDS, "parts_lost")
    assert counted(namer) == {"stack_parts_lost": 1} and namer.to_report_again == [77]
    assert len(named(namer, whole).frames) == 150


def test_why_a_stack_is_not_complete_is_reported_by_the_word_of_the_header(
    running: Running, namer: StackNamer
) -> None:
    for number, (end, word) in enumerate(
        {"STACK_COMPLETE": "", "STACK_NO_ROW": "no_row", "STACK_UNMAPPED": "unmapped"}.items()
    ):
        one = parts(running.pid, user=[running.at["axpy"]], stack=number + 1, end=end)
        assert named(namer, one).truncated == word


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            *(
                st.integers(0, 66),
                st.integers(0, 258),
                st.integers(0, 130),
                st.integers(0, 12),
                st.integers(0, 20),
            ),
            st.binary(min_size=0, max_size=80),
        ),
        max_size=6,
    )
)
def test_any_record_is_taken(namer: StackNamer, found: list[tuple[int, int, int, int, int, bytes]]) -> None:
    records = np.zeros(len(found), dtype=RECORD)
    for record, (kernel, user, python, part, end, words) in zip(records, found, strict=True):
        record["head"]["tgid"], record["stack"] = OWN, len(words)
        record["kernel"], record["user"], record["python"] = kernel, user, python
        record["part"], record["end"] = part, end
        record["words"].view("u1")[: len(words)] = np.frombuffer(words, "u1")
    namer.add(records)
    for _ in range(3):
        for stack in namer.collect():
            assert all(frame.name for frame in stack.frames)
    assert not namer._pending


@pytest.mark.parametrize(
    "damage",
    [{"kernel": 65}, {"user": 257}, {"python": 129}, {"part": 1}, {"part": 255}, {"user": 0, "part": 1}],
)
def test_a_record_that_cannot_be_is_counted(damage: dict[str, int], namer: StackNamer) -> None:
    record = parts(OWN, user=[1])
    for name, value in damage.items():
        record[name] = value
    namer.add(record)
    assert namer.collect() == [] and counted(namer) == {"stack_damaged": 1}


def test_an_empty_stack_and_an_unknown_end(namer: StackNamer) -> None:
    record = parts(OWN)
    record["end"] = 99
    assert named(namer, record) == StackNamed(tgid=OWN, stack=1, frames=(), truncated="unknown")


# -- what is remembered -----------------------------------------------------------------------------------


def test_a_stack_that_is_reported_again_is_not_named_again(running: Running, namer: StackNamer) -> None:
    record = parts(running.pid, user=[running.at["axpy"]])
    assert named(namer, record) is named(namer, record)


def test_equal_frames_of_two_processes_are_one(program: Path, namer: StackNamer) -> None:
    one, other = Running(program), Running(program)
    try:
        frames = [
            named(namer, parts(each.pid, user=[each.at["axpy"]], stack=each.pid)).frames[0]
            for each in (one, other)
        ]
        assert frames[0] is frames[1]
    finally:
        one.end()
        other.end()


def test_the_stacks_of_a_process_that_is_forgotten_are_to_be_reported_again(
    running: Running, namer: StackNamer
) -> None:
    record = parts(running.pid, user=[running.at["axpy"]], stack=5)
    before = named(namer, record)
    namer.forget(running.pid)
    assert namer.to_report_again == [5]
    assert named(namer, record) == before and named(namer, record) is not before


def test_a_place_where_another_file_is_mapped_now_has_the_new_name(
    tmp_path: Path, namer: StackNamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_SNAPSHOT_S", 0.0)
    source = "int {}(void) {{ return 7; }}"
    flags = ("-shared", "-fPIC", "-nostdlib", "-Wl,-z,noseparate-code")
    old = compile_c(tmp_path, "old.so", source.format("old_one"), *flags)
    new = compile_c(tmp_path, "new.so", source.format("new_one"), *flags)
    memory = Memory()
    base = memory.put(old)
    with open_elf(old) as file:
        address = base + file.image.function_offsets(["old_one"])["old_one"]
    record = parts(OWN, user=[address])
    assert reported(named(namer, record)) == ["old_one"]
    memory.put(new, base)
    namer.mapped(OWN)
    assert namer.to_report_again == [1]
    assert reported(named(namer, record)) == ["new_one"]


def test_what_was_unknown_is_looked_for_again_after_something_is_mapped(
    namer: StackNamer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stacks, "_SNAPSHOT_S", 0.0)
    library = compile_c(tmp_path, "late.so", "int late(void) { return 7; }", "-shared", "-fPIC", "-nostdlib")
    memory = Memory()
    base = memory.put(library)
    memory.libc.munmap(ctypes.c_void_p(base), ctypes.c_size_t(library.stat().st_size))
    record = parts(OWN, user=[base + 0x1000])
    assert reported(named(namer, record)) == ["[unknown]"]
    assert memory.put(library, base) == base
    namer.mapped(OWN)
    assert reported(named(namer, record)) != ["[unknown]"]


def test_frames_stacks_and_parts_are_bounded(
    running: Running, namer: StackNamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "MAX_FRAMES", 50)
    monkeypatch.setattr(stacks, "MAX_STACKS", 20)
    monkeypatch.setattr(stacks, "MAX_PENDING", 30)
    for number in range(1, 200):
        user = [running.at["main"] + number % 60, *(running.at["main"] + 1 + n for n in range(number % 7))]
        assert len(named(namer, parts(running.pid, user=user, stack=number)).frames) == len(user)
        process = namer._processes[running.pid]
        assert len(process.frames) <= 50 and len(process.stacks) <= 20
        assert (namer._frame_count, namer._stack_count) == (len(process.frames), len(process.stacks))
    for number in range(1, 100):
        namer.add(parts(running.pid, user=[1] * 100, stack=number)[:1])
    assert len(namer._pending) == 30
    assert namer.to_report_again == list(range(1, 70)) and counted(namer)["stack_parts_lost"] == 69


def test_fifty_thousand_frames_a_second_that_are_known(running: Running, namer: StackNamer) -> None:
    """A bound far below what it does (some 300,000), for this machine may be busy."""
    user = [running.at["main"] + 1 + n % 30 for n in range(50)]
    named(namer, parts(running.pid, user=user))
    records = [parts(running.pid, user=user, stack=number) for number in range(2, 402)]
    began = time.process_time()
    for record in records:
        namer.add(record)
    assert sum(len(stack.frames) for stack in namer.collect(60)) == 20_000
    assert 20_000 / (time.process_time() - began) > 50_000


# -- much at a time ----------------------------------------------------------------------------------------


def test_what_there_is_no_time_for_is_named_with_the_next_collection(
    running: Running, namer: StackNamer
) -> None:
    for stack in (1, 2, 3):
        namer.add(parts(running.pid, user=[running.at["axpy"]], stack=stack))
    assert namer.collect(limit_s=0) == []
    assert sorted(each.stack for each in namer.collect(60)) == [1, 2, 3]


def test_code_objects_of_many_stacks_are_read_together_and_processes_have_turns(
    running: Running, namer: StackNamer, pythons: Pythons
) -> None:
    pythons.names = {0x100000 + number: f"f{number}" for number in range(200)}
    for stack in range(1, 201):
        namer.add(parts(running.pid, python=[(0x100000 + stack - 1, 0)], stack=stack))
    namer.add(parts(os.getpid(), python=[(0x100000, 0)], stack=7))
    found = namer.collect(60)
    assert len(found) == 201 and all(each.frames[0].name.startswith("f") for each in found)
    assert [(tgid == running.pid, len(codes)) for tgid, codes in pythons.expected] == [
        *((True, 64), (False, 1)),
        *((True, 64), (True, 64), (True, 8)),
    ]
    assert [each.tgid for each in found].index(os.getpid()) == 64


def test_of_more_stacks_than_there_is_time_for_the_newest_are_named_too(
    running: Running, namer: StackNamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stack in range(1, 101):
        namer.add(parts(running.pid, user=[running.at["axpy"]], stack=stack))
    ticks = itertools.count()
    monkeypatch.setattr(stacks.time, "monotonic", lambda: next(ticks))
    found = [each.stack for each in namer.collect(40)]
    assert {1, 2, 99, 100} <= set(found) and len(found) < 64


def test_stacks_that_lack_names_take_no_more_time_than_there_is(
    running: Running, namer: StackNamer, pythons: Pythons, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stack in range(1, 101):
        namer.add(parts(running.pid, python=[(0x100000 + stack, 0)], stack=stack))
    namer.collect(60)
    pythons.names = {0x100000 + stack: "late" for stack in range(1, 101)}
    monkeypatch.setattr(stacks, "_LATER_S", (0.0, 0.0))
    time.sleep(0.25)
    assert namer.collect(limit_s=0) == []
    found = namer.collect(60)
    assert {each.frames[0].name for each in found} == {"late"} and len(found) == 100


def test_what_is_left_at_the_end_is_counted(running: Running, namer: StackNamer) -> None:
    for stack in (1, 2):
        namer.add(parts(running.pid, user=[running.at["axpy"]], stack=stack))
    assert namer.collect(limit_s=0, last=True) == []
    assert counted(namer) == {"stack_not_named": 2}
