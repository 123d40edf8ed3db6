"""Interpreters in real processes, and their code objects read from real memory, without a kernel's map."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from otelgpu.elf.btf import Btf
from otelgpu.families.profiles.discover import python_code
from otelgpu.families.profiles.discover.interpreters import TABLE_FULL, UNREADABLE, Interpreters
from otelgpu.families.profiles.discover.python_code import IMPLAUSIBLE, LINES_CUT
from otelgpu.families.profiles.discover.python_code import UNREADABLE as CODE_UNREADABLE
from otelgpu.kernel.loader import LoadedFamily, read_image
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame
from otelgpu.processes.memory import OpenMemory
from otelgpu.symbols.cpython.layout import CPython, Frames
from tests.unit.families.profiles.discover.tables import FakeTable

ME = os.getpid()


@pytest.fixture(scope="module")
def btf() -> Btf:
    return read_image("profile").btf


@pytest.fixture
def table() -> FakeTable:
    return FakeTable()


@pytest.fixture
def interpreters(btf: Btf, table: FakeTable) -> Iterator[Interpreters]:
    made = Interpreters(loaded(btf, table))
    yield made
    made.close()


def loaded(btf: Btf, table: FakeTable) -> LoadedFamily:
    return cast(LoadedFamily, SimpleNamespace(map=lambda name: table, image=SimpleNamespace(btf=btf)))


def entry(btf: Btf, table: FakeTable, tgid: int = ME) -> np.void:
    return cast(
        np.void, np.frombuffer(table.entries[struct.pack("<I", tgid)], btf.dtype("python_process"))[0]
    )


def code_of(function: Any) -> CodeType:
    return cast(CodeType, function.__code__)


# -- Processes -----------------------------------------------------------------------------------------------------


def test_this_process_is_an_interpreter(interpreters: Interpreters, btf: Btf, table: FakeTable) -> None:
    assert interpreters.see(ME)
    assert interpreters.version(ME) == ".".join(map(str, sys.version_info[:3]))
    found = entry(btf, table)
    assert int(found["runtime"]) == ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    assert int(found["frames"]) == (Frames.ENTRIES if sys.version_info[1] == 11 else Frames.SHIMS)
    function = ctypes.cast(ctypes.pythonapi._PyEval_EvalFrameDefault, ctypes.c_void_p).value
    assert function in [start for start, _ in interpreters.evaluators(ME)]


def test_every_member_of_an_entry_is_filled_from_the_layout(btf: Btf) -> None:
    names = set(btf.dtype("python_process").names or ()) - {"runtime", "reserved"}
    layouts = set(CPython.__struct_fields__) | {"frame_bytes"}
    assert names <= layouts


def test_the_map_is_reported_once(interpreters: Interpreters, table: FakeTable) -> None:
    assert interpreters.see(ME)
    table.entries.clear()
    interpreters.mapped(ME)
    assert interpreters.see(ME)
    assert not table.entries


def test_what_is_forgotten_is_taken_from_the_map(interpreters: Interpreters, table: FakeTable) -> None:
    interpreters.see(ME)
    interpreters.forget(ME)
    assert not table.entries
    assert interpreters.version(ME) == ""
    assert interpreters.see(ME)


def test_other_programs_are_none(interpreters: Interpreters, table: FakeTable) -> None:
    with subprocess.Popen(["/bin/sleep", "100"]) as process:
        assert not interpreters.see(process.pid)
        assert interpreters.evaluators(process.pid) == ()
        assert interpreters.code(process.pid, id(code_of(loaded)), 0) is None
        process.kill()
    assert not table.entries
    assert +interpreters.counters == {CODE_UNREADABLE: 1}


def test_a_process_that_is_gone_is_none(interpreters: Interpreters) -> None:
    assert not interpreters.see(1 << 22)
    assert not +interpreters.counters


def test_a_full_map_is_counted(btf: Btf) -> None:
    full = Interpreters(loaded(btf, FakeTable(0)))
    assert not full.see(ME)
    assert full.counters[TABLE_FULL] == 1


def test_a_damaged_file_is_counted(interpreters: Interpreters, btf: Btf, tmp_path: Path) -> None:
    (tmp_path / "python3.12").write_bytes(b"\x7fELF damaged")
    status = os.stat(tmp_path / "python3.12")
    process = tmp_path / "77"
    process.mkdir()
    (process / "maps").write_text(
        f"1000-2000 r-xp 00000000 00:00 {status.st_ino} {tmp_path}/python3.12\n"
        f"3000-4000 r-xp 00000000 00:00 {status.st_ino + 1} /nowhere/libpython3.9.so\n"
    )
    (process / "root").symlink_to("/")
    made = Interpreters(loaded(btf, FakeTable()), proc=tmp_path)
    assert not made.see(77)
    assert made.counters[UNREADABLE] == 2


# -- Code ----------------------------------------------------------------------------------------------------------


class Holder:
    @staticmethod
    def method() -> None:
        def inner() -> None:
            raise AssertionError

        inner()


def named(interpreters: Interpreters, code: CodeType, instruction: int = 1 << 16) -> Frame | None:
    return interpreters.code(ME, id(code), instruction)


def test_a_function_is_named_with_the_line_of_its_instruction(interpreters: Interpreters) -> None:
    code = code_of(Holder.method)
    for start, end, line in code.co_lines():
        for offset in range(start, end, 2):
            expected = Frame(type=FrameType.PYTHON, name="Holder.method", file=__file__, line=line or 0)
            assert line is None or named(interpreters, code, offset) == expected


def test_a_function_that_has_just_been_entered_is_on_its_first_line(interpreters: Interpreters) -> None:
    code = code_of(Holder.method)
    for before in (0xFFFFFFFE, 0xFFFFFFFF):
        frame = named(interpreters, code, before)
        assert frame is not None
        assert frame.line == code.co_firstlineno


@pytest.mark.parametrize("name", ["ascii", "h\xe4nde", "\u65e5\u672c\u8a9e", "\U00010400x"])
def test_names_of_all_widths_are_read(interpreters: Interpreters, name: str) -> None:
    space: dict[str, Any] = {}
    exec(compile(f"def {name}(): pass", f"/{name}.py", "exec"), space)
    frame = named(interpreters, code_of(space[name]))
    assert frame == Frame(type=FrameType.PYTHON, name=name, file=f"/{name}.py", line=1)


def test_bytes_of_a_file_name_that_are_no_text_are_replaced(interpreters: Interpreters) -> None:
    code = compile("x = 1", os.fsdecode(b"/\xff.py"), "exec")
    frame = named(interpreters, code)
    assert frame is not None
    assert frame.file == "/\ufffd.py"


@pytest.mark.parametrize("thing", [Holder, "text" * 100, [1, 2, 3], 3.5, bytes(500), {}])
def test_other_objects_are_no_code(interpreters: Interpreters, thing: object) -> None:
    assert interpreters.code(ME, id(thing), 0) is None
    assert interpreters.counters[IMPLAUSIBLE] + interpreters.counters[CODE_UNREADABLE] == 1


@pytest.mark.parametrize("address", [0, 4096, 1 << 47, (1 << 64) - 8])
def test_addresses_of_no_memory_are_counted(interpreters: Interpreters, address: int) -> None:
    assert interpreters.code(ME, address, 0) is None
    assert interpreters.counters[IMPLAUSIBLE] + interpreters.counters[CODE_UNREADABLE] == 1


def test_equal_frames_are_one_object(interpreters: Interpreters) -> None:
    code = code_of(Holder.method)
    assert named(interpreters, code) is named(interpreters, code)


def test_the_table_of_lines_is_read_up_to_a_bound(
    interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_code, "_MAX_TABLE_BYTES", 8)
    code = compile("\n".join(f"x = {number}" for number in range(100)), "long", "exec")
    assert named(interpreters, code, 2) is not None
    assert interpreters.counters[LINES_CUT] == 1


def test_codes_that_were_used_least_lately_are_dropped(
    interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_code, "_MAX_CODES", 10)
    codes = [compile("x", f"file{number}", "exec") for number in range(30)]
    for code in codes:
        assert named(interpreters, code) is not None
    assert len(interpreters._names._codes) == 10


def test_descriptors_of_memories_are_bounded_and_closed(
    interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_code, "_MAX_MEMORIES", 2)
    before = len(os.listdir("/proc/self/fd"))
    children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(4)]
    try:
        for child in children:
            interpreters._names._opened(child.pid)
        assert len(interpreters._names._memories) == 2
        interpreters.close()
        pipes = len(children)
        assert len(os.listdir("/proc/self/fd")) == before + pipes
    finally:
        for child in children:
            child.communicate(b"\n")


def test_code_objects_that_are_expected_are_read_with_three_questions(
    interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [compile("x", f"file{number}", "exec") for number in range(200)]
    asked = []
    read = OpenMemory.read
    monkeypatch.setattr(OpenMemory, "read", lambda self, *ranges: asked.append(ranges) or read(self, *ranges))
    nothing = [0, 4096, id(Holder)]
    interpreters.expect(ME, [*nothing, *map(id, codes)])
    assert len(asked) == 3
    frames = [interpreters.code(ME, id(code), 0) for code in codes]
    assert [frame.file if frame else "" for frame in frames] == [code.co_filename for code in codes]
    assert [interpreters.code(ME, address, 0) for address in nothing] == [None] * 3
    assert len(asked) == 3
    interpreters.expect(ME, map(id, codes))  # known by now: whether they are still there
    assert len(asked) == 4


def test_what_is_expected_of_long_tables_is_asked_in_parts(
    interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_code, "_MAX_QUESTION_BYTES", 4096)
    codes = [compile("x\n" * 2000, f"file{number}", "exec") for number in range(5)]
    interpreters.expect(ME, map(id, codes))
    frames = [interpreters.code(ME, id(code), 0) for code in codes]
    assert [frame.file if frame else "" for frame in frames] == [code.co_filename for code in codes]


# -- Processes that end --------------------------------------------------------------------------------------------

SERVICE = """
import sys
def function(): pass
def other(): pass
print(id(function.__code__), id(other.__code__), flush=True)
sys.stdin.read(1)
"""


def test_what_was_read_of_a_process_names_its_last_stacks(interpreters: Interpreters) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        known, other = map(int, process.stdout.readline().split())
        before = interpreters.code(process.pid, known, 2)
        evaluators = interpreters.evaluators(process.pid)
        process.kill()
    assert before is not None
    assert interpreters.code(process.pid, known, 2) == before
    interpreters.forget(process.pid)
    assert interpreters.code(process.pid, known, 2) == before
    assert interpreters.evaluators(process.pid) == evaluators
    assert interpreters.code(process.pid, other, 2) is None
    assert interpreters.counters[CODE_UNREADABLE] == 1


def test_another_program_of_the_same_number_has_names_of_its_own(interpreters: Interpreters) -> None:
    script = SERVICE + "import os; os.execv('/bin/sleep', ['sleep', '100'])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        code = int(process.stdout.readline().split()[0])
        assert interpreters.code(process.pid, code, 2) is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()[:5]:
            pass
        interpreters.forget(process.pid)
        assert not interpreters.see(process.pid)
        assert interpreters.code(process.pid, code, 2) is None
        process.kill()


def test_memory_that_was_opened_before_an_exec_is_opened_again(interpreters: Interpreters) -> None:
    again = f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {SERVICE!r}])"
    script = "import sys; print('x', flush=True); sys.stdin.read(1); " + again
    command = [sys.executable, "-u", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        interpreters._names._opened(process.pid)
        process.stdin.write(b"x")
        process.stdin.flush()
        code = int(process.stdout.readline().split()[0])
        frame = interpreters.code(process.pid, code, 2)
        process.kill()
    assert frame is not None
    assert frame.name == "function"


def test_processes_that_have_ended_are_known_for_a_while_only(
    interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otelgpu.families.profiles.discover.interpreters.MAX_ENDED", 0)
    assert named(interpreters, code_of(Holder.method)) is not None
    interpreters.forget(ME)
    assert not interpreters._names._codes
    assert not interpreters._ended
