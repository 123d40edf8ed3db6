"""A damaged or hostile file ends in ElfError: no other exception, no hang, no unbounded memory."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.image import MAX_SYMBOLS, ElfError, ElfImage
from otelgpu.elf.plt import read_stubs, stub_name
from tests.rig.examples import examples
from tests.unit.elf.elf_builders import compile_library, synthetic_elf

SAMPLE: list[bytes] = []


@pytest.fixture(scope="module", autouse=True)
def sample(tmp_path_factory: pytest.TempPathFactory) -> None:
    SAMPLE[:] = [compile_library(tmp_path_factory.mktemp("sample")).read_bytes()]


def use_all_of(content: bytes | bytearray) -> None:
    try:
        elf = ElfImage(content)
        offsets = elf.function_offsets(["exported", "versioned", "sizeless", "f"])
        for place in (0, 0x1000, 0x1130, len(content) - 1, *offsets.values()):
            elf.symbol_at(place)
    except ElfError:
        pass
    try:
        elf = ElfImage(content)
        stubs = read_stubs(elf)
        for number in (0, 1, 1 << 31, *stubs.symbols[:4].tolist()):
            stub_name(elf, number)
    except ElfError:
        pass


def test_every_truncation_is_survived() -> None:
    content = SAMPLE[0]
    for length in range(0, len(content), 61):
        use_all_of(content[:length])


@pytest.mark.parametrize("value", [0, 1, 0x7F, 0xFF])
def test_every_header_byte_may_be_anything(value: int) -> None:
    for place in range(64 + 56 * 11):
        content = bytearray(SAMPLE[0])
        if content[place] != value:
            content[place] = value
            use_all_of(content)


@examples(300)
@given(data=st.data())
def test_mutations_are_survived(data: st.DataObject) -> None:
    content = bytearray(SAMPLE[0])
    section_headers = int.from_bytes(content[0x28:0x30], "little")
    regions = [(0, 64 + 56 * 11), (section_headers, len(content)), (0, len(content))]
    words = st.sampled_from(
        [0, 1, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1, len(content)]
    )
    for _ in range(data.draw(st.integers(1, 6))):
        low, high = data.draw(st.sampled_from(regions))
        place = data.draw(st.integers(low, high - 8))
        if data.draw(st.booleans()):
            place = place // 8 * 8
        width = data.draw(st.sampled_from([1, 2, 4, 8]))
        value = data.draw(words | st.integers(0, (1 << 64) - 1))
        content[place : place + width] = struct.pack("<Q", value)[:width]
    use_all_of(content)


@examples(200)
@given(st.binary(max_size=400))
def test_any_bytes_behind_a_valid_start_are_survived(rest: bytes) -> None:
    use_all_of(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0\x3e\0" + rest)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 4, (1 << 64) - 1], ids=["sizeless", "sized", "overlapping"])
def test_the_most_symbols_that_are_read_take_less_than_200_megabytes(size: int) -> None:
    content = synthetic_elf(MAX_SYMBOLS, size=size, names=("f", "ff"))
    tracemalloc.start()
    try:
        elf = ElfImage(content)
        assert elf.function_offsets(["f"]) == {"f": 0}
        assert elf.symbol_at(4 * 1000 + 1) is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000_000


def test_more_symbols_than_that_are_refused() -> None:
    with pytest.raises(ElfError, match="symbols"):
        ElfImage(synthetic_elf(MAX_SYMBOLS + 1)).function_offsets(["f"])


def test_a_million_symbols_of_one_name_do_not_stall() -> None:
    elf = ElfImage(synthetic_elf(1_000_000, size=1 << 40))
    assert elf.function_offsets(["f"]) == {"f": 0}
    assert elf.symbol_at(4 * 1_000_000 + 2) is not None
