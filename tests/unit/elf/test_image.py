"""What an ELF image answers: offsets by name, functions by offset, what the loader will read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from otelgpu.elf.image import ElfError, ElfImage
from tests.unit.elf.elf_builders import PROGRAM, compile_c, compile_library, compiler, synthetic_elf


def image(path: Path) -> ElfImage:
    return ElfImage(path.read_bytes())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def stripped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("stripped"), "libsample.so.1", "-s")


def offsets_by_elftools(path: Path) -> dict[str, set[int]]:
    """Every defined function of the file, by another program's reading."""
    found: dict[str, set[int]] = {}
    with path.open("rb") as file:
        elf = ELFFile(file)
        loads = [segment.header for segment in elf.iter_segments("PT_LOAD")]
        for section in elf.iter_sections():
            if not isinstance(section, SymbolTableSection):
                continue
            for symbol in section.iter_symbols():
                if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF":
                    value = symbol["st_value"]
                    places = {
                        value - load.p_vaddr + load.p_offset
                        for load in loads
                        if load.p_vaddr <= value < load.p_vaddr + load.p_filesz
                    }
                    found.setdefault(symbol.name.partition("@")[0], set()).update(places)
    return found


def test_exported_and_local_functions_have_offsets(library: Path) -> None:
    offsets = image(library).function_offsets({"exported", "hidden_helper", "weak_one"})
    assert offsets.keys() == {"exported", "hidden_helper", "weak_one"}
    truth = offsets_by_elftools(library)
    assert all({offset} == truth[name] for name, offset in offsets.items())


def test_what_is_no_defined_function_has_no_offset(library: Path) -> None:
    absent = {"not_a_function", "undefined_elsewhere", "indirect", "no_such_name", "", "export", "xported"}
    assert image(library).function_offsets(absent) == {}


def test_of_several_versions_the_default_counts(library: Path, stripped: Path) -> None:
    whole = image(library)
    offset = whole.function_offsets(["versioned"])["versioned"]
    assert offset == whole.function_offsets(["versioned_new"])["versioned_new"]
    assert image(stripped).function_offsets(["versioned"]) == {"versioned": offset}


def test_a_name_that_ends_another_name_is_reported_apart() -> None:
    # The linker stores a name that is the end of another one only once.
    elf = ElfImage(synthetic_elf(3, size=4, names=("xcudaMalloc", "cudaMallocAsync", "cudaMalloc")))
    assert elf.function_offsets(["cudaMalloc"]) == {"cudaMalloc": 8}


@pytest.mark.parametrize(
    "name", ["a", "sevenby", "eight_by", "nine_byte", "sixteen_bytes_xx", "_Z" + "9" * 3000]
)
def test_names_of_any_length_are_found(name: str) -> None:
    others = (name[:-1] + "!", name + "x", "x" + name)
    elf = ElfImage(synthetic_elf(4, size=4, names=(*others, name)))
    assert elf.function_offsets([name]) == {name: 12}


def test_more_symbols_than_are_matched_at_a_time_are_all_searched() -> None:
    names = tuple(f"function_{number}" for number in range(300_000))
    elf = ElfImage(synthetic_elf(len(names), size=4, names=names))
    assert elf.function_offsets(["function_299999", "function_0"]) == {
        "function_0": 0,
        "function_299999": 1199996,
    }


def test_a_function_holds_its_first_and_last_byte(library: Path) -> None:
    elf = image(library)
    start = elf.function_offsets(["exported"])["exported"]
    symbol = elf.symbol_at(start)
    assert symbol is not None and symbol.name == "exported" and symbol.file_offset == start
    assert elf.symbol_at(start + symbol.size_bytes - 1) == symbol
    assert elf.symbol_at(start + symbol.size_bytes) != symbol


def test_local_functions_are_found_by_offset_until_stripped(library: Path, stripped: Path) -> None:
    elf = image(library)
    offset = elf.function_offsets(["hidden_helper"])["hidden_helper"]
    symbol = elf.symbol_at(offset)
    assert symbol is not None and symbol.name == "hidden_helper" and symbol.is_local
    assert image(stripped).symbol_at(offset) is None


