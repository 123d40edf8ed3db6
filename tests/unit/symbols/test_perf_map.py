"""What JIT compilers write for perf: the last line for a place counts, and anything may be in the file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.symbols import perf_map
from otelgpu.symbols.perf_map import PerfMap

TEXT = b"7f0000001000 80 LazyCompile:*fib /app/fib.js:1\n7f0000001080 40 py::main:/app/main.py\n"


def test_functions_are_found_by_any_of_their_addresses() -> None:
    functions = PerfMap(TEXT)
    assert functions.name_at(0x7F0000001000) == "LazyCompile:*fib /app/fib.js:1"
    assert functions.name_at(0x7F000000107F) == "LazyCompile:*fib /app/fib.js:1"
    assert functions.name_at(0x7F0000001080) == "py::main:/app/main.py"
    assert functions.name_at(0x7F00000010C0) is None
    assert functions.name_at(0x7F0000000FFF) is None
    assert not functions.counters


def test_code_that_was_replaced_has_its_later_name() -> None:
    functions = PerfMap(TEXT + b"7f0000001000 20 newer\n7f0000001040 20 middle\n")
    assert functions.name_at(0x7F0000001010) == "newer"
    assert functions.name_at(0x7F0000001030) is not None  # of the old one, as far as it reaches
    assert functions.name_at(0x7F0000001050) == "middle"


def test_code_that_begins_before_and_was_written_later_counts() -> None:
    assert PerfMap(b"2000 10 older\n1000 2000 newer\n").name_at(0x2005) == "newer"
    assert PerfMap(b"1000 2000 older\n2000 10 newer\n").name_at(0x2005) == "newer"


def test_a_line_that_is_being_written_is_left_for_later() -> None:
    functions = PerfMap(TEXT + b"7f0000002000 10 half a na")
    assert functions.name_at(0x7F0000002000) is None and not functions.counters


def test_damaged_lines_are_counted_and_passed_over() -> None:
    bad = (
        b"\nhello\nxyz 10 name\n10\n-5 10 negative\n1000 0 empty\n1000 ffffffffffffff endless\n%s 1 far\n"
        % (b"f" * 40)
    )
    functions = PerfMap(bad + TEXT)
    assert functions.counters == {"jit_lines_damaged": 8}
    assert functions.name_at(0x7F0000001000) is not None and len(functions) == 2


def test_names_are_bounded_and_can_be_shown() -> None:
    functions = PerfMap(b"1000 10 " + b"a" * 5000 + b"\n2000 10 b\x1b[31m\xff\n3000 10  \n")
    assert functions.name_at(0x1000) == "a" * 1024
    assert functions.name_at(0x2000) == "b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    assert functions.name_at(0x3000) is None


@pytest.mark.slow
def test_what_is_too_much_is_cut_and_counted() -> None:
    functions = PerfMap(b"1000 10 a\n" * (perf_map.MAX_FUNCTIONS + 1))
    assert len(functions) == perf_map.MAX_FUNCTIONS
    assert functions.counters == {"jit_lines_cut": 1}


def test_what_is_no_map_is_soon_given_up() -> None:
    functions = PerfMap(b"1000 10 a\n" + b"\n" * (perf_map.MAX_BYTES - 100) + b"2000 10 b\n")
    assert functions.counters == {"jit_lines_damaged": perf_map.MAX_DAMAGED, "jit_lines_cut": 1}
    assert functions.name_at(0x1008) == "a"
    assert functions.name_at(0x2008) is None


@given(st.binary(max_size=300), st.integers(-(2**65), 2**65))
def test_any_bytes_are_read(text: bytes, address: int) -> None:
    PerfMap(text).name_at(address)


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 8), st.sampled_from("abcdef")), min_size=1, max_size=12
    ),
    st.integers(0, 16),
)
def test_of_lines_that_overlap_the_last_counts(found: list[tuple[int, int, str]], address: int) -> None:
    text = "".join(f"{start:x} {size:x} {name}\n" for start, size, name in found)
    holding = [name for start, size, name in found if start <= address < start + size]
    assert PerfMap(text.encode()).name_at(address) == (holding[-1] if holding else None)
