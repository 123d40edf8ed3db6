"""The library parts rows, and tells their owners apart, as numpy does, whatever rows claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.attribution.pending import _owners_by_numpy
from otelgpu.engine.operation_intake import _split_by_numpy, split
from otelgpu.model.context_sources import PUBLISHED, ContextSource
from otelgpu.model.operations import OPERATION, OperationKind, Operations
from otelgpu.spanwriter.ingest import owners_of
from otelgpu.spanwriter.library import library
from tests.rig.examples import examples

MOST = (1 << 63) - 1
OWNERS = st.one_of(st.integers(1, 4), st.integers(-MOST - 1, MOST))
FEW = st.lists(OWNERS, max_size=200)


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    assert library() is not None, "make bpf builds it"


@st.composite
def calls(draw: Any) -> tuple[Operations, np.ndarray]:
    """Random bytes, with few values of what parts them; in half of the draws nothing special among them."""
    owners = np.array(draw(FEW), dtype=np.int64)
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    rows = np.frombuffer(random.bytes(len(owners) * OPERATION.itemsize), dtype=OPERATION).copy()
    for name, values in {
        "kind": list(OperationKind),
        "tgid": [1, 7, (1 << 32) - 1],
        "status": [0, 0, -1, 1],
        "returned": [0, 1, 2],
        "start_ns": [0, 5, (1 << 64) - 1],
        "context_source": draw(
            st.sampled_from([[0, 3], range(256), [int(ContextSource.TASK)], [int(PUBLISHED[0])]])
        ),
    }.items():
        rows[name] = random.choice(np.array(values, dtype=rows.dtype[name]), len(rows))
    if draw(st.booleans()):
        owners = np.maximum(owners, 1)
    return rows, owners


def as_values(parts: Any) -> Any:
    rows, owners, found, plain = parts
    named = [(p.tgid, p.family, p.kind, p.failed, p.rows.tobytes()) for p in found]
    return rows.tobytes(), owners.tolist(), named, plain


@examples(100)
@given(calls(), st.integers(0, 255))
def test_the_library_parts_rows_as_numpy_does(given_: tuple[Operations, np.ndarray], family: int) -> None:
    rows, owners = given_
    before = rows.tobytes()
    found, expected = split(rows, owners.copy(), family), _split_by_numpy(rows, owners.copy(), family)
    assert as_values(found) == as_values(expected)
    assert rows.tobytes() == before, "they may be somebody else's"


@examples(100)
@given(calls())
def test_the_library_tells_owners_apart_as_numpy_does(given_: tuple[Operations, np.ndarray]) -> None:
    rows, owners = given_
    if not len(rows):
        return
    found, expected = owners_of(rows, owners), _owners_by_numpy(rows, owners)
    for column in ("keys", "first", "count", "last_ns", "codes"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist(), column


def test_each_row_may_be_a_part_and_have_an_owner_of_its_own() -> None:
    rows = np.zeros(5000, dtype=OPERATION)
    rows["kind"], rows["tgid"] = OperationKind.LAUNCH, np.random.default_rng(1).permutation(5000)
    owners = rows["tgid"].astype(np.int64) - 2500
    made, kept, parts, plain = split(rows, owners.copy(), 0)
    assert [part.tgid for part in parts] == made["tgid"].tolist() == list(range(5000))
    assert (kept.tolist(), plain) == (list(range(-2500, 2500)), False)
    assert owners_of(rows, owners).keys.tolist() == list(range(-2500, 2500))


def test_nothing_has_no_parts() -> None:
    nothing = np.zeros(0, dtype=OPERATION), np.zeros(0, dtype=np.int64)
    assert split(*nothing, 0)[2] == []
    assert owners_of(*nothing).keys.tolist() == []
