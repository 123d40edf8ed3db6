"""Rows that are equal but for their time are one: those, and of the sums, that a comparison of their bytes finds."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.profiles.span_links import LINKED_ROW, LinkedRows, LinkState
from otelgpu.families.profiles.sums import summed
from tests.rig.examples import examples

TELLING = (
    *("tgid", "tid", "stack", "waker_stack", "waker_tgid", "leaf", "label", "state", "name"),
    *("trace_id", "span_id", "resource", "series"),
)
OTHERS = ("time_ns", "value", "owner", "context_source", "trace_flags", "link")


@st.composite
def rows(draw: st.DrawFn) -> LinkedRows:
    """Of a few values a column, near zero, far from it, or both."""
    count = draw(st.integers(0, 40))
    found = np.zeros(count, dtype=LINKED_ROW)
    for name in draw(st.lists(st.sampled_from((*TELLING, *OTHERS)), unique=True)):
        dtype = LINKED_ROW[name]
        few = st.lists(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize), min_size=1, max_size=3)
        near = st.just([number.to_bytes(dtype.itemsize, "big") for number in range(3)])
        values = draw(st.one_of(few, near))
        chosen = draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
        found[name] = np.frombuffer(b"".join(chosen), dtype=dtype)
    found["time_ns"] >>= np.uint64(2)  # a clock that counts nanoseconds does not come so far
    found["value"] >>= 8
    return found


@examples(100)
@given(rows(), st.sampled_from([1, 7, 1 << 62]))
def test_sums_are_those_of_rows_whose_bytes_are_equal(given_rows: LinkedRows, length_ns: int) -> None:
    expected: dict[tuple[bytes | int, ...], list[tuple[int, int]]] = defaultdict(list)
    for row in given_rows:
        key = (*(row[name].tobytes() for name in TELLING), int(row["time_ns"]) // length_ns)
        expected[key].append((int(row["time_ns"]), int(row["value"])))
    found = summed(given_rows, 0, length_ns)
    assert {
        (*(row[name].tobytes() for name in TELLING), int(row["time_ns"]) // length_ns): (
            int(row["time_ns"]),
            int(row["value"]),
        )
        for row in found
    } == {key: (min(time for time, _ in some), sum(v for _, v in some)) for key, some in expected.items()}
    assert len(found) == len(expected)
    assert (found["link"] == LinkState.SETTLED).all()
