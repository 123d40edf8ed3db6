"""Fat binaries and cubins → names of kernels; damaged and hostile ones → counters, never more than the bound."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.symbols import fatbin
from otelgpu.symbols.cubin import CubinError, kernel_names, ptx_entries
from otelgpu.symbols.fatbin import REASONS, KernelNames, containers, entries, read_names
from tests.rig.examples import examples
from tests.unit.symbols.cuda_programs import DATA, NAMES

ENTRY_AT = 16  # behind the container's header
FIXTURES = sorted(DATA.glob("*.fatbin"))


def read(name: str) -> bytearray:
    return bytearray((DATA / name).read_bytes())


def forget_decompressors() -> None:
    fatbin._decompressor.cache_clear()


def entry(kind: int, payload: bytes, *, flags: int = 0, size: int = 0, header: int = 64) -> bytes:
    padded = payload + bytes(-len(payload) % 8)
    head = struct.pack(
        "<HHIQI8xI8xQ8xQ", kind, 0x101, header, len(padded), len(payload) if flags else 0, 90, flags, size
    )
    return head + bytes(header - 64) + padded


def container(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


PTX = b".version 8.0\n.visible .entry _Z4axpyfPfS_(\n.param .f32 p)\n{ ret; }\n.entry plain()\n{}\n"


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_what_nvcc_makes_gives_its_kernels(path: Path) -> None:
    found = read_names(memoryview(path.read_bytes()))
    assert (found.names, found.complete, found.counters) == (NAMES, True, {})


def test_the_fixtures_are_of_the_kinds_that_they_are_named_for() -> None:
    kinds = {}
    for path in FIXTURES:
        [body] = containers(memoryview(path.read_bytes()))
        [only] = entries(body, KernelNames())
        kinds[path.stem] = (only.kind, only.compression, len(only.members))
    assert kinds == {
        "lz4": (2, 0x2000, 0),
        "ptx": (1, 0, 0),
        "several": (256, 0x8000, 2),
        "zstd": (2, 0x8000, 0),
    }


def test_a_section_is_many_containers_with_gaps() -> None:
    section = b"\0" * 24 + read("lz4.fatbin") + b"junk!" * 7 + container(entry(1, b".entry other()"))
    assert read_names(memoryview(section)).names == NAMES | {b"other"}


def test_of_several_architectures_one_is_read_and_ptx_only_where_there_is_no_cubin() -> None:
    cubin = bytes(read("kernels.cubin"))
    section = container(entry(1, b".entry from_ptx()"), entry(2, cubin))
    assert read_names(memoryview(section)).names == NAMES


def test_reading_stops_when_it_has_what_is_wanted() -> None:
    section = container(entry(1, PTX)) + container(entry(1, b".entry other()"))
    assert read_names(memoryview(section), wanted={b"plain"}).names == {b"_Z4axpyfPfS_", b"plain"}


def test_a_kernel_that_one_architecture_has_is_found_when_it_is_wanted() -> None:
    section = memoryview(
        container(entry(2, bytes(read("kernels.cubin"))), entry(1, b".entry fp8_only()" * 9))
    )
    assert b"fp8_only" not in read_names(section).names
    assert read_names(section, wanted={b"plain", b"fp8_only"}).names == NAMES | {b"fp8_only"}


def test_a_kernel_without_its_symbol_is_found_by_its_constant_bank() -> None:
    image = read("kernels.cubin")
    sections_at, count = struct.unpack_from("<Q", image, 40)[0], struct.unpack_from("<H", image, 60)[0]
    for number in range(count):
        place = sections_at + 64 * number + 4
        if struct.unpack_from("<I", image, place)[0] == 2:  # SHT_SYMTAB
            struct.pack_into("<I", image, place, 1)
    assert kernel_names(bytes(image)) == NAMES


def test_device_functions_are_no_kernels() -> None:
    assert ptx_entries(b".func helper()\n.visible .entry k()\n//.entryx\n") == {b"k"}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", Path(sys.executable).resolve().read_bytes()[:4096]])
def test_what_is_no_cubin_is_refused(data: bytes) -> None:
    with pytest.raises(CubinError):
        kernel_names(data)


# -- bad input -----------------------------------------------------------------------------------------


def test_an_unknown_kind_is_counted() -> None:
    found = read_names(memoryview(container(entry(64, b"x" * 16), entry(1, PTX))))
    assert found.counters == {"fatbin_kind_unknown": 1} and not found.complete
    assert b"plain" in found.names


def test_a_truncated_container_is_not_read_past_its_end() -> None:
    whole = read("lz4.fatbin")
    for length in range(len(whole)):
        assert read_names(memoryview(whole[:length])).names == set()


@pytest.mark.parametrize("name", ["lz4.fatbin", "zstd.fatbin"])
def test_a_damaged_payload_is_counted(name: str) -> None:
    data = read(name)
    data[ENTRY_AT + 80 : ENTRY_AT + 400] = b"\xff" * 320
    found = read_names(memoryview(data))
    assert found.counters and set(found.counters) <= set(REASONS) and not found.complete


@pytest.mark.parametrize("name", ["lz4.fatbin", "zstd.fatbin"])
@pytest.mark.parametrize("claimed", [1 << 63, (64 << 20) + 1])
def test_more_than_the_bound_is_not_decompressed(name: str, claimed: int) -> None:
    data = read(name)
    struct.pack_into("<Q", data, ENTRY_AT + 56, claimed)
    found = read_names(memoryview(data))
    assert found.counters == {"fatbin_too_large": 1} and found.names == set()


@pytest.mark.parametrize("name", ["lz4.fatbin", "zstd.fatbin"])
def test_a_payload_larger_than_it_says_is_cut_or_refused(name: str) -> None:
    data = read(name)
    struct.pack_into("<Q", data, ENTRY_AT + 56, 100)
    found = read_names(memoryview(data))
    assert found.names == set() and not found.complete


def test_a_bomb_takes_no_more_than_it_is_allowed() -> None:
    zstandard = pytest.importorskip("zstandard")
    bomb = zstandard.ZstdCompressor().compress(bytes(512 << 20))
    tracemalloc.start()
    try:
        found = read_names(memoryview(container(entry(2, bomb, flags=0x8000, size=1 << 20))))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20 and found.counters == {"fatbin_damaged": 1}


def test_all_entries_together_stay_within_the_bound() -> None:
    parts = [container(entry(1, b".entry k%d()" % number, size=0)) for number in range(10)]
    found = read_names(memoryview(b"".join(parts)), max_bytes=5 * 16)
    assert len(found.names) == 5 and found.counters == {"fatbin_too_large": 5}


@pytest.mark.parametrize(("name", "package"), [("lz4.fatbin", "lz4.block"), ("zstd.fatbin", "zstandard")])
def test_without_the_package_the_names_are_missing_and_the_reason_counted(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    forget_decompressors()
    try:
        found = read_names(memoryview(read(name)))
    finally:
        forget_decompressors()
    assert found.counters == {"decompressor_missing": 1} and not found.complete


@examples(400)
@given(data=st.data())
def test_any_change_to_a_fatbin_ends_in_names_and_counters(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(FIXTURES)).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, 130) | st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    found = read_names(memoryview(content), max_bytes=1 << 20)
    assert set(found.counters) <= set(REASONS)
    assert all(isinstance(name, bytes) for name in found.names)


@examples(300)
@given(data=st.data())
def test_any_change_to_a_cubin_ends_in_names_or_an_error(data: st.DataObject) -> None:
    content = read("kernels.cubin")
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, 63) | st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    try:
        names = kernel_names(bytes(content))
    except CubinError:
        return
    assert all(len(name) <= 4096 for name in names)


@pytest.mark.parametrize("count", [1, 2, 64])
def test_members_over_one_another_are_read_once(count: int) -> None:
    """64 of 64 MB each would be 4 GB of text to look through, for one entry."""
    payload = b".entry whole()\n" * 1000
    extension = struct.pack("<II", count, 0) + struct.pack("<HHII52x", 1, 0, 0, len(payload)) * count
    plain = entry(256, payload, header=64 + len(extension))
    section = container(plain[:64] + extension + plain[64 + len(extension) :])
    looked_through: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fatbin, "ptx_entries", lambda piece: looked_through.append(len(piece)) or {b"whole"})
        found = read_names(memoryview(section))
    assert looked_through == [len(payload)]
    assert found.names == {b"whole"}
    assert found.complete == (count == 1)
    assert found.counters == ({} if count == 1 else {"fatbin_damaged": 1})
