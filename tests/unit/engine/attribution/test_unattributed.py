"""Work without a request: one trace per process and window, exact and bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine import names, registry
from otelgpu.engine.attribution import unattributed as module
from otelgpu.engine.attribution.unattributed import GRACE_NS, WINDOW_NS, ClosedWindows, UnattributedWindows
from otelgpu.engine.totals import Totals
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.resource import resource
from otelgpu.model.settings import SignalSettings
from tests.unit.families.records import btf
from tests.unit.model.builders import MS, Row, any_calls, calls, read_out

CUDA = registry.families()["cuda"]
assert CUDA.operations is not None
TOTALS = Totals([(CUDA.operations.decoder(btf("cuda"), SignalSettings()), CUDA.operations.signals)])
S = 1_000 * MS


def opened(**options: Any) -> UnattributedWindows:
    return UnattributedWindows(TOTALS, **({"limit": 100, "runs": True} | options))


def add(windows: UnattributedWindows, rows: Operations, reason: str = "no_request") -> None:
    windows.add(rows, np.full(len(rows), names.UNATTRIBUTED_REASONS.index(reason)))


def closed(windows: UnattributedWindows, now_ns: int, *, final: bool = False) -> ClosedWindows | None:
    def owner(tgid: int) -> Any:
        return resource({"process.pid": tgid})

    return windows.close(now_ns, owner, seed=1, offset_ns=10**18, final=final)


def roots(found: ClosedWindows | None) -> list[Row]:
    return [] if found is None else read_out(found.roots)


def at(*ends_ns: int, **columns: Any) -> Operations:
    """Calls of 1 ms that end then."""
    return calls(len(ends_ns), start_ns=[end - MS for end in ends_ns], **columns)


def test_nothing_gives_nothing() -> None:
    assert closed(opened(), 100 * S, final=True) is None


def test_a_window_of_a_users_probes_alone_is_no_gpu_work() -> None:
    windows = opened()
    add(windows, at(2 * S, kind=OperationKind.PROBE))
    add(windows, at(7 * S, kind=OperationKind.PROBE))
    add(windows, at(8 * S))
    assert [root.name for root in roots(closed(windows, 100 * S))] == [
        "unattributed probe hits",
        "unattributed gpu work",
    ]


def test_a_window_is_reported_a_grace_after_its_end() -> None:
    windows = opened()
    add(windows, at(2 * S, 4 * S))
    assert closed(windows, WINDOW_NS + GRACE_NS - 1) is None
    (root,) = roots(closed(windows, WINDOW_NS + GRACE_NS))
    assert (root.name, root.start_ns - 10**18, root.end_ns - 10**18) == (
        "unattributed gpu work",
        2 * S - MS,
        4 * S,
    )
    assert closed(windows, 100 * S, final=True) is None


def test_at_the_end_every_window_is_reported() -> None:
    windows = opened()
    add(windows, at(2 * S, 7 * S, 12 * S))
    assert len(roots(closed(windows, 3 * S, final=True))) == 3


def test_a_call_belongs_to_the_window_in_which_it_ended() -> None:
    windows = opened()
    add(windows, calls(1, start_ns=4 * S, duration_ns=2 * S))
    assert closed(windows, WINDOW_NS + GRACE_NS) is None
    assert len(roots(closed(windows, 2 * WINDOW_NS + GRACE_NS))) == 1


def test_a_call_of_a_window_that_was_reported_joins_the_next_one() -> None:
    windows = opened()
    add(windows, at(2 * S))
    first = roots(closed(windows, 20 * S))
    add(windows, at(3 * S))
    second = roots(closed(windows, 30 * S))
    assert len(first) == len(second) == 1
    assert first[0].span_id != second[0].span_id


def test_processes_and_reasons_are_apart() -> None:
    windows = opened()
    add(windows, at(S, S, tgid=[100, 200]))
    add(windows, at(S, tgid=100), "ambiguous")
    add(windows, at(S, tgid=100), "unanswered")
    found = roots(closed(windows, 0, final=True))
    assert [(r.resource.get("process.pid"), r["otelgpu.unattributed.reason"]) for r in found] == [
        (100, "no_request"),
        (100, "ambiguous"),
        (100, "unanswered"),
        (200, "no_request"),
    ]
    assert len({r.trace_id for r in found}) == 4
    assert not any(r.trace_id.endswith(r.span_id) for r in found)


def test_the_calls_point_at_their_windows_root() -> None:
    windows = opened()
    add(windows, at(S, 2 * S, S, tgid=[200, 200, 100]))
    found = closed(windows, 0, final=True)
    assert found is not None
    by_root = {root.span_id: root.resource.get("process.pid") for root in roots(found)}
    owners = [by_root[found.parents.span_id[group].tobytes().hex()] for group in found.work.group]
    assert owners == found.work.operations["tgid"].tolist()


@given(st.lists(any_calls(), max_size=8), st.integers(1, 6))
def test_folding_on_the_way_keeps_every_sum(parts: list[Operations], limit: int) -> None:
    windows = opened(limit=limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FOLD_AT_LEAST", 5)
        for rows in parts:
            rows["duration_ns"] = 1
            add(windows, rows)
        found = closed(windows, 0, final=True)
    everything = np.concatenate([calls(0), *parts])
    if not len(everything):
        assert found is None
        return
    assert found is not None
    (root,) = roots(found)
    sums = TOTALS.by_group(everything, np.zeros(len(everything), np.int64), 1)
    expected = {a.key: a.values[0] for a in TOTALS.attributes(sums)}
    assert {key: root.get(key) for key in expected} == expected
    assert found.work.count.sum() == len(everything)
    assert found.work.operations["size_bytes"].sum() == everything["size_bytes"].sum()
    assert root.start_ns - 10**18 == everything["start_ns"].min()
    assert root.end_ns - 10**18 == (everything["start_ns"] + everything["duration_ns"]).max()


def test_a_storm_of_equal_calls_costs_no_memory() -> None:
    windows = opened()
    for _ in range(20):
        add(windows, calls(5000, start_ns=np.arange(5000)))
    assert sum(held.rows for held in windows._open.values()) <= 2 * 8192


def test_calls_stay_apart_where_runs_are_not_wanted() -> None:
    windows = opened(runs=False)
    add(windows, calls(5))
    found = closed(windows, 0, final=True)
    assert found is not None
    assert found.work.count.tolist() == [1] * 5
