"""Stacks of programs without frame pointers are whole, from the leaf to ``_start``, or say why they are not."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from otelgpu.elf.eh_frame import find_frames
from otelgpu.elf.image import ElfImage
from otelgpu.families.profiles.discover.programs import attach_profiling, constants, wanted
from otelgpu.families.profiles.discover.unwind_tables import (
    DAMAGED,
    NO_TABLE,
    TABLES_FULL,
    UnwindTables,
    read_vdso,
)
from otelgpu.kernel.libbpf import detach_all
from otelgpu.kernel.loader import LoadedFamily, load_family, read_image
from otelgpu.kernel.perf_events import attach_clocks
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.processes.maps import executable_mappings
from tests.rig.unwind_rows import Cfa, table_of

SOURCE = Path(__file__).parent / "data" / "stacks.c"
FLAGS = ("-O2", "-fomit-frame-pointer", "-pthread", "-w")
FREQUENCY_HZ = 499
SAMPLES = 150
LONGEST_S = 5.0
SETTLED_S = 20.0
COMPLETE = "STACK_COMPLETE"
ENDS = (
    "STACK_TOO_DEEP",
    "STACK_NOT_READY",
    "STACK_NO_TABLE",
    "STACK_NO_ROW",
    "STACK_UNREADABLE",
    "STACK_UNMAPPED",
    "STACK_PYTHON_DAMAGED",
)
TRACING = Path("/sys/kernel/tracing")


Tables = tuple[LoadedFamily, UnwindTables]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without frame pointers, dynamically linked and position-independent."""
    return build(tmp_path_factory.mktemp("stacks") / "stacks")


def build(path: Path, *flags: str) -> Path:
    """The programs in stacks.c."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    assert compiler is not None, "the kernel fixture has looked for one"
    subprocess.run([compiler, *FLAGS, *flags, "-o", path, SOURCE, "-ldl"], check=True)
    return path


@dataclass
class Functions:
    """Those of the program's .text, by address in a process: stubs for calls into libraries have no names here."""

    starts: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    end: int = 0

    @classmethod
    def of(cls, tgid: int, path: Path) -> Functions:
        listed = subprocess.run(["nm", "-n", path], capture_output=True, text=True, check=True).stdout
        image = ElfImage(path.read_bytes())
        code = next(each for each in executable_mappings(tgid) if each.path == str(path))
        bias = code.start - (image.address_of(code.offset) or 0)
        text = image.section(".text")
        assert text is not None
        found = cls(end=text.address + len(text.content) + bias)
        for address, kind, name in (line.split() for line in listed.splitlines() if len(line.split()) == 3):
            if kind in "tT" and int(address, 16) >= text.address:
                found.starts.append(int(address, 16) + bias)
                found.names.append(name)
        return found

    def at(self, address: int) -> str:
        """ "" outside of the program."""
        place = bisect_right(self.starts, address) - 1
        return self.names[place] if place >= 0 and address < self.end else ""


