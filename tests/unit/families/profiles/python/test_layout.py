"""Layouts of CPython: the tables and what interpreters publish, compared with the headers of each that is installed."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.processes.elf_files import open_elf
from otelgpu.symbols.cpython.image import (
    FREE_THREADED,
    STRIPPED,
    UNKNOWN_VERSION,
    Interpreter,
    find_interpreter,
    may_be_interpreter,
)
from otelgpu.symbols.cpython.layout import (
    COOKIE,
    NEWEST,
    OLDEST,
    PUBLISHED_BYTES,
    CPython,
    Version,
    code_head,
    listed,
    published,
    text_place,
)
from tests.rig.pythons import Python, pythons
from tests.unit.elf.elf_builders import compile_c

SOURCE = Path(__file__).parent / "data" / "cpython_offsets.c"


def image_of(python: Python) -> Path:
    """The file that holds the interpreter: the program, or the library that it needs."""
    path = (python.root or Path("/")) / str(python.path).lstrip("/")
    with open_elf(path) as file:
        library = next((name for name in file.image.needed if name.startswith("libpython3")), None)
    return path.parent.parent / "lib" / library if library else path


def found_in(path: Path) -> Interpreter | str | None:
    with open_elf(path) as file:
        return find_interpreter(file.image, path.name)


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_an_installed_interpreter_is_found_with_its_version(python: Python) -> None:
    found = found_in(image_of(python))
    assert isinstance(found, Interpreter)
    assert str(found.version) == python.version.partition("rc")[0]
    assert found.layout.minor == python.minor
    assert found.runtime and found.code_type
    assert sum(end - start for start, end in found.evaluators) > 20_000


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_a_layout_is_that_of_the_versions_headers(python: Python, tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None or not (python.include / "internal" / "pycore_runtime.h").exists():
        pytest.skip(f"needs gcc ({compiler}) and the internal headers of {python} in {python.include}")
    program = tmp_path / "offsets"
    others = (
        [f"-I{python.root}/usr/include", f"-I{python.root}/usr/include/x86_64-linux-gnu"]
        if python.root
        else []
    )
    include = [f"-I{python.include}", f"-I{python.include}/internal", *others]
    subprocess.run([compiler, "-w", *include, SOURCE, "-o", program], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    offsets = {name: int(value) for name, _, value in (line.partition("=") for line in said.split())}
    found = found_in(image_of(python))
    assert isinstance(found, Interpreter)
    assert {name: getattr(found.layout, name) for name in offsets} == offsets
    assert len(offsets) >= 22


@pytest.mark.parametrize("minor", range(OLDEST, 13))
def test_a_frame_is_read_to_its_last_wanted_member(minor: int) -> None:
    layout = listed(Version(3, minor, 0))
    assert layout is not None
    assert {9: 112, 10: 104, 11: 72, 12: 72}[minor] == layout.frame_bytes


@pytest.mark.parametrize(
    "version", [Version(2, 9, 0), Version(3, 8, 18), Version(3, 13, 0), Version(4, 9, 0)]
)
def test_no_layout_is_listed_for_other_versions(version: Version) -> None:
    assert listed(version) is None


def runtime(version: int, *, free_threaded: int = 0, offset: int = 8) -> bytes:
    words = (PUBLISHED_BYTES - 24) // 8
    return struct.pack(f"<8sQQ{words}Q", COOKIE, version, free_threaded, *[offset] * words)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        runtime(0x030E00F0)[:-1],
        runtime(0x030F00F0),  # a version to come
        runtime(0x030C00F0),
        runtime(0x040E00F0),
        runtime(0x030E00F0, free_threaded=1),
        runtime(0x030E00F0, offset=1 << 40),
        bytes(PUBLISHED_BYTES),
    ],
)
def test_what_publishes_no_known_layout_has_none(content: bytes) -> None:
    assert published(content) is None


def test_a_published_layout_is_taken_as_it_is() -> None:
    layout = published(runtime(0x030D02F0))
    assert layout is not None
    assert (layout.minor, layout.code, layout.interpreters) == (13, 8, 8)


@given(st.binary(max_size=PUBLISHED_BYTES + 8))
def test_any_runtime_is_read(content: bytes) -> None:
    published(content)
    published(COOKIE + b"\xf0\0\x0e\x03\0\0\0\0" + content)


# -- Files that are none -----------------------------------------------------------------------------------------


def compiled(folder: Path, name: str, source: str, *flags: str) -> Interpreter | str | None:
    return found_in(compile_c(folder, name, source, "-shared", "-fPIC", *flags))


def test_a_version_to_come_is_said_and_not_guessed(tmp_path: Path) -> None:
    source = 'struct { char cookie[8]; unsigned long rest[120]; } _PyRuntime = {"xdebugpy", {0x030f00f0}};'
    assert compiled(tmp_path, "libpython3.15.so", source) == UNKNOWN_VERSION


def test_a_free_threaded_one_is_said(tmp_path: Path) -> None:
    source = 'struct { char cookie[8]; unsigned long rest[120]; } _PyRuntime = {"xdebugpy", {0x030e00f0, 1}};'
    assert compiled(tmp_path, "libpython3.14t.so", source) == FREE_THREADED


def test_an_interpreter_without_a_version_is_said(tmp_path: Path) -> None:
    assert compiled(tmp_path, "libpython3.so.1", "char _PyRuntime[600] = {1};") == UNKNOWN_VERSION


def test_of_two_versions_in_a_file_that_of_its_name_counts(tmp_path: Path) -> None:
    source = (
        'char _PyRuntime[600] = {1}; const char *a(void) { return "3.10.4"; } '
        'const char *b(void) { return "3.9.17+"; } const char *c(void) { return "3.0.13"; }'
    )
    found = compiled(tmp_path, "libpython3.9.so", source)
    assert isinstance(found, Interpreter)
    assert str(found.version) == "3.9.17"
    assert compiled(tmp_path, "program", source) == UNKNOWN_VERSION


def test_a_lying_version_is_said(tmp_path: Path) -> None:
    source = "char _PyRuntime[600] = {1}; const unsigned long Py_Version = 0xffffffffffffffff;"
    assert compiled(tmp_path, "libpython3.11.so", source) == UNKNOWN_VERSION


def test_a_stripped_interpreter_is_said(tmp_path: Path) -> None:
    assert compiled(tmp_path, "libpython3.11.so", "int unrelated;", "-s") == STRIPPED


@pytest.mark.parametrize("name", ["libpython3.so", "_ssl.cpython-311-x86_64-linux-gnu.so", "libc.so.6"])
def test_other_libraries_hold_no_interpreter(tmp_path: Path, name: str) -> None:
    assert compiled(tmp_path, name, "int unrelated;", "-s") is None


def test_a_runtime_that_lies_outside_the_file_is_of_no_known_version(tmp_path: Path) -> None:
    assert compiled(tmp_path, "libpython3.14.so", "char _PyRuntime[600];") == UNKNOWN_VERSION  # in .bss


def test_parts_of_the_evaluator_are_found_by_name(tmp_path: Path) -> None:
    source = (
        "char _PyRuntime[600] = {1}; const unsigned long Py_Version = 0x030b07f0; "
        "int _PyEval_EvalFrameDefault(int x) { return x; } int _PyEval_EvalFrame(int x) { return x; } "
        'int part(int x) __asm__("_PyEval_EvalFrameDefault.cold"); int part(int x) { return x + 1; }'
    )
    found = compiled(tmp_path, "libpython3.11.so", source, "-O0")
    assert isinstance(found, Interpreter)
    assert len(found.evaluators) == 2
    assert not found.has_tail_calls


def test_instructions_that_are_functions_are_no_evaluators(tmp_path: Path) -> None:
    instructions = "".join(f"void _TAIL_CALL_{number}(void) {{}}" for number in range(200))
    source = (
        "char _PyRuntime[600] = {1}; const unsigned long Py_Version = 0x030c00f0; "
        "int _PyEval_EvalFrameDefault(int x) { return x; }" + instructions
    )
    found = compiled(tmp_path, "libpython3.12.so", source, "-O0")
    assert isinstance(found, Interpreter)
    assert len(found.evaluators) == 1
    assert found.has_tail_calls


@pytest.mark.parametrize(
    ("name", "may_be"),
    [("python3.12", True), ("libpython3.9.so.1.0", True), ("Python", True), ("libtorch.so", False)],
)
def test_candidates_are_reported_by_name(name: str, may_be: bool) -> None:
    assert may_be_interpreter(name) is may_be


# -- Objects -----------------------------------------------------------------------------------------------------


def layout_of(minor: int) -> CPython:
    layout = listed(Version(3, minor, 0))
    assert layout is not None
    return layout


def text_head(length: int, *, kind: int, compact: bool = True, ascii_only: bool = False) -> bytes:
    state = kind << 2 | compact << 5 | ascii_only << 6
    return struct.pack("<QQQQIIQ", 1, 0, length, 0, state, 0, 0)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (text_head(4, kind=1, ascii_only=True), "name"),
        (text_head(4, kind=1), "n\xe4me"),
        (text_head(2, kind=2), "\u65e5\u672c"),
        (text_head(1, kind=4), "\U0001f40d"),
    ],
)
def test_compact_texts_are_read(head: bytes, text: str) -> None:
    place = text_place(layout_of(11), head)
    assert place is not None
    encoding = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[place.letter_bytes]
    data = text.encode(encoding)
    assert place.letters * place.letter_bytes == len(data)
    assert place.offset == (48 if place.ascii else 72)
    assert place.decode(data) == text


@pytest.mark.parametrize(
    "head",
    [
        b"",
        text_head(1 << 40, kind=1),
        text_head(4, kind=3),
        text_head(4, kind=0),
        text_head(4, kind=1, compact=False),
        text_head(4, kind=2, ascii_only=True),
    ],
)
def test_what_is_no_compact_text_is_none(head: bytes) -> None:
    assert text_place(layout_of(11), head) is None


@given(st.sampled_from(range(OLDEST, 13)), st.binary(max_size=200))
def test_any_memory_may_be_taken_for_an_object(minor: int, data: bytes) -> None:
    layout = layout_of(minor)
    place = text_place(layout, data)
    assert place is None or isinstance(place.decode(data), str)
    head = code_head(layout, data)
    assert head is None or head.is_plausible() in (True, False)


def test_versions_in_between_are_all_known() -> None:
    assert NEWEST == 14
    assert [minor for minor in range(OLDEST, NEWEST + 1) if listed(Version(3, minor, 0))] == [9, 10, 11, 12]