def test_a_symbol_without_size_reaches_to_the_next(library: Path) -> None:
    elf = image(library)
    start = elf.function_offsets(["sizeless"])["sizeless"]
    inside = [elf.symbol_at(start + distance) for distance in range(5)]
    assert {symbol.name if symbol else None for symbol in inside} == {"sizeless"}
    following = elf.function_offsets(["after_sizeless"])["after_sizeless"]
    found = elf.symbol_at(following)
    assert found is not None and found.name == "after_sizeless"


def test_offsets_outside_of_code_have_no_function(library: Path) -> None:
    elf = image(library)
    assert [elf.symbol_at(offset) for offset in (-1, 0, len(library.read_bytes()), 1 << 70)] == [None] * 4


def test_versions_are_no_part_of_a_name(library: Path) -> None:
    elf = image(library)
    symbol = elf.symbol_at(elf.function_offsets(["versioned"])["versioned"])
    assert symbol is not None and symbol.name in ("versioned", "versioned_new")


def test_what_the_loader_reads(tmp_path: Path) -> None:
    elf = image(
        compile_library(tmp_path, "libdeps.so.2", "-Wl,--no-as-needed", "-lm", "-Wl,-rpath,$ORIGIN/../x:/y")
    )
    assert elf.soname == "libdeps.so.2"
    assert elf.needed[0] == "libm.so.6"
    assert (elf.rpath or elf.runpath) == ("$ORIGIN/../x", "/y")
    assert elf.interpreter is None and elf.is_dynamic and not elf.is_stripped and not elf.is_go


def test_rpath_and_runpath_are_reported_apart(tmp_path: Path) -> None:
    old = image(compile_library(tmp_path, "libold.so", "-Wl,--disable-new-dtags,-rpath,/old"))
    new = image(compile_library(tmp_path, "libnew.so", "-Wl,--enable-new-dtags,-rpath,/new"))
    assert (old.rpath, old.runpath) == (("/old",), ())
    assert (new.rpath, new.runpath) == ((), ("/new",))


def test_the_build_id_is_the_linkers(library: Path) -> None:
    notes = subprocess.run(["readelf", "-n", str(library)], capture_output=True, text=True)
    found = re.search(r"Build ID: ([0-9a-f]+)", notes.stdout)
    assert found and image(library).build_id == found.group(1)


@pytest.mark.parametrize(
    ("options", "dynamic"),
    [((), True), (("-static",), False), (("-static-pie",), False), (("-no-pie",), True)],
)
def test_static_programs_are_reported_from_dynamic_ones(
    tmp_path: Path, options: tuple[str, ...], dynamic: bool
) -> None:
    elf = image(compile_c(tmp_path, "program", PROGRAM, *options))
    assert elf.is_dynamic is dynamic
    assert (elf.interpreter is not None) is dynamic
    assert "main" in elf.function_offsets(["main"])


def test_a_go_program_is_known_for_one() -> None:
    assert image(Path(compiler("go")).resolve()).is_go  # the compiler is one itself


def test_exports_are_found_without_section_headers(stripped: Path) -> None:
    content = bytearray(stripped.read_bytes())
    content[0x28:0x30] = bytes(8)  # e_shoff
    content[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
    cut, whole = ElfImage(content), image(stripped)
    names = ["exported", "calls_out", "sizeless"]
    assert cut.function_offsets(names) == whole.function_offsets(names)
    assert cut.needed == whole.needed and cut.build_id == whole.build_id
    symbol = cut.symbol_at(cut.function_offsets(["exported"])["exported"])
    assert symbol is not None and symbol.name == "exported"


@pytest.mark.parametrize("subject", [sys.executable, "/lib/x86_64-linux-gnu/libc.so.6", "/bin/sh"])
def test_real_files_read_as_pyelftools_reads_them(subject: str) -> None:
    path = Path(subject).resolve()
    if not path.exists():
        pytest.skip(f"{subject} is not on this system")
    elf, truth = image(path), offsets_by_elftools(path)
    offsets = elf.function_offsets(truth)
    assert offsets.keys() == {name for name, places in truth.items() if places and name}
    assert all(offset in truth[name] for name, offset in offsets.items())
    with path.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        assert elf.needed == tuple(tag.needed for tag in dynamic.iter_tags("DT_NEEDED"))
    for name, offset in list(offsets.items())[:500]:
        symbol = elf.symbol_at(offset)
        assert symbol is not None, name
        assert symbol.file_offset <= offset


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"#!/bin/sh\n",
        b"\x7fELF",
        b"\x7fELF\x01\x01\x01" + bytes(200),  # 32 bits
        b"\x7fELF\x02\x02\x01" + bytes(200),  # big-endian
        b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xf3\0" + bytes(200),  # RISC-V
    ],
    ids=["empty", "script", "magic only", "32-bit", "big-endian", "other machine"],
)
def test_what_is_not_supported_is_refused(content: bytes) -> None:
    with pytest.raises(ElfError):
        ElfImage(content)


