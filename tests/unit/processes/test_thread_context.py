"""Where the threads of a process publish: what dynamic linkers leave in memory, when, and what anybody may write."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.image import ElfImage
from otelgpu.elf.tls import find_thread_variable
from otelgpu.kernel.loader import read_image
from otelgpu.processes import thread_context
from otelgpu.processes.thread_context import (
    FIRST_RETRY_S,
    GIVE_UP_S,
    LONGEST_RETRY_S,
    ThreadContexts,
    VariableLocation,
)
from tests.unit.elf.elf_builders import compile_c
from tests.unit.families.profiles.discover.tables import FakeTable

TGID, CHILD = 42, 43
BASE = 0x10000000
RESOLVER = 0x30000000  # in the dynamic linker
STATIC = (RESOLVER, (1 << 64) - 152)
LIBRARY = """
    __thread char before[40];
    __thread void *otel_thread_ctx_v1;
    void set(void *p) { otel_thread_ctx_v1 = p; before[0] = 1; }
"""
BTF = read_image("process").btf


class Loaded:
    """A /proc with processes that have loaded libraries at BASE, BASE + 16 MiB and so on."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self._lines: dict[int, list[str]] = {}

    def load(self, tgid: int, library: Path, *, nth: int = 0, segments: str = "rwx") -> tuple[int, int]:
        """Map the segments that ``segments`` names; (address of the words that report, of the code)."""
        image = ElfImage(library.read_bytes())
        base, code = BASE + (nth << 24), 0
        folder = self.proc / str(tgid)
        (folder / "map_files").mkdir(parents=True, exist_ok=True)
        for load in image.loads:
            kind = "x" if load.executable else "w" if load.writable else "r"
            start = base + load.address // 4096 * 4096
            end = start + 0x10000 if kind == "w" else start + 0x1000
            offset = load.offset // 4096 * 4096
            if kind not in segments:
                continue
            line = f"{start:x}-{end:x} {'r-xp' if kind == 'x' else 'rw-p'} {offset:08x} 08:01 {9 + nth} {library}"
            self._lines.setdefault(tgid, []).append(line)
            if kind == "x":
                code = start
                (folder / "map_files" / f"{start:x}-{end:x}").symlink_to(library)
        (folder / "maps").write_text("".join(f"{line}\n" for line in sorted(self._lines[tgid])))
        (folder / "mem").touch()
        variable = find_thread_variable(image, "otel_thread_ctx_v1", 8)
        assert variable is not None
        return base + variable.accesses[0][1], code

    def forget_mappings(self, tgid: int) -> None:
        self._lines.pop(tgid)
        for link in (self.proc / str(tgid) / "map_files").iterdir():
            link.unlink()

    def write(self, tgid: int, address: int, *words: int) -> None:
        with (self.proc / str(tgid) / "mem").open("r+b") as file:
            file.seek(address)
            file.write(struct.pack(f"<{len(words)}Q", *words))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    return compile_c(folder, "lib.so", LIBRARY, "-shared", "-fPIC", "-mtls-dialect=gnu2")


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    return Loaded(tmp_path / "proc")


@pytest.fixture
def table() -> FakeTable:
    return FakeTable()


@pytest.fixture
def published() -> FakeTable:
    return FakeTable()


@pytest.fixture
def contexts(loaded: Loaded, table: FakeTable, published: FakeTable) -> ThreadContexts:
    return ThreadContexts(table, published, BTF, proc=loaded.proc)


def entry(table: FakeTable, tgid: int = TGID) -> list[tuple[str, int, int, int]]:
    """(access, offset, module, generation) of each place that is reported."""
    value = table.entries[struct.pack("<I", tgid)]
    names = {number: name for name, number in BTF.enumerators("context_access").items()}
    return [
        (names[int(row["access"])], int(row["offset"]), int(row["module"]), int(row["generation"]))
        for row in np.frombuffer(value, BTF.dtype("context_places"))["place"][0]
        if row["access"]
    ]


def test_a_variable_that_is_placed_is_reported_at_once(
    contexts: ThreadContexts, loaded: Loaded, library: Path, table: FakeTable, published: FakeTable
) -> None:
    words, _ = loaded.load(TGID, library)
    loaded.write(TGID, words, *STATIC)
    assert published.entries == {}
    contexts.look_at(TGID, 0)
    assert entry(table) == [("CONTEXT_ACCESS_STATIC", -152, 0, 0)]
    assert published.entries == {struct.pack("<I", 0): struct.pack("<I", 1)}
    assert contexts.publishers == {TGID}
    assert contexts.due_in(0) is None


def test_a_dynamic_one_is_reported_by_module_offset_and_generation(
    contexts: ThreadContexts, loaded: Loaded, library: Path, table: FakeTable
) -> None:
    words, _ = loaded.load(TGID, library)
    argument = words + 0x100
    loaded.write(TGID, argument, 3, 40, 17)
    loaded.write(TGID, words, RESOLVER, argument)
    contexts.look_at(TGID, 0)
    assert entry(table) == [("CONTEXT_ACCESS_GLIBC", 40, 3, 17)]


