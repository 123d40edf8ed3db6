"""How communicators are laid out: found, checked, given up. In a kernel: tests/kernel/test_nccl_communicators.py."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.dwarf import struct_members
from otelgpu.elf.struct_member import Member
from otelgpu.families.nccl.discover.communicators import NcclLayouts
from otelgpu.families.nccl.discover.layouts import (
    LISTED,
    MAGIC,
    CommunicatorLayout,
    calibrate,
    layout_of_members,
    magics_at,
    siphash,
    version_in,
)
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch
from otelgpu.processes.elf_files import open_elf
from otelgpu.processes.function_finder import session_function_finder
from otelgpu.processes.probes import InspectedFile, ProbePlacer
from otelgpu.processes.reader.accounts import NOBODYS
from tests.rig.examples import examples
from tests.unit.families.records import btf

KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
SECRET, HASH = 0x5EC4E7, 0xFEEDFACE
SIZE = 1 << 16
SMALL = CommunicatorLayout(hash_at=4096, rank_at=4104, ranks_at=4108, device_at=4112, end_at=8000)


def memory(
    layout: CommunicatorLayout = SMALL, *, rank: int = 3, ranks: int = 8, between: bool = False
) -> bytearray:
    """A communicator; ``between``: with the name of 2.24 to 2.26 after the first word of the id."""
    found = bytearray(SIZE)
    place = partial(struct.pack_into, "<Q", found)
    place(0, MAGIC)
    place(layout.end_at, MAGIC)
    place(layout.hash_at - (16 if between else 8), SECRET)
    place(layout.hash_at, HASH)
    struct.pack_into("<III", found, layout.rank_at, rank, ranks, 1)
    return found


def found_in(content: bytes | bytearray, rank: int = 3, ranks: int = 8) -> CommunicatorLayout | None:
    return calibrate(bytes(content), rank=rank, ranks=ranks, is_identity=lambda word: word == SECRET)


@pytest.mark.parametrize("between", [False, True])
def test_a_communicator_reports_its_layout(between: bool) -> None:
    assert found_in(memory(between=between)) == SMALL
    assert (SMALL.hash_at - (16 if between else 8)) in magics_at(SMALL)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda m: struct.pack_into("<Q", m, SMALL.hash_at - 8, SECRET + 1), id="other id"),
        pytest.param(lambda m: struct.pack_into("<Q", m, SMALL.hash_at, 0), id="no hash yet"),
        pytest.param(lambda m: struct.pack_into("<I", m, SMALL.rank_at, 4), id="other rank"),
        pytest.param(lambda m: struct.pack_into("<I", m, SMALL.device_at, 1 << 20), id="no device"),
        pytest.param(lambda m: m.__delitem__(slice(SMALL.hash_at, None)), id="cut off"),
        pytest.param(lambda m: m.clear(), id="nothing"),
    ],
)
def test_what_is_not_certain_is_no_layout(spoil: Any) -> None:
    content = memory()
    spoil(content)
    assert found_in(content) is None


def test_two_places_are_none() -> None:
    content = memory()
    content[20000:20024] = content[SMALL.hash_at - 8 : SMALL.hash_at + 16]
    assert found_in(content) is None


@examples(50)
@given(st.binary(max_size=512))
def test_no_memory_makes_it_fail(content: bytes) -> None:
    assert found_in(content) is None


def test_the_digest_is_siphash() -> None:
    # vectors_sip64[8] of the authors' reference implementation, https://github.com/veorq/SipHash
    assert siphash(KEY, 0x0706050403020100) == 0x93F5F5799A932462


@pytest.mark.parametrize(
    ("constants", "version"),
    [
        (b"x\0NCCL version 2.27.5+cuda12.9\0", "2.27.5"),
        (b"NCCL version 2.27.5 compiled with CUDA", None),
        (b"NCCL version %s", None),
        (b"", None),
    ],
)
def test_a_version_is_what_a_library_says_of_itself(constants: bytes, version: str | None) -> None:
    assert version_in(constants) == version


MEMBERS = {
    **{"startMagic": (0, 1), "commHash": (16, 1), "rank": (24, 1), "nRanks": (28, 1), "cudaDev": (32, 1)},
    **{"seqNumber": (64, 5), "localPersistentRefs": (48, 1), "endMagic": (200, 1)},
}


def test_counts_are_those_of_versions_that_always_count() -> None:
    kept = layout_of_members(MEMBERS, "2.26.0")
    assert kept is not None
    assert (kept.sequences_at, kept.sequences, kept.graphs_at, kept.end_at) == (64, 5, 48, 200)
    for version in ("2.25.1", "2.9.9", None):
        other = layout_of_members(MEMBERS, version)
        assert other is not None
        assert (other.sequences_at, other.sequences) == (0, 0)


@pytest.mark.parametrize("name", ["commHash", "rank", "nRanks", "cudaDev"])
def test_without_one_of_its_members_there_is_no_layout(name: str) -> None:
    assert layout_of_members({key: value for key, value in MEMBERS.items() if key != name}, "2.28.9") is None


# -- debugging information ---------------------------------------------------------------------------------

DEBUGGED = """
struct first { int a; };
struct ncclComm { unsigned long startMagic; struct first f; int rank; long seqNumber[5]; struct ncclComm *next; };
struct ncclComm *made;
int of(struct ncclComm *comm) { return comm->rank; }
"""


@pytest.mark.parametrize("dwarf", [4, 5])
def test_members_are_found_by_debugging_information(tmp_path: Path, dwarf: int) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler in PATH")
    source, library = tmp_path / "x.c", tmp_path / "x.so"
    source.write_text(DEBUGGED)
    subprocess.run(
        [compiler, f"-gdwarf-{dwarf}", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60
    )
    with open_elf(library) as file:
        sections = [
            section.content if (section := file.image.section(name)) else b""
            for name in (".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str")
        ]
    found = struct_members(*sections, "ncclComm")  # type: ignore[arg-type]
    assert found == {
        **{"startMagic": Member(0, 1), "f": Member(8, 1), "rank": Member(12, 1)},
        **{"seqNumber": Member(16, 5), "next": Member(56, 1)},
    }
    assert struct_members(*sections, "ncclOther") is None  # type: ignore[arg-type]
    for cut in (0, 1, 40, len(sections[0]) // 2):
        struct_members(sections[0][:cut], *sections[1:], "ncclComm")  # type: ignore[arg-type]
    for shift in range(1, 24):  # damaged, in every alignment
        struct_members(bytes(shift) + bytes(sections[0]), *sections[1:], "ncclComm")  # type: ignore[arg-type]


# -- the watcher ---------------------------------------------------------------------------------------------


class Map:
    """A BPF map."""

    max_entries = 4

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        if int.from_bytes(key, "little") >= self.max_entries:
            raise BpfError("full")
        self.entries[key] = value

    def delete(self, key: bytes) -> bool:
        return self.entries.pop(key, None) is not None


class Loaded:
    """A family that was loaded, as far as it is asked."""

    def __init__(self) -> None:
        self.image = read_image("nccl")
        self.maps = {"layouts": Map(), "communicators": Map()}
        self.variables: dict[str, int] = {}

    def map(self, name: str) -> Map:
        return self.maps[name]

    def set_variable(self, name: str, value: int) -> None:
        self.variables[name] = value

    def layout(self, index: int) -> np.void | None:
        value = self.maps["layouts"].entries.get(struct.pack("<I", index))
        return None if value is None else np.frombuffer(value, btf("nccl").dtype("nccl_layout"))[0]


class Image:
    """An ELF image that says a version."""

    def __init__(self, version: str, build_id: str | None = None) -> None:
        self.build_id, self._constants = build_id, f"NCCL version {version}+cuda12.9".encode()

    def section(self, name: str) -> Any:
        return type("Section", (), {"content": self._constants}) if name == ".rodata" else None


class Structs:
    """A finder of structs that never answers."""

    def find(self, *_: object) -> None:
        """Nothing."""


def file(image: Image, path: str) -> InspectedFile:
    return InspectedFile(image, path, -1, NOBODYS)  # type: ignore[arg-type]


@pytest.fixture
def loaded() -> Loaded:
    return Loaded()


@pytest.fixture
def layouts(loaded: Loaded, tmp_path: Path) -> NcclLayouts:
    placer = ProbePlacer((), session_function_finder(), with_returns=True)
    made = NcclLayouts(loaded, placer, proc=tmp_path, structs=Structs())  # type: ignore[arg-type]
    assert placer.file_cookies == {"libnccl": made.index_of}
    return made


def made(loaded: Loaded, index: int, *, tgid: int = 41, secret: int = SECRET, **fields: Any) -> Batch:
    key = (loaded.variables["identity_key_0"], loaded.variables["identity_key_1"])
    row = np.zeros(1, dtype=btf("nccl").dtype("nccl_communicator"))
    batch = Batch(family="nccl", kind="nccl_communicator", records=row)
    batch.heads["tgid"] = tgid
    reported = {"communicator": 0, "identity": siphash(key, secret), "rank": 3, "ranks": 8, "created": 1}
    for name, value in (reported | {"layout": index} | fields).items():
        row[name] = value
    return batch


def process(tmp_path: Path, content: bytes | bytearray, tgid: int = 41) -> None:
    (tmp_path / str(tgid)).mkdir(exist_ok=True)
    (tmp_path / str(tgid) / "mem").write_bytes(content)


def test_a_listed_version_is_reported_to_the_programs_at_once(loaded: Loaded, layouts: NcclLayouts) -> None:
    index = layouts.index_of(file(Image("2.28.9", "aa"), "/a"))
    entry = loaded.layout(index)
    assert entry is not None
    assert (int(entry["known"]), int(entry["hash_at"])) == (1, LISTED["2.28.9"].hash_at)
    assert layouts.index_of(file(Image("2.28.9", "aa"), "/b")) == index
    assert layouts.index_of(file(Image("2.28.9", "bb"), "/c")) != index


def test_of_more_copies_than_there_is_room_for_nothing_is_read(layouts: NcclLayouts) -> None:
    indices = [layouts.index_of(file(Image("2.28.9", f"{n:02x}"), f"/{n}")) for n in range(5)]
    assert indices == [1, 2, 3, 0, 0]
    assert layouts.counters == Counter(communicator_layouts_full=2)


def unlisted(layouts: NcclLayouts) -> int:
    index = layouts.index_of(file(Image("2.99.0"), "/x"))
    assert layouts.counters["communicator_version_unknown"] == 1
    return index


def test_a_layout_is_found_in_the_memory_of_a_process(
    loaded: Loaded, layouts: NcclLayouts, tmp_path: Path
) -> None:
    process(tmp_path, memory())
    index = unlisted(layouts)
    layouts.look(made(loaded, index))
    assert loaded.layout(index) is None
    assert list(layouts.collect(0)) == []
    entry = loaded.layout(index)
    assert entry is not None
    assert [int(entry[name]) for name in ("hash_at", "rank_at", "end_at", "sequences", "known")] == [
        *(SMALL.hash_at, SMALL.rank_at, SMALL.end_at, 0, 1),
    ]
    assert (layouts.copies[0].source, layouts.copies[0].verified) == ("calibrated", True)


def test_another_unique_id_finds_nothing(loaded: Loaded, layouts: NcclLayouts, tmp_path: Path) -> None:
    process(tmp_path, memory())
    index = unlisted(layouts)
    layouts.look(made(loaded, index, secret=SECRET + 1))
    layouts.collect(0)
    assert loaded.layout(index) is None
    assert layouts.counters["communicator_not_calibrated"] == 1


def test_a_process_that_is_gone_is_counted(loaded: Loaded, layouts: NcclLayouts) -> None:
    index = unlisted(layouts)
    for address in (0, (1 << 64) - 1):
        layouts.look(made(loaded, index, communicator=address))
    layouts.collect(0)
    assert layouts.counters["communicator_memory_unreadable"] == 2


def test_a_layout_that_is_contradicted_is_taken_back(
    loaded: Loaded, layouts: NcclLayouts, tmp_path: Path
) -> None:
    process(tmp_path, bytes(SIZE))
    index = layouts.index_of(file(Image("2.21.5"), "/x"))
    layouts.look(made(loaded, index))
    layouts.collect(0)
    entry = loaded.layout(index)
    assert entry is not None
    assert int(entry["known"]) == 0
    assert layouts.counters["communicator_layout_contradicted"] == 1


def test_a_library_whose_communicators_report_nothing_is_given_up_in_the_end(
    loaded: Loaded, layouts: NcclLayouts, tmp_path: Path
) -> None:
    process(tmp_path, bytes(SIZE))
    index = unlisted(layouts)
    for _ in range(100):
        layouts.look(made(loaded, index))
        layouts.collect(0)
    assert layouts.counters["communicator_not_calibrated"] == 64


def test_a_process_that_ended_takes_its_communicators_along(loaded: Loaded, layouts: NcclLayouts) -> None:
    for tgid, address in ((41, 2), (41, 3), (43, 2)):
        loaded.maps["communicators"].entries[struct.pack("<QIxxxx", address, tgid)] = b""
        layouts.look(made(loaded, 0, tgid=tgid, communicator=address))
    layouts.forget(41)
    layouts.forget(41)
    assert list(loaded.maps["communicators"].entries) == [struct.pack("<QIxxxx", 2, 43)]
