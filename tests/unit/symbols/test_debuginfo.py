"""Symbols that were stripped from a file and are elsewhere: in .gnu_debugdata, in /usr/lib/debug."""

from __future__ import annotations

import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.processes.elf_files import find_symbols
from otelgpu.symbols import debuginfo
from otelgpu.symbols.debuginfo import embedded_symbols
from otelgpu.symbols.functions import FunctionTable
from tests.unit.elf.elf_builders import compile_c

SOURCE = """
    __attribute__((noinline)) static int hidden_helper(int x) { return x * 3; }
    int main(int argc, char **argv) { return hidden_helper(argc); }
"""


def run(*command: str | Path) -> None:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed")
    subprocess.run(command, check=True)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return compile_c(tmp_path, "program", SOURCE, "-O0", "-Wl,--build-id=sha1")


def offset_in(program: Path) -> int:
    return ElfImage(program.read_bytes()).function_offsets(["hidden_helper"])["hidden_helper"]


def debug_file(program: Path) -> Path:
    path = program.with_suffix(".debug")
    run("objcopy", "--only-keep-debug", program, path)
    return path


def embed(program: Path, content: bytes) -> ElfImage:
    """The stripped program with ``content`` as its mini-debuginfo."""
    stripped, data = program.with_suffix(".mini"), program.with_suffix(".data")
    data.write_bytes(content)
    run("strip", "-o", stripped, program)
    run("objcopy", "--add-section", f".gnu_debugdata={data}", stripped)
    return ElfImage(stripped.read_bytes())


def test_mini_debuginfo_names_what_was_stripped(program: Path) -> None:
    table = FunctionTable(embed(program, lzma.compress(debug_file(program).read_bytes())), "program")
    assert table.name_at(offset_in(program) + 3) == ("hidden_helper", True)
    assert table.counters == {}


def test_what_was_unpacked_is_counted_and_given_back_and_unpacked_again(program: Path) -> None:
    content = debug_file(program).read_bytes()
    table = FunctionTable(embed(program, lzma.compress(content)), "program")
    for _ in range(2):
        assert table.held_bytes == 0
        assert table.name_at(offset_in(program)) == ("hidden_helper", True)
        assert len(content) < table.held_bytes < len(content) + 4096
        table.forget()
    assert table.held_bytes == 0 and table.counters == {}


def test_without_it_there_is_none(program: Path) -> None:
    assert embedded_symbols(ElfImage(program.read_bytes())) is None


@pytest.mark.parametrize("content", [b"not xz", lzma.compress(b"not ELF"), lzma.compress(bytes(1000))[:-20]])
def test_damaged_mini_debuginfo_is_counted(program: Path, content: bytes) -> None:
    image = embed(program, content)
    with pytest.raises(ElfError):
        embedded_symbols(image)
    table = FunctionTable(image, "program")
    assert table.name_at(offset_in(program)) == (f"program+{offset_in(program):#x}", False)
    assert table.counters == {"debuginfo_damaged": 1}


@pytest.mark.slow
def test_a_bomb_is_refused(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debuginfo, "MAX_BYTES", 1 << 20)
    with pytest.raises(ElfError, match="too large"):
        embedded_symbols(embed(program, lzma.compress(bytes(64 << 20))))


def test_a_file_of_symbols_is_found_by_build_id(program: Path, tmp_path: Path) -> None:
    whole = ElfImage(program.read_bytes())
    assert whole.build_id is not None
    place = tmp_path / "usr/lib/debug/.build-id" / whole.build_id[:2] / f"{whole.build_id[2:]}.debug"
    place.parent.mkdir(parents=True)
    debug_file(program).rename(place)
    found = find_symbols(whole.build_id, [tmp_path / "nowhere", tmp_path])
    assert found is not None

    stripped = program.with_suffix(".stripped")
    run("strip", "-o", stripped, program)
    image = ElfImage(stripped.read_bytes())
    table = FunctionTable(image, "program", find_symbols=lambda: found)
    assert table.name_at(offset_in(program)) == ("hidden_helper", True)
    assert table.place_at(offset_in(program) + 4) == ("hidden_helper+0x4", True)


def test_symbols_of_another_build_do_not_count(program: Path, tmp_path: Path) -> None:
    other = "ab" * 20
    place = tmp_path / "usr/lib/debug/.build-id" / other[:2] / f"{other[2:]}.debug"
    place.parent.mkdir(parents=True)
    debug_file(program).rename(place)
    assert find_symbols(other, [tmp_path]) is None


@pytest.mark.parametrize("build_id", ["", "ab", "../../../../etc", "AB" * 20])
def test_odd_build_ids_open_nothing(build_id: str, tmp_path: Path) -> None:
    assert find_symbols(build_id, [tmp_path]) is None


def test_a_return_address_belongs_to_the_call_before_it(program: Path) -> None:
    image = ElfImage(program.read_bytes())
    symbol = image.symbol_at(offset_in(program))
    assert symbol is not None
    end = symbol.file_offset + symbol.size_bytes
    assert FunctionTable(image, "program").place_at(end) == (f"hidden_helper+{symbol.size_bytes:#x}", True)