def test_one_that_is_placed_later_is_found_by_looking_again(
    contexts: ThreadContexts, loaded: Loaded, library: Path, table: FakeTable
) -> None:
    words, code = loaded.load(TGID, library)
    contexts.look_at_mapping(TGID, code, code + 0x1000, ElfImage(library.read_bytes()).loads[1].offset, 100.0)
    assert table.entries == {}
    due = contexts.due_in(100.0)
    assert due == pytest.approx(FIRST_RETRY_S)
    loaded.write(TGID, words, *STATIC)
    contexts.retry(100.0)  # not due
    assert table.entries == {}
    contexts.retry(100.002)
    assert [access for access, *_ in entry(table)] == ["CONTEXT_ACCESS_STATIC"]


def test_bytes_are_not_believed_before_their_segment_is_in_its_place(
    contexts: ThreadContexts, loaded: Loaded, library: Path, table: FakeTable
) -> None:
    words, _ = loaded.load(TGID, library, segments="rx")
    loaded.write(TGID, words, *STATIC)
    contexts.look_at(TGID, 0)
    contexts.retry(1)
    assert table.entries == {}
    loaded.forget_mappings(TGID)
    loaded.load(TGID, library)
    contexts.retry(2)
    assert len(entry(table)) == 1


def test_a_descriptor_that_is_bound_at_its_first_use_is_waited_for(
    contexts: ThreadContexts, loaded: Loaded, library: Path, table: FakeTable
) -> None:
    words, code = loaded.load(TGID, library)
    loaded.write(TGID, words, code + 0x20, STATIC[1])  # a stub in the library itself
    contexts.look_at(TGID, 0)
    assert table.entries == {}
    loaded.write(TGID, words, *STATIC)
    contexts.retry(1)
    assert len(entry(table)) == 1


def test_looking_again_becomes_seldom_and_ends(
    contexts: ThreadContexts, loaded: Loaded, library: Path
) -> None:
    loaded.load(TGID, library)
    contexts.look_at(TGID, 0)
    now, looks = 0.0, 0
    while (due := contexts.due_in(now)) is not None:
        assert due <= LONGEST_RETRY_S + 1e-6
        now += due + 1e-6
        contexts.retry(now)
        looks += 1
    assert GIVE_UP_S < now < GIVE_UP_S + 2 * LONGEST_RETRY_S
    assert looks < 100
    assert contexts.counters["thread_context_unresolved"] == 1


def test_more_publishers_than_there_is_room_for_are_counted(
    contexts: ThreadContexts, loaded: Loaded, library: Path, table: FakeTable, tmp_path: Path
) -> None:
    for number in range(3):
        copy = tmp_path / f"lib{number}.so"
        copy.write_bytes(library.read_bytes())
        words, _ = loaded.load(TGID, copy, nth=number)
        loaded.write(TGID, words, RESOLVER, (1 << 64) - 8 * (number + 1))
    contexts.look_at(TGID, 0)
    contexts.look_at(TGID, 1)  # those that are known are not counted again
    assert [offset for _, offset, *_ in entry(table)] == [-8, -16]
    assert contexts.counters["thread_context_ignored"] == 2


def test_a_full_table_is_counted(loaded: Loaded, library: Path) -> None:
    contexts = ThreadContexts(FakeTable(capacity=0), FakeTable(), BTF, proc=loaded.proc)
    words, _ = loaded.load(TGID, library)
    loaded.write(TGID, words, *STATIC)
    contexts.look_at(TGID, 0)
    assert contexts.counters["thread_context_table_full"] == 1


def test_what_a_parent_waits_for_its_child_waits_for_too(
    contexts: ThreadContexts, loaded: Loaded, library: Path, table: FakeTable
) -> None:
    loaded.load(TGID, library)
    contexts.look_at(TGID, 0)
    words, _ = loaded.load(CHILD, library)
    contexts.inherit(TGID, CHILD)
    contexts.forget(TGID)
    loaded.write(CHILD, words, *STATIC)
    contexts.retry(1)
    assert len(entry(table, CHILD)) == 1
    assert contexts.publishers == {CHILD}
    contexts.forget(CHILD)
    assert table.entries == {} and contexts.publishers == set()


def test_a_process_that_ends_is_waited_for_no_longer(
    contexts: ThreadContexts, loaded: Loaded, library: Path
) -> None:
    loaded.load(TGID, library)
    contexts.look_at(TGID, 0)
    (loaded.proc / str(TGID) / "mem").unlink()
    contexts.retry(1)
    assert contexts.due_in(1) is None


WORD = st.one_of(
    st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 20), st.integers((1 << 64) - (1 << 32), (1 << 64) - 1)
)


@given(words=st.lists(WORD, min_size=3, max_size=3), library=st.sampled_from(["GLIBC", "MUSL"]))
def test_whatever_the_words_are_a_place_is_within_bounds(words: list[int], library: str) -> None:
    def read(address: int, count: int) -> tuple[int, ...]:
        return tuple(words[:count])

    for place in (
        thread_context._static(words[0]),
        thread_context._dynamic(library, words[0], words[1]),
        thread_context._described(library, words[2], read),
    ):
        if place is not None:
            check(place, library)


def check(place: VariableLocation, library: str) -> None:
    if place.access == "STATIC":
        assert -(1 << 30) < place.offset < 0 and place.module == 0
    else:
        assert place.access == library
        assert 0 < place.module < 1 << 16 and 0 <= place.offset < 1 << 30
        assert place.generation == 0 or library == "GLIBC"
