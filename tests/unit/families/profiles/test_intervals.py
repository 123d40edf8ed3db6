"""Rows of profiles into columns by interval, process and sample type; links; what is held and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.export.profiles import encode_profiles
from otelgpu.families.profiles import names
from otelgpu.families.profiles.intervals import LATE_NS, ProfileSession
from otelgpu.families.profiles.span_links import UNDECIDED
from otelgpu.families.profiles.stacks import StackTable
from otelgpu.model.context import UNSETTLED, Context, Unsettled
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.profiles import FrameType, ProfileColumns
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.resource import resource
from otelgpu.model.samples import Frame
from tests.rig.examples import examples
from tests.unit.export.profile_builders import parsed
from tests.unit.export.profile_conformance import broken_rules
from tests.unit.families.profiles.profile_builders import (
    UNIX,
    S,
    attribute,
    named,
    native,
    process,
    python,
    rows_of,
    session,
    spans_of,
    stacks_of,
)

STEP = Context(bytes(15) + b"\x05", bytes(7) + b"\x06", 1)
REQUEST = Context(bytes(15) + b"\x07", bytes(7) + b"\x08", 1)


def reported(of: ProfileSession, now_ns: int, *, final: bool = False) -> list[ProfileColumns]:
    of.report(now_ns, offset_ns=UNIX, final=final)
    return of.take()


def test_it_is_due_at_an_interval_s_end_or_while_rows_wait() -> None:
    waits: list[Unsettled] = [UNSETTLED]
    of = session(step_at=lambda tgid, tid, time_ns: waits[0] if waits else None)
    assert of.due_ns == 0  # the first interval has yet to begin
    reported(of, 5 * S)
    assert of.due_ns == 15 * S
    of.learn(named(1, "main"))
    of.take_rows(rows_of({"time_ns": 6 * S}))
    assert of.due_ns == 0
    reported(of, 7 * S)
    assert of.due_ns == 0  # its link is not known yet
    waits.clear()
    assert reported(of, 8 * S) == []
    assert of.due_ns == 15 * S
    assert reported(of, of.due_ns) == []
    assert of.due_ns == 15 * S + LATE_NS
    assert len(reported(of, of.due_ns)) == 1
    of.end_process(10, 16 * S)
    assert of.due_ns == 0
    reported(of, 17 * S)
    assert of.due_ns == 0  # what its threads did may be with the next tick
    reported(of, 18 * S)
    assert of.due_ns == 25 * S


def test_stacks_that_are_named_late_are_waited_for_as_long_as_an_interval() -> None:
    of = session()
    of.take_rows(rows_of({"time_ns": S}))
    assert reported(of, 12 * S) == []
    of.learn(named(1, "main"))
    assert reported(of, 12 * S + LATE_NS // 2) == []  # it is not looked at at each tick
    (only,) = reported(of, 12 * S + LATE_NS)
    assert stacks_of(only) == {("main",): 1}
    of.take_rows(rows_of({"time_ns": 13 * S, "stack": 2}))
    assert reported(of, 30 * S) == []
    (only,) = reported(of, 32 * S + LATE_NS)
    assert stacks_of(only) == {("[stack not kept]",): 1}
    assert of.counters["stack_not_kept"] == 1


def test_an_interval_is_one_batch_for_each_process_and_sample_type() -> None:
    of = session()
    of.learn(named(1, "leaf", "main"))
    of.learn(named(1, "other", tgid=20))
    of.take_rows(
        rows_of({"time_ns": 1 * S, "value": 5}, {"time_ns": 2 * S, "value": 6}, {"time_ns": S, "tgid": 20})
    )
    of.take_rows(rows_of({"time_ns": S}, kind=ProfileKind.SYSCALL, sample_type=names.SYSCALLS))
    assert reported(of, 5 * S) == []
    found = reported(of, 12 * S)
    assert {(each.resource.get("process.pid"), each.sample_type.type): stacks_of(each) for each in found} == {
        (10, "cpu"): {("leaf", "main"): 11},
        (20, "cpu"): {("other",): 1},
        (10, "syscalls"): {("leaf", "main"): 1},
    }
    cpu = found[0]
    assert (cpu.start_unix_ns, cpu.duration_ns, cpu.scope) == (UNIX + S, 10 * S, names.SCOPE)
    assert cpu.time_unix_ns is not None and cpu.time_unix_ns.tolist() == [UNIX + S, UNIX + 2 * S]
    assert reported(of, 100 * S, final=True) == []


def test_what_ends_the_session_ends_the_interval_at_that_time() -> None:
    of = session()
    of.take_rows(rows_of({"time_ns": 1 * S}))
    (only,) = reported(of, 3 * S, final=True)
    assert (only.start_unix_ns, only.duration_ns) == (UNIX + S, 2 * S + 1)


def test_every_profile_conforms_and_has_a_period() -> None:
    of = session(step_at=lambda *_: STEP)
    of.learn(named(1, native("leaf"), python("f"), Frame(type=FrameType.KERNEL, name="k", file="[kernel]")))
    of.take_rows(
        rows_of(
            {"time_ns": S, "name": b"worker", "state": 2, "leaf": 1, "label": 1},
            {"time_ns": S, "stack": 9},
            {"time_ns": S, "stack": 0},
            leaves=((Frame(type=FrameType.GPU, name="GPU: flash"),),),
            labels=((("otelgpu.syscall.name", "read"), ("n", 4)),),
        )
    )
    found = reported(of, 30 * S, final=True)
    for payload in encode_profiles(found):
        assert broken_rules(parsed(payload)) == []
    assert all(each.period and each.period_type.type for each in found)


def test_what_a_device_ran_is_the_leaf_above_the_launch() -> None:
    of = session()
    of.learn(named(1, "cudaLaunchKernel", "main"))
    leaves = tuple((Frame(type=FrameType.GPU, name=f"GPU: {name}"),) for name in ("a", "b"))
    of.take_rows(rows_of({"time_ns": S, "leaf": 2, "value": 7}, {"time_ns": S, "leaf": 0}, leaves=leaves))
    of.take_rows(rows_of({"time_ns": S, "leaf": 1, "value": 3}, leaves=leaves[1:]))
    (only,) = reported(of, 2 * S, final=True)
    assert stacks_of(only) == {("GPU: b", "cudaLaunchKernel", "main"): 10, ("cudaLaunchKernel", "main"): 1}
    assert only.locations[only.stacks[only.stack[0]][0]].frame_type is FrameType.GPU


def test_who_woke_a_thread_stands_above_what_it_waited_for_upside_down() -> None:
    of = session()
    of.learn(named(1, "futex_wait", "main"))
    of.learn(named(2, "wake", "worker", tgid=20))
    of.take_rows(rows_of({"time_ns": S, "waker_stack": 2, "waker_tgid": 20}))
    (only,) = reported(of, 2 * S, final=True)
    assert stacks_of(only) == {("worker", "wake", "[woken by]", "futex_wait", "main"): 1}


def test_stacks_that_were_not_named_or_not_taken_are_reported_as_such_and_counted() -> None:
    of = session()
    of.take_rows(rows_of({"time_ns": S, "stack": 7}, {"time_ns": S, "stack": 0}, {"time_ns": S, "stack": 7}))
    (only,) = reported(of, 2 * S, final=True)
    assert stacks_of(only) == {("[stack not kept]",): 2, ("[no stack]",): 1}
    assert of.counters["stack_not_kept"] == 2


def test_a_waker_whose_stack_was_not_named_is_reported_as_such_and_counted() -> None:
    of = session()
    of.learn(named(1, "futex_wait", "main"))
    of.take_rows(rows_of({"time_ns": S, "waker_stack": 2, "waker_tgid": 20}))
    (only,) = reported(of, 2 * S, final=True)
    assert stacks_of(only) == {("[stack not kept]", "[woken by]", "futex_wait", "main"): 1}
    assert of.counters["stack_not_kept"] == 1


def test_a_stack_that_is_not_complete_says_why_at_its_outer_end() -> None:
    of = session()
    of.learn(named(1, "leaf", truncated="too_deep"))
    of.take_rows(rows_of({"time_ns": S}))
    (only,) = reported(of, 2 * S, final=True)
    assert stacks_of(only) == {("leaf", "[truncated: too_deep]"): 1}


def test_a_profile_by_python_frames_has_no_others_and_none_of_stacks_without_them() -> None:
    of = session()
    of.learn(named(1, "sum", python("f"), "eval", python("g"), "start", truncated="no_row"))
    of.learn(named(2, "pure_c"))
    of.learn(named(3, python("f"), truncated="python_damaged"))
    of.take_rows(
        rows_of(
            {"time_ns": S},
            {"time_ns": S, "stack": 2},
            {"time_ns": S, "stack": 3},
            kind=ProfileKind.PYTHON,
            sample_type=names.PYTHON_CPU,
        )
    )
    (only,) = reported(of, 2 * S, final=True)
    assert stacks_of(only) == {("f", "g"): 1, ("f", "[truncated: python_damaged]"): 1}
    assert only.mappings == ()
    none = rows_of({"time_ns": 3 * S, "stack": 2}, kind=ProfileKind.PYTHON, sample_type=names.PYTHON_CPU)
    of.take_rows(none)
    assert reported(of, 4 * S, final=True) == []


def test_without_times_equal_observations_are_summed() -> None:
    of = session(keep_times=False)
    of.take_rows(rows_of(*({"time_ns": S + i, "value": i, "tid": 11 + i % 2} for i in range(10))))
    (only,) = reported(of, 2 * S, final=True)
    assert only.time_unix_ns is None
    assert sorted(zip(attribute(only, names.THREAD_ID), only.value.tolist(), strict=True)) == [
        (11, 20),
        (12, 25),
    ]


def test_attributes_are_on_the_rows_that_have_them() -> None:
    of = session()
    labels = ((("syscall", "read"),), (("syscall", "write"), ("size", 5)))
    of.take_rows(
        rows_of(
            {"time_ns": S, "name": b"main", "label": 2},
            {"time_ns": S, "state": 3, "label": 1, "tid": 0},
            {"time_ns": S, "label": 9},
            labels=labels,
        )
    )
    (only,) = reported(of, 2 * S, final=True)
    assert attribute(only, names.THREAD_NAME) == ["main", None, None]
    assert attribute(only, names.THREAD_ID) == [11, None, 11]
    assert attribute(only, names.THREAD_STATE) == [None, "uninterruptible", None]
    assert attribute(only, "syscall") == ["write", "read", None]
    assert attribute(only, "size") == [5, None, None]


# -- links ----------------------------------------------------------------------------------------


def owned_by(key: int) -> Any:
    return lambda tids, times_ns, final: np.full(len(tids), key, dtype=np.int64)


def test_what_the_process_published_comes_first_where_its_trace_is_sampled() -> None:
    of = session(owners_at=owned_by(4), span_of=lambda key, final: REQUEST)
    ids: dict[str, Any] = {"trace_id": np.full(16, 3), "span_id": np.full(8, 4)}
    published = {"context_source": ContextSource.THREAD_CONTEXT, **ids}
    of.take_rows(
        rows_of(
            {"time_ns": S, "trace_flags": 1, **published},
            {"time_ns": S, "trace_flags": 0, **published},
            {"time_ns": S, "trace_flags": 1, "context_source": ContextSource.THREAD, **ids},
        )
    )
    (only,) = reported(of, 2 * S, final=True)
    assert sorted(spans_of(only)) == sorted([bytes([4] * 8), bytes(8), REQUEST.span_id])


def test_a_row_waits_for_its_request_to_be_answered() -> None:
    answered: list[int] = []

    def span_of(key: int, final: bool) -> Context | Unsettled | None:
        return REQUEST if key in answered else UNSETTLED

    of = session(owners_at=owned_by(4), span_of=span_of)
    of.learn(named(1, "main"))
    of.take_rows(rows_of({"time_ns": S}))
    assert reported(of, 2 * S) == reported(of, 12 * S) == []
    answered.append(4)
    (only,) = reported(of, 12 * S)
    assert spans_of(only) == [REQUEST.span_id]


def test_an_interval_waits_no_longer_than_its_length() -> None:
    asked: list[bool] = []

    def span_of(key: int, final: bool) -> Context | Unsettled | None:
        asked.append(final)
        return STEP if final else UNSETTLED

    of = session(owners_at=owned_by(4), span_of=span_of)
    of.take_rows(rows_of({"time_ns": S}))
    assert reported(of, 2 * S) == reported(of, 20 * S) == []
    assert asked and not any(asked)
    (only,) = reported(of, 22 * S)
    assert spans_of(only) == [STEP.span_id]
    assert of.counters["profile_links_waited_for"] == 1


def test_of_no_request_a_row_is_of_the_step_that_its_thread_was_in() -> None:
    def step_at(tgid: int, tid: int, time_ns: int) -> Context | Unsettled | None:
        assert (tgid, tid) in ((10, 11), (10, 12))
        return STEP if 100 <= time_ns < 200 and tid == 11 else None

    of = session(step_at=step_at)
    times = [1, 99, 100, 150, 199, 200, 900]
    of.take_rows(rows_of(*({"time_ns": time, "tid": tid} for tid in (11, 12) for time in times)))
    (only,) = reported(of, S, final=True)
    assert only.time_unix_ns is not None
    found = {
        (tid, time - UNIX)
        for tid, time, span in zip(
            attribute(only, names.THREAD_ID), only.time_unix_ns.tolist(), spans_of(only), strict=True
        )
        if span == STEP.span_id
    }
    assert found == {(11, 100), (11, 150), (11, 199)}


def test_a_process_without_steps_is_not_asked_for_any() -> None:
    asked: list[int] = []

    def step_at(tgid: int, tid: int, time_ns: int) -> Context | Unsettled | None:
        asked.append(tgid)
        return STEP

    of = session(step_at=step_at, has_steps=lambda tgid: tgid == 10)
    of.take_rows(rows_of({"tgid": 10, "time_ns": S}, {"tgid": 20, "time_ns": S}))
    one, other = reported(of, S, final=True)
    assert set(asked) == {10}
    assert sorted(spans_of(one) + spans_of(other)) == [bytes(8), STEP.span_id]


def test_a_step_that_is_not_known_yet_is_asked_for_again() -> None:
    known: list[Context | Unsettled | None] = [UNSETTLED]
    of = session(step_at=lambda *_: known[-1])
    of.learn(named(1, "main"))
    of.take_rows(rows_of({"time_ns": S}, {"time_ns": 2 * S}))
    assert reported(of, 2 * S) == reported(of, 12 * S) == []
    known.append(STEP)
    (only,) = reported(of, 12 * S)
    assert spans_of(only) == [STEP.span_id] * 2


def test_of_a_process_that_ended_it_is_asked_for_the_last_time_a_tick_later() -> None:
    asked: list[bool] = []

    def owners_at(tids: Any, times_ns: Any, final: bool) -> Any:
        asked.append(final)
        return np.full(len(tids), 0 if final else UNDECIDED, dtype=np.int64)

    of = session(owners_at=owners_at)
    of.take_rows(rows_of({"time_ns": S}))
    of.end_process(10, S)
    reported(of, 2 * S)
    reported(of, 3 * S)
    assert asked == [False, True]


def test_work_of_several_requests_and_unsampled_ones_have_no_link() -> None:
    of = session(owners_at=owned_by(-1), step_at=lambda *_: None)
    of.take_rows(rows_of({"time_ns": S}))
    assert reported(of, 2 * S, final=True)[0].links is None
    of = session(owners_at=owned_by(4), span_of=lambda *_: REQUEST._replace(flags=0))
    of.take_rows(rows_of({"time_ns": S}))
    assert reported(of, 2 * S, final=True)[0].links is None


# -- time and memory ------------------------------------------------------------------------------


def test_a_row_that_is_reported_late_is_of_the_oldest_interval_that_is_open() -> None:
    of = session()
    of.learn(named(1, "main"))
    of.take_rows(rows_of({"time_ns": 20 * S}))
    assert reported(of, 20 * S) == []
    reported(of, 31 * S)
    of.take_rows(rows_of({"time_ns": 1 * S, "value": 9}))
    (only,) = reported(of, 45 * S)
    assert only.time_unix_ns is not None
    assert only.time_unix_ns.tolist() == [only.start_unix_ns] and only.value.tolist() == [9]


def test_levels_are_asked_for_once_an_interval_and_have_no_span() -> None:
    asked: list[int] = []

    def levels(time_ns: int) -> Any:
        asked.append(time_ns)
        return [rows_of({"time_ns": time_ns, "value": len(asked)}, sample_type=names.FILE_BYTES)]

    of = session(levels=levels, owners_at=owned_by(4), span_of=lambda *_: REQUEST)
    for second in range(1, 26):
        of.report(second * S, offset_ns=UNIX, final=False)
    of.report(26 * S, offset_ns=UNIX, final=True)
    found = of.take()
    assert [time_ns // S for time_ns in asked] == [10, 20, 26]
    assert [each.value.tolist() for each in found] == [[1], [2], [3]]
    assert all(each.links is None for each in found)


def test_levels_of_a_session_that_ends_with_an_interval_are_reported_once_in_each() -> None:
    of = session(levels=lambda time_ns: [rows_of({"time_ns": time_ns}, sample_type=names.FILE_BYTES)])
    of.report(S, offset_ns=UNIX, final=False)
    found = reported(of, 11 * S, final=True)
    assert [(each.start_unix_ns - UNIX, each.value.tolist()) for each in found] == [(S, [1]), (11 * S, [1])]


def test_more_rows_than_are_held_are_summed_and_nothing_is_lost() -> None:
    of = session(limit=1000)
    of.learn(named(1, "leaf"))
    for begin in range(0, 5000, 500):
        of.take_rows(rows_of(*({"time_ns": S + begin + i, "stack": 1} for i in range(500))))
        reported(of, 2 * S)
        assert len(of) <= 1000
    (only,) = reported(of, 3 * S, final=True)
    assert only.time_unix_ns is None and int(only.value.sum()) == 5000
    assert of.counters["profile_times_summed"] > 0


def test_more_stacks_than_are_held_become_one_and_the_largest_are_kept() -> None:
    of = session(limit=1000)
    for begin in range(0, 4000, 500):
        of.take_rows(rows_of(*({"time_ns": S, "stack": 1 + begin + i, "value": 1} for i in range(500))))
        of.take_rows(rows_of({"time_ns": S, "stack": 99_999, "value": 10_000}))
        reported(of, 2 * S)
        assert len(of) <= 1001
    of.learn(named(99_999, "hot"))
    (only,) = reported(of, 3 * S, final=True)
    found = stacks_of(only)
    assert int(only.value.sum()) == 4000 + 80_000
    assert found[("hot",)] == 80_000 and found[("[too many stacks]",)] > 2000
    assert of.counters["profile_stacks_summed"] > 0


def test_resources_are_as_they_were_when_the_row_came_and_as_is_known_later() -> None:
    known = {10: process(10)}
    of = session(resource_of=lambda tgid: known[tgid])
    of.take_rows(rows_of({"time_ns": S}))
    better = resource({"process.pid": 10, "service.name": "llm"})
    of.rename(known[10], better)
    known[10] = resource({"service.name": "another program"})
    of.take_rows(rows_of({"time_ns": 2 * S, "value": 2}))
    found = reported(of, 3 * S, final=True)
    assert {each.resource: each.value.tolist() for each in found} == {better: [1], known[10]: [2]}


def test_a_process_is_forgotten_with_its_stacks_once_its_interval_was_reported() -> None:
    book = StackTable()
    of = session(book=book)
    of.learn(named(1, "leaf"))
    of.take_rows(rows_of({"time_ns": S}))
    of.end_process(10, 2 * S)
    assert reported(of, 2 * S) == [] and len(book) == 1
    (only,) = reported(of, 12 * S)
    assert stacks_of(only) == {("leaf",): 1} and len(book) == 0


def test_times_that_nobody_could_have_seen_yet_are_now() -> None:
    of = session()
    of.take_rows(rows_of({"time_ns": (1 << 64) - 1}, {"time_ns": 0}))
    (only,) = reported(of, 2 * S, final=True)
    assert len(only) == 2 and len(of) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(10, 12), st.integers(0, 3), st.integers(1, 9)), max_size=60
    ),
    st.booleans(),
    st.sampled_from([4, 1000]),
)
@examples(60)
def test_whatever_comes_when_all_of_it_is_reported_once(
    given_rows: list[tuple[int, int, int, int]], keep_times: bool, limit: int
) -> None:
    of = session(keep_times=keep_times, limit=limit)
    of.learn(named(1, "a"))
    found: list[ProfileColumns] = []
    for second in range(1, 64):
        mine = [row for row in given_rows if row[0] == second]
        if mine:
            of.take_rows(
                rows_of(
                    *(
                        {"time_ns": s * S, "tgid": tgid, "stack": stack, "value": v}
                        for s, tgid, stack, v in mine
                    )
                )
            )
        found += reported(of, second * S)
    found += reported(of, 64 * S, final=True)
    assert sum(int(each.value.sum()) for each in found) == sum(row[3] for row in given_rows if row[0] >= 1)
    for payload in encode_profiles(found):
        assert broken_rules(parsed(payload)) == []
    for each in found:
        if each.time_unix_ns is not None:
            inside = (each.time_unix_ns >= each.start_unix_ns) & (
                each.time_unix_ns < each.start_unix_ns + each.duration_ns
            )
            assert inside.all()


@pytest.mark.parametrize("frames", [3, 40])
def test_the_book_of_stacks_holds_so_many_frames_and_the_latest_stacks(frames: int) -> None:
    book = StackTable(stacks=20, frames=frames)
    for stack in range(100):
        book.learn(named(stack, f"only {stack}", "main"))
        book.compact()
    assert len(book) <= 20 and len(book.frames) <= max(frames, 2)
    ids = book.ids(10, 99)
    assert ids is not None and [book.frames[each].name for each in ids] == ["only 99", "main"]
    assert book.counters["stacks_forgotten"] >= 80
