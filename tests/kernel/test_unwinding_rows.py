"""Rows of unwind tables that were found are kept: they are used again, and for no other place than theirs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.families.profiles.discover.unwind_tables import UnwindTables
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.profiling import ProfileKind
from tests.kernel.test_unwinding import KNOWN, Tables, build, observe, profiling
from tests.rig.unwind_rows import Cfa

KNOWN_ROWS = 16384
"""As of bpf/profile/unwind.h."""
ENDS = int(Cfa.END) << 48
"""``struct unwind_row`` as a word: the stack ends here."""
WORD = struct.Struct("<QQ")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stacks") / "stacks")


@pytest.fixture
def tables(kernel: None) -> Iterator[Tables]:
    with profiling(ProfileKind.CPU) as loaded:
        unwind = UnwindTables(loaded)
        yield loaded, unwind
        unwind.close()


def kept(loaded: LoadedFamily) -> dict[int, tuple[int, int]]:
    """Place → (check, row) of all that hold a row."""
    known = loaded.map("known_rows")
    found = {place: WORD.unpack(known.get(struct.pack("<I", place)) or b"") for place in range(KNOWN_ROWS)}
    return {place: (check, row) for place, (check, row) in found.items() if row}


def test_a_row_is_not_taken_for_another_place_s(tables: Tables, program: Path) -> None:
    loaded, _ = tables
    for place in range(KNOWN_ROWS):
        loaded.map("known_rows").put(struct.pack("<I", place), WORD.pack(place, ENDS))
    seen = observe(tables, program, "recursion")
    assert seen.share(KNOWN["recursion"]) > 0.9, seen


def test_a_row_that_was_found_is_used_again(tables: Tables, program: Path) -> None:
    """Seen by what becomes of stacks when another row is put in its place."""
    loaded, _ = tables
    assert observe(tables, program, "recursion").share(KNOWN["recursion"]) > 0.9
    found = kept(loaded)
    assert len(found) > 5
    for place, (check, row) in found.items():
        loaded.map("known_rows").put(struct.pack("<I", place), WORD.pack(check ^ row ^ ENDS, ENDS))
    assert observe(tables, program, "recursion").share(KNOWN["recursion"]) < 0.1
