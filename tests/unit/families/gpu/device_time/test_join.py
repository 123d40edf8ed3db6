"""Device activities find their host calls: examples, and a naive model over random arrivals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.gpu.device_time import join as device_time
from otelgpu.families.gpu.device_time.join import WINDOW_NS, DeviceTime
from otelgpu.model.device_work import ACTIVITY, Activities, DeviceWork, Work, correlations, join_work
from otelgpu.model.operations import OperationKind, Operations
from tests.unit.model.builders import MS, calls

LAUNCH, COPY = OperationKind.LAUNCH, OperationKind.COPY


def activities(*ids: int, **columns: Any) -> Activities:
    """A kernel of 5 µs of process 100 for each correlation id, 1 ms apart from 1 s on."""
    rows = np.zeros(len(ids), dtype=ACTIVITY)
    rows["correlation"], rows["tgid"], rows["work"] = ids, 100, Work.KERNEL
    rows["start_ns"] = 1000 * MS + np.arange(len(ids)) * MS
    rows["duration_ns"] = 5000
    for column, value in columns.items():
        rows[column] = value
    return rows


def launches(*ids: int, **columns: Any) -> tuple[Operations, Any]:
    """Launches that said these ids, and what correlations() makes of them."""
    rows = calls(len(ids), other=np.array(ids, np.uint64), **columns)
    return rows, correlations(rows)


def pairs(work: DeviceWork) -> list[tuple[int, int, int]]:
    """(correlation id, host start, device start), sorted."""
    columns = (work["correlation"], work["start_ns"], work["device_start_ns"])
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def test_the_example_of_the_docstring() -> None:
    join = DeviceTime()
    join.add_calls(*launches(7, tgid=1, tid=9, start_ns=100), now_ns=0)
    join.add_activities(activities(7, 8, tgid=1, start_ns=[150, 170]), now_ns=0)
    (row,) = join.take(0)
    assert (row["start_ns"], row["tid"], row["device_start_ns"]) == (100, 9, 150)
    assert join.counters == {}
    assert len(join.take(WINDOW_NS)) == 0
    assert join.counters == {"activities_without_call": 1}


def test_a_row_has_the_calls_head_and_the_works_payload() -> None:
    join = DeviceTime()
    call = calls(kind=COPY, caller=5, stream=0xABC, api=17, size_bytes=1, family=3, cgroup_id=8)
    join.add_calls(call, correlations(call), now_ns=0)
    reported = activities(5, work=Work.COPY, size_bytes=4096, graph_node=77, graph=3, stream_id=13, device=2)
    reported["sampled"], reported["name"] = 250_000, 1 << 60
    join.add_activities(reported, now_ns=0)
    (row,) = join.take(0)
    assert [int(row[c]) for c in ("tgid", "tid", "kind", "family", "api", "stream")] == [
        *(100, 101, COPY, 3, 17, 0xABC)
    ]
    assert (row["start_ns"], row["device_start_ns"], row["duration_ns"]) == (10 * MS, 1000 * MS, 5000)
    assert [int(row[c]) for c in ("work", "size_bytes", "graph_node", "graph", "stream_id", "device")] == [
        *(Work.COPY, 4096, 77, 3, 13, 2)
    ]
    assert (row["sampled"], row["name_id"], row["name"]) == (250_000, 1 << 60, 0)


@pytest.mark.parametrize(
    ("kind", "slot"),
    [
        (LAUNCH, "other"),
        (COPY, "caller"),
        (OperationKind.SET, "caller"),
        (OperationKind.GRAPH_LAUNCH, "caller"),
    ],
)
def test_each_kind_says_its_ids_in_its_free_slot(kind: OperationKind, slot: str) -> None:
    reported = correlations(calls(kind=kind, **{slot: 3 | 4 << 32}))
    assert reported.tolist() == [3 | 4 << 32]


def test_other_calls_use_these_slots_for_something_else() -> None:
    rows = calls(2, kind=[OperationKind.ALLOCATION, OperationKind.MAPPING], caller=99, other=98)
    assert correlations(rows).tolist() == [0, 0]


def test_all_kernels_of_a_graph_launch_find_it_even_in_several_deliveries() -> None:
    join = DeviceTime()
    rows = calls(kind=OperationKind.GRAPH_LAUNCH, caller=6)
    join.add_calls(rows, correlations(rows), now_ns=0)
    found = []
    for delivery in range(3):
        join.add_activities(activities(6, 6, 6, graph_node=[1, 2, 3]), now_ns=delivery)
        found.append(len(join.take(delivery)))
    assert found == [3, 3, 3]
    join.take(WINDOW_NS)
    assert join.counters == {}


def test_an_activity_may_come_before_its_call() -> None:
    join = DeviceTime()
    join.add_activities(activities(7), now_ns=0)
    assert len(join.take(0)) == 0
    join.add_calls(*launches(7), now_ns=WINDOW_NS // 2)
    assert len(join.take(WINDOW_NS // 2)) == 1


def test_an_id_of_a_call_within_the_call_is_its_too() -> None:
    join = DeviceTime()
    join.add_calls(*launches(7 | 8 << 32), now_ns=0)
    join.add_activities(activities(8), now_ns=0)
    assert pairs(join.take(0)) == [(8, 10 * MS, 1000 * MS)]


def test_equal_ids_of_two_processes_are_two() -> None:
    join = DeviceTime()
    join.add_calls(*launches(7, 7, tgid=[1, 2]), now_ns=0)
    join.add_activities(activities(7, 7, tgid=[2, 1]), now_ns=0)
    assert pairs(join.take(0)) == [(7, 10 * MS, 1001 * MS), (7, 20 * MS, 1000 * MS)]


def test_an_id_that_is_used_again_means_the_last_call_before_the_work() -> None:
    join = DeviceTime()
    join.add_calls(*launches(7, 7, 7, start_ns=[10 * MS, 500 * MS, 900 * MS]), now_ns=0)
    join.add_activities(activities(7, 7, 7, start_ns=[20 * MS, 500 * MS - 1000, 2 * MS]), now_ns=0)
    # The second began a microsecond before its call by our clock: within the error of the conversion.
    assert pairs(join.take(0)) == [(7, 10 * MS, 20 * MS), (7, 500 * MS, 500 * MS - 1000)]


def test_calls_without_activity_are_counted_once() -> None:
    join = DeviceTime()
    join.add_calls(*launches(7, 8, 0), now_ns=0)
    join.add_activities(activities(7), now_ns=0)
    join.take(0)
    for later in (WINDOW_NS, 2 * WINDOW_NS):
        join.take(later)
    assert join.counters == {"calls_without_activity": 1}


def test_the_end_of_the_session_waits_for_nothing() -> None:
    join = DeviceTime()
    join.add_calls(*launches(7), now_ns=5)
    join.add_activities(activities(8), now_ns=5)
    join.take(6, final=True)
    assert join.counters == {"calls_without_activity": 1, "activities_without_call": 1}


def test_a_process_that_ended_leaves_nothing_for_the_next_of_its_number() -> None:
    join = DeviceTime()
    join.add_calls(*launches(7), now_ns=0)
    join.add_activities(activities(9), now_ns=0)
    join.forget_process(100)
    join.add_activities(activities(7), now_ns=1)
    assert len(join.take(1)) == 0
    assert join.counters == {"calls_without_activity": 1, "activities_without_call": 1}


def test_hostile_rows_are_counted() -> None:
    join = DeviceTime()
    join.add_activities(activities(7, 8, 0, work=[0, 999, Work.KERNEL]), now_ns=0)
    assert join.counters == {"activities_malformed": 3}


def test_memory_is_bounded_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_time, "ROWS", 10)
    join = DeviceTime()
    join.add_calls(*launches(*range(1, 9)), now_ns=0)
    join.add_calls(*launches(*range(9, 17)), now_ns=0)
    join.add_activities(activities(*range(5, 20)), now_ns=0)
    assert join.counters == {"calls_beyond_memory": 6, "activities_beyond_memory": 5}
    assert [row[0] for row in pairs(join.take(0))] == [5, 6, 7, 8, 9, 10]


ARRIVALS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(1, 2), st.integers(1, 6), st.integers(0, 6)),
        st.tuples(st.just("work"), st.integers(1, 2), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.integers(0, WINDOW_NS), st.just(0)),
    ),
    max_size=40,
)


@given(ARRIVALS)
def test_it_does_as_a_naive_join_whatever_the_batching(arrivals: list[tuple[str, int, int, int]]) -> None:
    join, now = DeviceTime(), 0
    waiting_calls: list[list[Any]] = []  # [arrived, tgid, ids, start, used]
    waiting_work: list[tuple[int, int, int, int]] = []  # arrived, tgid, id, start
    expected: list[tuple[int, int, int]] = []
    counters: Counter[str] = Counter()
    got = []
    for order, (what, tgid, number, inner) in enumerate([*arrivals, ("take", 0, WINDOW_NS, 0)]):
        time_ns = (order + 1) * 10 * MS
        if what == "call":
            reported = number | (inner << 32)
            join.add_calls(*launches(reported, tgid=tgid, start_ns=time_ns), now_ns=now)
            waiting_calls.append([now, tgid, {number, inner} - {0}, time_ns, False])
        elif what == "work":
            join.add_activities(activities(number, tgid=tgid, start_ns=time_ns), now_ns=now)
            waiting_work.append((now, tgid, number, time_ns))
        else:
            now += number
            got.append(join.take(now))
            for work in list(waiting_work):
                owners = [c for c in waiting_calls if c[1] == work[1] and work[2] in c[2]]
                if len(owners) > 1:
                    owners = [c for c in owners if c[3] <= work[3] + MS]
                if owners:
                    call = max(owners, key=lambda c: c[3])
                    call[4] = True
                    expected.append((work[2], call[3], work[3]))
                    waiting_work.remove(work)
            counters["activities_without_call"] += sum(w[0] <= now - WINDOW_NS for w in waiting_work)
            waiting_work = [w for w in waiting_work if w[0] > now - WINDOW_NS]
            counters["calls_without_activity"] += sum(
                c[0] <= now - WINDOW_NS and not c[4] for c in waiting_calls
            )
            waiting_calls = [c for c in waiting_calls if c[0] > now - WINDOW_NS]
    assert pairs(join_work(got)) == sorted(expected)
    assert join.counters == +counters