def test_the_real_libcudart_gives_its_exports() -> None:
    runtime = pytest.importorskip("nvidia.cuda_runtime", reason="nvidia-cuda-runtime-cu12 is not installed")
    path = Path(next(iter(runtime.__path__))) / "lib" / "libcudart.so.12"
    if not path.exists():
        pytest.skip("nvidia-cuda-runtime-cu12 is not installed")
    names = {
        *("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaGraphLaunch", "cudaMalloc", "cudaFree"),
        *("cudaMemcpy", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize"),
        *("cudaEventSynchronize", "cudaLaunchKernel_ptsz", "cudaMemcpyAsync_ptsz"),
    }
    elf = image(path)
    offsets = elf.function_offsets(names)
    assert offsets.keys() == names
    assert len(set(offsets.values())) == len(names)
    assert elf.soname == "libcudart.so.12" and elf.build_id and elf.machine in ("x86-64", "aarch64")
    symbol = elf.symbol_at(offsets["cudaLaunchKernel"] + 1)
    assert symbol is not None and symbol.name == "cudaLaunchKernel"


CONSTANTS = """
    const char fixed[] = "a constant";
    char changeable[] = "a variable";
    int function(int x) { return x + 1; }
"""


def test_text_of_a_segment_that_may_change_is_not_read(tmp_path: Path) -> None:
    content = compile_c(
        tmp_path, "lib.so", CONSTANTS, "-shared", "-fPIC", "-z", "noseparate-code"
    ).read_bytes()
    elf = ElfImage(content)

    def text(wanted: bytes) -> bytes | None:
        place = content.index(wanted)
        load = next(load for load in elf.loads if 0 <= place - load.offset < load.size)
        return elf.constant_text(place - load.offset + load.address)

    assert text(b"a constant\0") == b"a constant"
    assert text(b"a variable\0") is None
    assert elf.constant_text(1 << 63) is None


def test_text_without_an_end_is_none() -> None:
    elf = ElfImage(synthetic_elf(1, size=4).ljust(9000, b"x"))
    assert all(b"\0" not in (elf.constant_text(address) or b"") for address in range(0x1000, 0x1200))


def test_addresses_and_offsets_are_each_others_inverse(tmp_path: Path) -> None:
    elf = ElfImage(compile_library(tmp_path).read_bytes())
    offset = elf.function_offsets(["exported"])["exported"]
    address = elf.address_of(offset)
    assert address is not None and elf.offset_of(address) == offset
    assert elf.address_of(0) is None or elf.loads[0].executable
    assert elf.offset_of(1 << 63) is None
    assert any(start <= address < start + len(code) for start, code in elf.code())


def test_a_section_whose_name_ends_anothers_is_found(tmp_path: Path) -> None:
    path, data = compile_library(tmp_path), tmp_path / "data"
    data.write_bytes(b"the content")
    options = [f"--add-section={name}={data}" for name in ("Q_needle_", "zz.needle")]
    subprocess.run([compiler("objcopy"), *options, str(path)], check=True)
    content = path.read_bytes()
    assert ElfImage(content).section(".needle") is None
    content = content.replace(b"\0Q_needle_\0", b"\0.needle\0\0\0")
    found = ElfImage(content).section(".needle")
    assert found is not None and bytes(found.content) == b"the content"