@dataclass(kw_only=True)
class Seen:
    """What was sampled of a process. ``stacks``: (why it ended, program's functions leaf first) → samples."""

    stacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    kernel_frames: int = 0
    numbers: int = 0
    reported: int = 0
    unreported: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)

    @property
    def truncated(self) -> dict[str, int]:
        """What the BPF program counted, by reason."""
        reasons = {end.lower(): end for end in ENDS}
        return {reasons[name]: count for name, count in self.losses.items() if name in reasons}

    @property
    def ends(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (end, _), count in self.stacks.items():
            found[end] += count
        return found

    def besides(self, pattern: str) -> dict[tuple[str, str], int]:
        """Those that are not whole, or other stacks."""
        return {
            stack: count
            for stack, count in self.stacks.items()
            if stack[0] != COMPLETE or not re.fullmatch(pattern, stack[1])
        }

    def share(self, pattern: str) -> float:
        """Of the samples, how many are whole and under such a stack."""
        good = sum(
            count
            for (end, names), count in self.stacks.items()
            if end == COMPLETE and re.fullmatch(pattern, names)
        )
        return good / max(sum(self.stacks.values()), 1)


@contextmanager
def running(path: Path, word: str) -> Iterator[subprocess.Popen[str]]:
    """The program, ready."""
    with subprocess.Popen([path, word], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def profiling(kind: ProfileKind) -> Iterator[LoadedFamily]:
    """The family, loaded for one kind; nothing is attached."""
    settings = settings_of(kind)
    loaded = load_family(
        read_image("profile"),
        constants=constants(settings),
        ring_bytes=1 << 22,
        wanted=wanted(settings.kinds),
    )
    try:
        yield loaded
    finally:
        loaded.close()


def settings_of(kind: ProfileKind) -> ProfileSettings:
    return ProfileSettings(kinds=frozenset((kind,)), frequency_hz=FREQUENCY_HZ, off_cpu_least_us=500)


@pytest.fixture(scope="module")
def tables(kernel: None) -> Iterator[Tables]:
    """For CPU samples; files that several tests need are read once."""
    with profiling(ProfileKind.CPU) as loaded:
        unwind = UnwindTables(loaded)
        yield loaded, unwind
        unwind.close()


def observe(
    tables: Tables,
    path: Path,
    word: str,
    *,
    kind: ProfileKind = ProfileKind.CPU,
    see: bool = True,
) -> Seen:
    """Sample the program until there are some samples."""
    loaded, unwind = tables
    list(loaded.drain())
    lost, missed = Counter(loaded.counters()), Counter(unwind.counters)
    with running(path, word) as process:
        if see:
            unwind.see(process.pid)
            assert unwind.settle(SETTLED_S)
        functions = Functions.of(process.pid, path)
        sample(loaded, process.pid, kind)
    unwind.forget(process.pid)
    seen = collect(loaded, functions)
    seen.losses = Counter(loaded.counters()) - lost
    seen.counters = dict(Counter(unwind.counters) - missed)
    return seen


def sample(loaded: LoadedFamily, tgid: int, kind: ProfileKind = ProfileKind.CPU) -> None:
    """Until there are some."""
    before = loaded.counters()["submitted"]
    scope = loaded.map("scope_processes")
    scope.put(struct.pack("<I", tgid), b"\1")
    attach_profiling(loaded, settings_of(kind))
    until = time.monotonic() + LONGEST_S
    while loaded.counters()["submitted"] - before < SAMPLES and time.monotonic() < until:
        time.sleep(0.05)
    detach_all(loaded.links)
    loaded.links.clear()
    scope.delete(struct.pack("<I", tgid))


def collect(loaded: LoadedFamily, functions: Functions) -> Seen:
    """All that is in the ring."""
    seen = Seen()
    ends = {number: name for name, number in loaded.image.btf.enumerators("stack_end").items()}
    parts: dict[int, dict[int, np.void]] = {}
    samples: Counter[int] = Counter()
    for batch in loaded.drain():
        if batch.kind == "profile_stack":
            seen.reported += int((batch.records["part"] == 0).sum())
            for row in batch.records:
                parts.setdefault(int(row["stack"]), {})[int(row["part"])] = row
        else:
            samples.update(batch.records["stack"].tolist())
    seen.numbers = len(samples)
    for number, count in samples.items():
        if number not in parts:
            seen.unreported += count
            continue
        first = parts[number][0]
        words = np.concatenate([parts[number][part]["words"] for part in sorted(parts[number])])
        kernel, user = int(first["kernel"]), int(first["user"])
        addresses = words[kernel : kernel + user].tolist()
        # Return addresses are behind the call.
        names = [functions.at(address - (place > 0)) for place, address in enumerate(addresses)]
        seen.stacks[ends[int(first["end"])], " ".join(name for name in names if name)] += count
        seen.kernel_frames += kernel * count
    return seen


KNOWN = {
    "recursion": r"(spin )?(down ){1,21}main _start",
    "sorting": r"(compare )?sort_all main _start",
    "clock": r"report_time main _start",
    "calls": r"(_init )?calls_out main _start",
    "signals": r"((spin )?on_signal )?interrupted framed main _start",
    "aligned": r"(spin )?aligned main _start",
    "last": r"(spin )?forever enters_for_good main _start",
    "made": r"(spin )?through_made main _start",
    "threads": r"(spin )?(down ){1,4}work",
}


@pytest.mark.parametrize("word", KNOWN)
def test_every_stack_is_the_one_that_the_program_has(tables: Tables, program: Path, word: str) -> None:
    seen = observe(tables, program, word)
    assert sum(seen.stacks.values()) > 50, seen
    assert seen.unreported == 0
    if word == "threads":  # main() waits, or runs a little
        assert seen.share(KNOWN[word] + "|main _start") >= 0.98, seen.besides(KNOWN[word])
    else:
        assert seen.share(KNOWN[word] + "|(framed )?main _start|_start|") >= 0.98, seen.besides(KNOWN[word])
    assert seen.share(KNOWN[word]) > 0.9, seen.besides(KNOWN[word])
    # Each that is not whole says why, and is counted.
    assert seen.truncated == {end: count for end, count in seen.ends.items() if end != COMPLETE}, seen


def test_each_stack_has_a_number_and_is_reported_once(tables: Tables, program: Path) -> None:
    seen = observe(tables, program, "recursion")
    assert 1 < seen.numbers < sum(seen.stacks.values())  # spin() is a loop of some instructions
    assert seen.reported == seen.numbers


def test_handlers_of_signals_are_seen_above_what_they_interrupt(tables: Tables, program: Path) -> None:
    seen = observe(tables, program, "signals")
    assert seen.share(r"spin on_signal interrupted framed main _start") > 0.02, seen


def test_a_static_program_at_a_fixed_address_is_no_different(tables: Tables, tmp_path: Path) -> None:
    path = build(tmp_path / "static", "-static", "-no-pie")
    seen = observe(tables, path, "recursion")
    good = sum(count for (end, names), count in seen.stacks.items() if "main" in names and end == COMPLETE)
    assert good >= 0.99 * sum(seen.stacks.values()), seen


def test_a_stack_that_is_too_deep_says_so(tables: Tables, program: Path) -> None:
    seen = observe(tables, program, "deep")
    assert seen.ends["STACK_TOO_DEEP"] > 0.9 * sum(seen.ends.values()), seen
    assert seen.truncated["STACK_TOO_DEEP"] == seen.ends["STACK_TOO_DEEP"]


def test_a_thread_that_waits_is_seen_where_it_waits(program: Path) -> None:
    with profiling(ProfileKind.OFFCPU) as loaded:
        unwind = UnwindTables(loaded)
        seen = observe((loaded, unwind), program, "sleeps", kind=ProfileKind.OFFCPU)
        unwind.close()
    assert seen.share(r"sleeper main _start") > 0.9, seen
    assert seen.kernel_frames > sum(seen.stacks.values())


def test_before_the_tables_are_there_stacks_say_so(tables: Tables, program: Path) -> None:
    seen = observe(tables, program, "recursion", see=False)
    assert set(seen.ends) == {"STACK_NOT_READY"}
    assert seen.truncated == seen.ends


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@contextmanager
def probed(path: Path, function: str, *, kind: str) -> Iterator[None]:
    """By whoever's probe: its first instruction (kind "p"), or its return ("r")."""
    image = ElfImage(path.read_bytes())
    place = image.function_offsets([function])[function]
    events = TRACING / "uprobe_events"
    switch = TRACING / "events" / "uprobes" / "otelgpu_stacks" / "enable"
    _append(events, f"{kind}:uprobes/otelgpu_stacks {path}:{place:#x}\n")
    try:
        switch.write_text("1")
        yield
    finally:
        switch.write_text("0")
        _append(events, "-:uprobes/otelgpu_stacks\n")


needs_tracefs = pytest.mark.skipif(
    not (TRACING / "uprobe_events").exists(), reason="no uprobe_events in tracefs"
)


@needs_tracefs
def test_where_returns_are_probed_the_true_callers_are_seen(tables: Tables, program: Path) -> None:
    """Calls return to the kernel's trampoline."""
    with probed(program, "down", kind="r"):
        seen = observe(tables, program, "recursion")
    # The kernel may have taken a call off its list, and the thread still be in its trampoline.
    assert seen.share(r"(spin )?(down ){0,21}main _start") >= 0.95, seen
    # How much of the time that is depends on what a probe costs: a third to a half where this was measured.
    assert seen.share(r"spin (down ){21}main _start") > 0.1, seen


@needs_tracefs
def test_a_thread_in_a_copy_of_a_probed_instruction_is_at_the_instruction(
    tables: Tables, program: Path
) -> None:
    """The kernel has it executed elsewhere, where there is no file."""
    with probed(program, "stepped", kind="p"):
        seen = observe(tables, program, "steps")
    assert seen.share(r"(step(ped)? )?main _start") >= 0.98, seen.besides(r"(step(ped)? )?main _start")
    assert seen.share(r"stepped main _start") > 0.5, seen


def test_a_file_without_a_table_is_counted_and_reported_of(
    tables: Tables, program: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bare"
    subprocess.run(["objcopy", "-R", ".eh_frame", "-R", ".eh_frame_hdr", program, path], check=True)
    seen = observe(tables, path, "recursion")
    assert seen.counters == {NO_TABLE: 1}
    assert seen.ends["STACK_NO_TABLE"] > 0.9 * sum(seen.ends.values()), seen


def test_a_stack_through_code_without_a_table_is_not_called_whole(
    tables: Tables, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame pointer leads past it and past its caller, and from there on all is known."""
    source, library = tmp_path / "through.c", tmp_path / "through.so"
    source.write_text(
        'void through(void (*function)(void)) { function(); __asm__ volatile("" ::: "memory"); }'
    )
    compiler = shutil.which("gcc") or shutil.which("clang")
    assert compiler is not None
    without = ("-fno-asynchronous-unwind-tables", "-fno-exceptions", "-nostdlib")
    subprocess.run([compiler, *FLAGS, *without, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("STACKS_LIBRARY", str(library))
    seen = observe(tables, program, "library")
    assert seen.stacks["STACK_NO_TABLE", "spin main _start"] > 0.9 * sum(seen.stacks.values()), seen


def test_a_table_that_lies_ends_stacks_and_nothing_else(
    tables: Tables, program: Path, tmp_path: Path
) -> None:
    data = bytearray(program.read_bytes())
    section = ElfImage(bytes(data)).section(".eh_frame")
    assert section is not None
    at = bytes(data).index(bytes(section.content))
    for place in range(at + 24, at + len(section.content)):
        if data[place : place + 1] == b"\x0e":  # DW_CFA_def_cfa_offset
            data[place + 1] = 0xF8 & (data[place + 1] + 64) & 0x7F
    path = tmp_path / "lies"
    path.write_bytes(data)
    path.chmod(0o755)
    seen = observe(tables, path, "recursion")
    assert sum(seen.stacks.values()) > 50
    assert seen.share(KNOWN["recursion"]) < 0.5


def test_instructions_that_no_unwinder_knows_are_counted(
    tables: Tables, program: Path, tmp_path: Path
) -> None:
    data = bytearray(program.read_bytes())
    section = ElfImage(bytes(data)).section(".eh_frame")
    assert section is not None
    at = bytes(data).index(bytes(section.content))
    for place in range(at + 24, at + len(section.content)):
        if data[place : place + 1] == b"\x0e":
            data[place] = 0x3E
    path = tmp_path / "unknown"
    path.write_bytes(data)
    path.chmod(0o755)
    seen = observe(tables, path, "recursion")
    assert seen.counters[DAMAGED] > 0
    assert seen.ends["STACK_NO_ROW"] > 0.9 * sum(seen.ends.values()), seen


def test_where_there_is_no_room_for_tables_that_is_counted(program: Path) -> None:
    with profiling(ProfileKind.CPU) as loaded:
        unwind = UnwindTables(loaded, max_rows=1024)
        seen = observe((loaded, unwind), program, "recursion")
        unwind.close()
    assert seen.counters[TABLES_FULL] >= 1
    # The program's own is small, and has room: what is not whole ends in libc, which has none.
    assert seen.ends["STACK_NO_TABLE"] + seen.ends[COMPLETE] >= 0.98 * sum(seen.ends.values()), seen


def opened_for(stack: ExitStack, loaded: LoadedFamily, tgid: int, max_rows: int = 8 << 20) -> UnwindTables:
    """With the tables of a process, to which each process is an owner of its own."""
    unwind = UnwindTables(loaded, max_rows=max_rows)
    stack.callback(unwind.close)
    unwind._owners.of = lambda tgid: (f"/{tgid}", 0)  # type: ignore[method-assign]
    unwind.see(tgid)
    assert unwind.settle(SETTLED_S)
    return unwind


def test_who_has_many_tables_leaves_room_for_those_of_others(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for as much as the first has, and not a row more."""
    other = Path(shutil.copy(program, tmp_path / "other"))
    with ExitStack() as stack:
        loaded = stack.enter_context(profiling(ProfileKind.CPU))
        first, second = (stack.enter_context(running(path, "idle")) for path in (program, other))
        made = [opened_for(stack, loaded, first.pid)]
        made.append(opened_for(stack, loaded, first.pid, max_rows=made[0].rows))
        assert [bool(unwind.counters.get(TABLES_FULL)) for unwind in made] == [False, True]
        made[1].see(second.pid)
        assert made[1].settle(SETTLED_S)
    tables = {os.stat(path).st_ino: path for path in (program, other)}
    assert {tables[key[1]] for key, file in made[1]._files.items() if file.number and key[1] in tables} == {
        program,
        other,
    }


def test_tables_are_shared_between_processes(program: Path) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(running(program, "idle")) for _ in range(2))
        loaded = stack.enter_context(profiling(ProfileKind.CPU))
        unwind = UnwindTables(loaded)
        stack.callback(unwind.close)
        unwind.see(first.pid)
        assert unwind.settle(SETTLED_S)
        rows = unwind.rows
        unwind.see(second.pid)
        assert unwind.settle(SETTLED_S)
        assert unwind.rows == rows > 1000
        assert len(loaded.map("unwind_processes").list_keys()) == 2
        for process in (first, second):
            unwind.forget(process.pid)
        assert unwind.settle(SETTLED_S)
        assert loaded.map("unwind_processes").list_keys() == []


def test_processes_that_come_and_go_leave_nothing(program: Path) -> None:
    with profiling(ProfileKind.CPU) as loaded:
        unwind = UnwindTables(loaded)
        for _ in range(5):
            with running(program, "idle") as process:
                unwind.see(process.pid)
                unwind.mapped(process.pid)
            unwind.mapped(process.pid)
            unwind.forget(process.pid)
        unwind.see(1 << 22)
        assert unwind.settle(SETTLED_S)
        assert loaded.map("unwind_processes").list_keys() == []
        unwind.close()
        unwind.close()
        assert attach_clocks(loaded, FREQUENCY_HZ) >= 1


def test_the_vdso_has_a_table() -> None:
    descriptor, image = read_vdso()
    table = table_of(descriptor, find_frames(image))
    os.close(descriptor)
    assert image.loads
    assert (table.rows["rule"] & 15 == Cfa.RSP).sum() > 5


def test_the_table_of_a_file_is_there_before_a_process_has_it(program: Path, tmp_path: Path) -> None:
    with profiling(ProfileKind.CPU) as loaded:
        unwind = UnwindTables(loaded)
        try:
            unwind.prepare(program)
            unwind.prepare(tmp_path / "missing")
            assert unwind.settle(SETTLED_S)
            rows = unwind.rows
            assert rows > 0
            unwind.prepare(program)
            assert unwind.settle(SETTLED_S) and unwind.rows == rows
            with running(program, "idle") as process:
                unwind.see(process.pid)
                assert unwind.settle(SETTLED_S)
                others = unwind.rows - rows
            assert others > 1000  # those of the C library; its own was not made again
            assert len(loaded.map("unwind_files").list_keys()) >= 2
        finally:
            unwind.close()
