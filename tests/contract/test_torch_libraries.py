"""The functions that family torch probes, in the libraries that PyTorch's wheels have.

Which version has which name is the table in bpf/torch/torch.bpf.c; the names have the types of the arguments in them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from otelgpu.kernel.attach import functions_of
from otelgpu.kernel.loader import read_image
from otelgpu.processes.elf_files import open_elf
from otelgpu.symbols.demangle import demangle
from tests.rig.torch_wheels import VERSIONS, torch_libraries

_ALLOCATION = "c10::reportMemoryUsageToProfiler(void*, long, {0}, {0}, c10::Device)"
_REFUSAL = "c10::reportOutOfMemoryToProfiler(long, {0}, {0}, c10::Device)"


pytestmark = pytest.mark.slow  # parts of a wheel for each version, the first time


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def libraries(version: str) -> Path:
    try:
        return torch_libraries(version)
    except RuntimeError as error:
        pytest.skip(str(error))


def test_a_version_has_one_function_of_each_kind_and_its_name_has_the_types_that_are_read(
    libraries: Path, version: str
) -> None:
    probed = functions_of(read_image("torch"))
    assert set(probed.values()) == {"libc10"}
    with open_elf(libraries / "libc10.so") as file:
        found = {demangle(name) for name in file.image.function_offsets(probed)}
    totals = "long" if version.startswith("1.") else "unsigned long"
    assert found == {_ALLOCATION.format(totals), _REFUSAL.format(totals)}


def test_the_allocator_of_cuda_calls_what_is_probed(libraries: Path) -> None:
    probed = functions_of(read_image("torch"))
    with (libraries / "libc10_cuda.so").open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        imported = {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF"}
    assert len(imported & probed.keys()) == 2
