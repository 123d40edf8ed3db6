"""Stripped programs → which host stub launches which kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.symbols.functions import FunctionTable
from otelgpu.symbols.registrations import has_device_code, read_registrations
from tests.rig.examples import examples
from tests.unit.symbols.cuda_programs import DATA, KERNELS, NAMES, compile_program

MODES = [
    ("-O0",),
    ("-O1",),
    ("-O2",),
    ("-O3",),
    ("-Os",),
    ("-O2", "-fno-pie", "-no-pie"),
    ("-O0", "-fno-pie", "-no-pie"),
    ("-O2", "-fcf-protection=full"),
    ("-O2", "-z", "noseparate-code"),
]


def names_of(image: ElfImage) -> dict[int, bytes]:
    """Stub address → mangled name."""
    return {stub: image.constant_text(name) or b"" for stub, name in read_registrations(image).stubs.items()}


@pytest.mark.parametrize("mode", MODES, ids=" ".join)
def test_every_registered_stub_has_its_kernel(tmp_path: Path, mode: tuple[str, ...]) -> None:
    program = compile_program(tmp_path, "app", *mode, stripped=False)
    image = ElfImage(program.read_bytes())
    stubs = {}
    for address, name in names_of(image).items():
        offset = image.offset_of(address)
        assert offset is not None
        symbol = image.symbol_at(offset)
        assert symbol is not None and symbol.file_offset == offset
        stubs[symbol.name] = name.decode()
    assert stubs == {f"_ZL6stub_{number}i": kernel for number, kernel in enumerate(KERNELS)}


def test_a_program_made_by_nvcc_gives_its_kernels() -> None:
    image = ElfImage((DATA / "stripped.program").read_bytes())
    assert image.is_stripped and has_device_code(image)
    found = names_of(image)
    assert sorted(found.values()) == sorted(NAMES) and read_registrations(image).counters == {}
    table = FunctionTable(image, "stripped.program")
    named = {table.name_at(image.offset_of(stub) or 0) for stub in found}
    assert named == {
        ("axpy(float, float*, float*)", True),
        ("void model::scale<3, float>(float*)", True),
        ("plain", True),
    }


def test_a_name_that_stands_elsewhere_is_not_taken_from_the_call_before(tmp_path: Path) -> None:
    # The compiler keeps the address of a string that is used twice in a register, loaded far away.
    behind = 'callback(0, unrelated, "plain", "plain", -1);'
    image = ElfImage(compile_program(tmp_path, "app", "-O2", behind=behind, stripped=False).read_bytes())
    named = {image.symbol_at(image.offset_of(stub) or 0): name for stub, name in names_of(image).items()}
    stubs = {symbol.name: name.decode() for symbol, name in named.items() if symbol is not None}
    assert stubs.items() <= {f"_ZL6stub_{number}i": kernel for number, kernel in enumerate(KERNELS)}.items()
    assert len(stubs) >= 2


def test_names_that_the_device_code_lacks_are_not_believed(tmp_path: Path) -> None:
    program = compile_program(tmp_path, "app", "-O2", kernels=("plain", "_Z7strangev"))
    image = ElfImage(program.read_bytes())
    assert list(names_of(image).values()) == [b"plain"]
    assert read_registrations(image).counters["registration_unconfirmed"] >= 1


def test_device_code_that_cannot_be_read_leaves_what_the_code_says(tmp_path: Path) -> None:
    damaged = bytearray((DATA / "zstd.fatbin").read_bytes())
    damaged[90:400] = b"\xff" * 310
    path = tmp_path / "damaged.fatbin"
    path.write_bytes(damaged)
    image = ElfImage(compile_program(tmp_path, "app", "-O2", fatbin=path).read_bytes())
    assert set(names_of(image).values()) == NAMES
    assert read_registrations(image).counters["fatbin_not_decompressed"] == 1


def test_a_stub_must_begin_a_function(tmp_path: Path) -> None:
    content = bytearray(compile_program(tmp_path, "app", "-O2").read_bytes())
    header = ElfImage(content).section(".eh_frame_hdr")
    assert header is not None
    place = bytes(content).index(bytes(header.content[:12]))
    content[place + 12 : place + len(header.content)] = bytes(len(header.content) - 12)
    found = read_registrations(ElfImage(content))
    assert found.stubs == {} and found.counters["registration_unconfirmed"] >= len(KERNELS)


def test_a_program_without_device_code_is_not_searched(tmp_path: Path) -> None:
    empty = tmp_path / "empty.fatbin"
    empty.write_bytes(b"")
    image = ElfImage(compile_program(tmp_path, "app", "-O2", fatbin=empty).read_bytes())
    assert not has_device_code(image)
    assert FunctionTable(image, "app").name_at(image.loads[1].offset)[1] is False


def test_another_machine_is_counted() -> None:
    content = bytearray((DATA / "stripped.program").read_bytes())
    content[18] = 183  # e_machine: aarch64
    assert read_registrations(ElfImage(content)).counters == {"registration_machine": 1}


@examples(200)
@given(data=st.data())
def test_any_change_to_a_program_ends_in_names_or_an_error(data: st.DataObject) -> None:
    content = bytearray((DATA / "stripped.program").read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, 0x400) | st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    try:
        image = ElfImage(content)
        if has_device_code(image):
            found = read_registrations(image)
            assert len(found.stubs) <= 4
    except ElfError:
        pass
