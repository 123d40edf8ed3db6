"""Thread-local variables in real libraries, linked in each way there is, and in damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.elf.tls import Access, ThreadVariable, find_thread_variable
from tests.rig.examples import examples
from tests.unit.elf.elf_builders import compile_c

NAME = "the_pointer"
LIBRARY = "__thread char before[40]; __thread void *the_pointer; void set(void *p) { the_pointer = p; before[0] = 1; }"
PROGRAM = LIBRARY + " int main(void) { set(0); return 0; }"
SHARED = ("-shared", "-fPIC")


def find(path: Path, name: str = NAME, size: int = 8) -> ThreadVariable | None:
    return find_thread_variable(ElfImage(path.read_bytes()), name, size)


@pytest.mark.parametrize("linking", [(), ("-Wl,-Bsymbolic",), ("-Wl,--hash-style=sysv",), ("-Wl,-z,now",)])
@pytest.mark.parametrize(
    ("model", "access"),
    [
        ("-mtls-dialect=gnu2", Access.DESCRIPTOR),
        ("-mtls-dialect=gnu", Access.MODULE),
        ("-ftls-model=initial-exec", Access.DISTANCE),
    ],
)
def test_the_relocation_that_places_a_variable_is_found(
    tmp_path: Path, model: str, access: Access, linking: tuple[str, ...]
) -> None:
    found = find(compile_c(tmp_path, "lib.so", LIBRARY, *SHARED, model, *linking))
    assert found is not None
    assert [how for how, _ in found.accesses] == [access]


@pytest.mark.parametrize("model", ["-mtls-dialect=gnu2", "-mtls-dialect=gnu", "-ftls-model=initial-exec"])
def test_a_relocation_without_a_symbol_reports_by_its_offset(tmp_path: Path, model: str) -> None:
    """As lld and mold write it for what no other file can override; GNU ld names the symbol all the same."""
    path = compile_c(tmp_path, "lib.so", LIBRARY, *SHARED, model)
    named = find(path)
    assert named is not None
    ((how, address),) = named.accesses
    content = bytearray(path.read_bytes())
    row = next(
        at
        for at in range(0, len(content) - 24, 8)
        if struct.unpack_from("<QI", content, at) == (address, how)
    )
    words = next(
        load.offset + address - load.address
        for load in ElfImage(bytes(content)).loads
        if 0 <= address - load.address < load.size
    )

    def rewrite(offset: int) -> ThreadVariable | None:
        struct.pack_into("<QIIq", content, row, address, how, 0, 0 if how is Access.MODULE else offset)
        if how is Access.MODULE:
            struct.pack_into("<Q", content, words + 8, offset)
        return find_thread_variable(ElfImage(bytes(content)), NAME, 8)

    assert rewrite(named.offset) == named
    other = rewrite(named.offset + 8)
    assert other is not None and other.accesses == ()


@pytest.mark.parametrize("options", [("-rdynamic", "-pie", "-fPIE"), ("-rdynamic", "-no-pie"), ("-static",)])
def test_in_a_program_the_distance_from_the_thread_pointer_is_the_linker_s(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    path = compile_c(tmp_path, "program", PROGRAM, *options)
    found = find(path)
    block = ElfImage(path.read_bytes()).thread_locals
    assert found is not None and block is not None
    assert found.distance == found.offset - -(-block.size // block.align) * block.align


def test_what_is_no_such_variable_is_none(tmp_path: Path) -> None:
    ordinary = "void *the_pointer; __thread int other; void set(int i) { other = i; }"
    assert find(compile_c(tmp_path, "a.so", ordinary, *SHARED)) is None
    library = compile_c(tmp_path, "b.so", LIBRARY, *SHARED)
    assert find(library, size=4) is None
    assert find(library, name="the_point") is None
    assert find(compile_c(tmp_path, "c.so", "int f(void) { return 1; }", *SHARED)) is None
    undefined = "extern __thread void *the_pointer; void *get(void) { return the_pointer; }"
    assert find(compile_c(tmp_path, "d.so", undefined, *SHARED)) is None


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("images")
    models = (("-mtls-dialect=gnu2",), ("-mtls-dialect=gnu", "-Wl,--hash-style=sysv"))
    return [compile_c(folder, "lib.so", LIBRARY, *SHARED, "-s", *model).read_bytes() for model in models]


@examples(200)
@given(data=st.data())
def test_damage_ends_in_an_error_or_in_nothing(images: list[bytes], data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(images)))
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, min(len(damaged), 0x1000) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0x200, len(damaged))) :]
    try:
        found = find_thread_variable(ElfImage(bytes(damaged)), NAME, 8)
    except ElfError:
        return
    assert found is None or found.offset >= 0
