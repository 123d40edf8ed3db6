"""Parts of a step's time: they add up, whatever overlaps, and each instant is what it is said to be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.call_roles import Role
from otelgpu.families.steps.training.breakdown import parts_of, waits_for_communication
from otelgpu.families.steps.training.notes import NOTE, Notes
from otelgpu.families.steps.training.step import StepParts
from tests.rig.examples import examples

CALLS = (Role.LAUNCH, Role.COPY, Role.D2H_COPY_QUEUED, Role.RECORD)
ALL = (
    *CALLS,
    Role.H2D_COPY,
    Role.H2D_COPY_QUEUED,
    Role.D2H_COPY,
    Role.WAIT_EVENT,
    Role.WAIT_STREAM,
    Role.WAIT_DEVICE,
    Role.FILE,
)
COLLECTIVE = Role.OTHER
START, END = 1000, 2000


def note(
    role: Role, start: int, end: int, *, tid: int = 1, stream: int = 7, run: bool = False
) -> tuple[int, ...]:
    """A call; a collective where the role is COLLECTIVE."""
    return start, end, int(role is COLLECTIVE), stream, 8, tid, -1, int(role), 0, run


def notes(*calls: tuple[int, ...]) -> Notes:
    return np.array(list(calls), dtype=NOTE)


def parts(*calls: tuple[int, ...]) -> StepParts:
    (found,) = parts_of(
        notes(*calls), np.zeros(len(calls), dtype=np.int64), np.array([START]), np.array([END])
    )
    return found


def test_each_part_is_reported() -> None:
    assert parts(
        note(Role.H2D_COPY_QUEUED, 1100, 1150),
        note(Role.LAUNCH, 1200, 1210),
        note(COLLECTIVE, 1210, 1230, stream=9),
        note(Role.WAIT_STREAM, 1300, 1500, stream=9),
        note(Role.WAIT_STREAM, 1500, 1700, stream=7),
    ) == StepParts(
        call_ns=30,
        h2d_copy_ns=50,
        communication_wait_ns=200,
        other_wait_ns=200,
        data_loader_stall_ns=100,
        host_overhead_ns=50 + 70 + 300,
    )


def test_a_file_counts_where_its_thread_does_nothing_else() -> None:
    assert parts(
        note(Role.FILE, 1000, 1080),
        note(Role.H2D_COPY_QUEUED, 1100, 1150),
        note(Role.FILE, 1140, 1200),
        note(Role.LAUNCH, 1300, 1310),
        note(Role.FILE, 1400, 1900, tid=2),  # which queues no work: a data loader's
    ) == StepParts(
        call_ns=10, h2d_copy_ns=50, file_ns=80 + 50, data_loader_stall_ns=20, host_overhead_ns=100 + 690
    )


def test_of_a_program_that_computes_itself_the_main_thread_counts() -> None:
    assert parts(
        note(Role.DATA_LOADER, 1000, 1100),
        note(Role.FILE, 1020, 1050),
        note(Role.BACKWARD, 1300, 1800),
        note(COLLECTIVE, 1350, 1700, tid=2, run=True),
        note(Role.COMMUNICATION_WAIT, 1600, 1720),
    ) == StepParts(
        data_loader_stall_ns=70, file_ns=30, communication_wait_ns=120, host_overhead_ns=200 + 300 + 280
    )


def test_collectives_that_nobody_runs_beside_are_waits_for_the_others() -> None:
    assert parts(note(COLLECTIVE, 1350, 1700, run=True)) == StepParts(
        communication_wait_ns=350, host_overhead_ns=650
    )


def test_a_wait_counts_while_nobody_does_anything_else() -> None:
    found = parts(
        note(Role.LAUNCH, 1000, 1001),
        note(Role.WAIT_EVENT, 1100, 1900),
        note(Role.LAUNCH, 1200, 1300, tid=2),
        note(Role.H2D_COPY, 1250, 1400, tid=2),
    )
    assert (found.call_ns, found.h2d_copy_ns, found.wait_ns) == (101, 100, 600)


def test_a_thread_that_only_waits_is_passed_over() -> None:
    assert parts(note(Role.LAUNCH, 1000, 1010), note(Role.WAIT_EVENT, 1000, 2000, tid=3)).wait_ns == 0


def test_what_lasts_longer_than_its_step_is_cut() -> None:
    assert parts(note(Role.LAUNCH, 1900, 5000)).call_ns == 100


def test_a_step_without_calls_is_host_overhead() -> None:
    assert parts() == StepParts(host_overhead_ns=END - START)


def test_a_wait_for_the_device_is_for_its_last_work() -> None:
    launch, collective = note(Role.LAUNCH, 1, 2), note(COLLECTIVE, 3, 6, stream=9)
    own = note(Role.LAUNCH, 4, 5, stream=9)  # within the collective's call
    wait, later = note(Role.WAIT_DEVICE, 10, 20), note(Role.LAUNCH, 8, 9)
    for calls, expected in (
        ((launch, collective, wait), True),
        ((launch, collective, own, wait), True),
        ((launch, collective, later, wait), False),
        ((launch, wait), False),
    ):
        found = waits_for_communication(notes(*calls), np.zeros(len(calls), dtype=np.int64))
        assert found[-1] == expected


def test_default_streams_are_one() -> None:
    calls = note(COLLECTIVE, 1, 2, stream=0), note(Role.WAIT_STREAM, 3, 4, stream=2)
    assert waits_for_communication(notes(*calls), np.zeros(2, dtype=np.int64)).tolist() == [False, True]


@examples(25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*ALL, COLLECTIVE]),
            st.integers(0, 299),
            st.integers(0, 120),
            st.integers(1, 3),
            st.sampled_from([0, 7, 9]),
        ),
        max_size=25,
    )
)
def test_parts_add_up_and_are_what_each_instant_is(drawn: list[tuple[Role, int, int, int, int]]) -> None:
    """Against one look at every nanosecond of three steps of 100, of which the last two touch."""
    starts, ends = np.array([0, 110, 210]), np.array([100, 210, 300])
    calls = [note(role, at, at + took, tid=tid, stream=stream) for role, at, took, tid, stream in drawn]
    of = [next((i for i in range(3) if starts[i] <= call[0] < ends[i]), -1) for call in calls]
    calls, step = [c for c, i in zip(calls, of, strict=True) if i >= 0], [i for i in of if i >= 0]
    found = parts_of(notes(*calls), np.array(step, dtype=np.int64), starts, ends)
    communication = waits_for_communication(notes(*calls), np.array(step, dtype=np.int64))
    for i, each in enumerate(found):
        assert each.total_ns == ends[i] - starts[i]
        mine = [
            (call, bool(flag)) for call, flag, s in zip(calls, communication, step, strict=True) if s == i
        ]
        assert each == looked_at(mine, int(starts[i]), int(ends[i]))


def looked_at(calls: list[tuple[tuple[int, ...], bool]], start: int, end: int) -> StepParts:
    """The same by looking at each nanosecond."""
    works = {*CALLS[:3], Role.H2D_COPY, Role.H2D_COPY_QUEUED, Role.D2H_COPY}
    drivers = {call[5] for call, _ in calls if call[2] or Role(call[7]) in works}
    sums = dict.fromkeys(("call", "h2d_copy", "communication", "wait", "file", "stall", "overhead"), 0)
    calls = [(call, flag) for call, flag in calls if call[5] in drivers]
    for now in range(start, end):
        under_way = {_class(call, flag) for call, flag in calls if call[0] <= now < call[1]}
        kind = next((kind for kind in sums if kind in under_way), "overhead")
        if kind == "overhead":
            following = min((call[0] for call, _ in calls if call[0] > now), default=end)
            next_calls = {_class(call, flag) for call, flag in calls if call[0] == following}
            kind = "stall" if "h2d_copy" in next_calls else "overhead"
        sums[kind] += 1
    return StepParts(
        call_ns=sums["call"],
        h2d_copy_ns=sums["h2d_copy"],
        communication_wait_ns=sums["communication"],
        other_wait_ns=sums["wait"],
        file_ns=sums["file"],
        data_loader_stall_ns=sums["stall"],
        host_overhead_ns=sums["overhead"],
    )


def _class(call: tuple[int, ...], communication: bool) -> str:
    if call[7] == Role.FILE:
        return "file"
    if call[7] in (Role.H2D_COPY, Role.H2D_COPY_QUEUED):
        return "h2d_copy"
    if call[7] in (Role.D2H_COPY, Role.WAIT_EVENT, Role.WAIT_STREAM, Role.WAIT_DEVICE):
        return "communication" if communication else "wait"
    return "call"
