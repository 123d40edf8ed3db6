"""Ranks' calls meet in one trace per collective, whoever reports them; with skew, waits, links and metrics."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.nccl import collectives as collective_session
from otelgpu.families.nccl import links as collective_links
from otelgpu.families.nccl import numbering as collectives
from otelgpu.families.nccl.collectives import SETTLED_NS
from otelgpu.families.nccl.metrics import METRICS, bandwidths
from otelgpu.model.context import UNSETTLED, Context
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.device_work import DEVICE_WORK, Work
from otelgpu.model.operations import SequenceSource
from otelgpu.model.sampling import trace_state
from tests.rig.examples import examples
from tests.unit.families.nccl.collective_sessions import SECOND, Agent
from tests.unit.families.nccl.collectives_simulated import Rank

NO_PARENT = "0" * 16


def step_of_all(ranks: list[Rank], *, group: bool = False, wait: bool = True) -> None:
    """An AllReduce, each rank 1 ms later than the one before; then a wait until the same moment."""
    begin = max(rank.now_ns for rank in ranks)
    for rank in ranks:
        rank.now_ns = begin + rank.rank * 1_000_000
        if group:
            rank.begin_group()
            rank.call()
            rank.call("ncclAllGather")
            rank.end_group()
        else:
            rank.call()
    end = begin + 10_000_000
    for rank in ranks:
        if wait:
            rank.device("cudaStreamSynchronize", duration_ns=end - rank.now_ns - 20_000)
        rank.now_ns = end


def agent_with(ranks: list[Rank], **settings: Any) -> Agent:
    """An agent that has known these ranks for so long that no other is waited for."""
    agent = Agent(**settings)
    agent.session.learn([rank.seen(time_ns=-SETTLED_NS) for rank in ranks])
    return agent


def reported(ranks: list[Rank], **settings: Any) -> list[dict[str, Any]]:
    agent = agent_with(ranks, **settings)
    agent.feed(ranks)
    return agent.report(SECOND)


def named(spans: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["name"] == name]


def test_all_ranks_are_in_one_trace_under_one_root() -> None:
    ranks = [Rank(rank) for rank in range(4)]
    step_of_all(ranks)
    spans = reported(ranks)
    (root,) = named(spans, "AllReduce")
    calls, waits = named(spans, "ncclAllReduce"), named(spans, "nccl wait")
    assert {span["trace"] for span in spans} == {root["trace"]}
    assert root["parent"] == NO_PARENT
    assert [span["parent"] for span in calls] == [root["span"]] * 4
    assert {span["parent"] for span in waits} == {span["span"] for span in calls}
    assert len({span["span"] for span in spans}) == len(spans) == 9


def test_the_root_covers_all_ranks_and_says_who_was_last() -> None:
    ranks = [Rank(rank) for rank in range(4)]
    step_of_all(ranks)
    spans = reported(ranks)
    (root,) = named(spans, "AllReduce")
    calls = named(spans, "ncclAllReduce")
    assert root["start"] == min(span["start"] for span in calls)
    assert root["end"] == max(span["end"] for span in spans)
    assert root["nccl.arrival.skew"] == pytest.approx(3e-3)
    assert (root["nccl.arrival.last_rank"], root["nccl.ranks.seen"], root["nccl.communicator.ranks"]) == (
        3,
        4,
        4,
    )
    lateness = {span["nccl.rank"]: span["nccl.arrival.lateness"] for span in calls}
    assert lateness == pytest.approx({rank: rank * 1e-3 for rank in range(4)})


def test_a_call_says_which_collective_it_is_of() -> None:
    ranks = [Rank(0), Rank(1)]
    step_of_all(ranks)
    (call, _) = named(reported(ranks), "ncclAllReduce")
    assert call["nccl.communicator.hash"] == "0000000000c0ffee"
    assert (call["nccl.operation"], call["nccl.sequence"], call["nccl.sequence.source"]) == (
        "AllReduce",
        0,
        "function",
    )
    assert (call["nccl.phase"], call["thread.id"]) == ("enqueue", 1000)


def test_agents_that_never_heard_of_each_other_report_one_trace() -> None:
    ranks = [Rank(rank, ranks=8) for rank in range(8)]
    for _ in range(3):
        step_of_all(ranks, group=True)
    halves = ranks[:4], ranks[4:]
    spans: list[dict[str, Any]] = []
    for seed, half in enumerate(halves):
        spans += reported(half, seed=seed)
    by_trace: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        by_trace.setdefault(span["trace"], []).append(span)
    assert len(by_trace) == 6
    for trace in by_trace.values():
        identities = {span["span"] for span in trace}
        roots = [span for span in trace if span["parent"] == NO_PARENT]
        assert len(identities) == len(trace)
        assert len(roots) == 1
        assert all(span["parent"] in identities for span in trace if span is not roots[0])
        assert Counter(
            span["nccl.rank"] for span in trace if span.get("nccl.phase") == "enqueue"
        ) == dict.fromkeys(range(8), 1)
        assert roots[0]["nccl.ranks.seen"] == 4


def test_an_agent_without_rank_0_reports_no_root() -> None:
    ranks = [Rank(1), Rank(2)]
    step_of_all(ranks)
    assert not named(reported(ranks), "AllReduce")


def test_a_late_agent_agrees_where_the_communicator_counts() -> None:
    ranks = [Rank(0), Rank(1)]
    for rank in ranks:
        rank.launched["ncclAllReduce"] = 500
    step_of_all(ranks)
    early, late = agent_with([ranks[0]]), Agent(seed=2)
    early.feed([ranks[0]])
    late.session.learn([ranks[1].seen(created=False)])
    late.feed([ranks[1]])
    traces = {span["trace"] for agent in (early, late) for span in agent.report(3 * SECOND, final=True)}
    assert len(traces) == 1


def test_what_was_counted_and_what_was_read_of_all_operations_are_not_taken_for_the_same() -> None:
    ranks = [Rank(0, counts=False), Rank(1, counts=False)]
    step_of_all(ranks)
    agent = Agent()
    agent.session.learn([ranks[0].seen(), ranks[1].seen(created=False)])
    agent.feed(ranks)
    assert len({span["trace"] for span in named(agent.report(9 * SECOND, final=True), "ncclAllReduce")}) == 2


@examples(3)
@given(st.randoms(use_true_random=False), st.integers(0, 2**32 - 1))
def test_the_order_of_batches_does_not_matter(order: Any, shuffle: int) -> None:
    def run(shuffled: bool) -> list[str]:
        ranks = [Rank(rank) for rank in range(4)]
        agent = agent_with(ranks)
        spans = []
        for tick in range(1, 4):
            step_of_all(ranks, group=tick == 2)
            fed = list(ranks)
            if shuffled:
                order.shuffle(fed)
            agent.feed(fed, order=np.random.default_rng(shuffle) if shuffled else None)
            spans += agent.report(tick * SECOND)
        return sorted(map(repr, spans))

    assert run(shuffled=True) == run(shuffled=False)


def test_calls_in_a_capture_are_reported_alone() -> None:
    rank = Rank(0)
    rank.call()
    rank.device("cudaStreamBeginCapture")
    rank.call(captured=True)
    rank.device("cudaStreamEndCapture")
    rank.call()
    agent = agent_with([rank])
    agent.feed([rank])
    calls = sorted(
        named(agent.report(9 * SECOND, final=True), "ncclAllReduce"), key=lambda span: int(span["start"])
    )
    assert [span["nccl.sequence.source"] for span in calls] == ["function", "captured", "function"]
    assert [span.get("nccl.sequence") for span in calls] == [0, None, 1]
    assert calls[1]["parent"] == NO_PARENT
    assert agent.session.counters == {"collectives_captured": 1}


def test_a_send_that_its_library_numbers_with_nobody_is_no_loss() -> None:
    """MPI's have no group here: what receives them depends on tags."""
    agent, rank = Agent(), Rank(0, 1)
    agent.session.learn([rank.seen()])
    rank.call("ncclSend", handle=0, communicator_hash=0, sequence_source=SequenceSource.UNKNOWN)
    rank.call("ncclSend", handle=0xDEAD, communicator_hash=0, sequence_source=SequenceSource.UNKNOWN)
    agent.feed([rank])
    assert len(agent.report(SECOND, final=True)) == 2
    assert agent.session.counters == {"collectives_unnumbered": 1}


def test_a_capture_may_last_over_ticks_and_is_also_its_streams() -> None:
    rank, other = Rank(0), Rank(1, tgid=100, tid=77)
    agent = agent_with([rank, other])
    rank.device("cudaStreamBeginCapture")
    agent.feed([rank])
    agent.report(SECOND)
    other.now_ns = rank.now_ns
    other.call(captured=True)
    agent.feed([other])
    (span,) = agent.report(9 * SECOND, final=True)
    assert span["nccl.sequence.source"] == "captured"


def test_a_failed_call_is_reported_alone_with_its_result() -> None:
    rank = Rank(0)
    rank.call(status=2)
    agent = agent_with([rank])
    agent.feed([rank])
    (span,) = agent.report(SECOND, final=True)
    assert (span["status"], span["error.type"]) == (2, "ncclAllReduce result 2")
    assert span["nccl.sequence.source"] == "failed"


def test_in_progress_is_no_error() -> None:
    rank = Rank(0)
    rank.call(status=7)
    agent = agent_with([rank])
    agent.feed([rank])
    call = named(agent.report(9 * SECOND, final=True), "ncclAllReduce")[0]
    assert call["status"] == 0
    assert "error.type" not in call


def test_a_send_is_the_root_of_its_pair() -> None:
    ranks = [Rank(0), Rank(3)]
    ranks[0].call("ncclSend", peer=3)
    ranks[1].call("ncclRecv", peer=0)
    agents = [agent_with([rank], seed=rank.rank) for rank in ranks]
    spans = []
    for agent, rank in zip(agents, ranks, strict=True):
        agent.feed([rank])
        spans += agent.report(9 * SECOND, final=True)
    send, receive = spans
    assert send["trace"] == receive["trace"]
    assert (send["parent"], receive["parent"]) == (NO_PARENT, send["span"])


def test_a_wait_is_for_all_collectives_before_it_and_under_the_last() -> None:
    rank = Rank(0)
    for _ in range(3):
        rank.call()
    rank.device("cudaDeviceSynchronize", duration_ns=4_000_000)
    rank.device("cudaStreamSynchronize")  # nothing is left to wait for
    agent = agent_with([rank])
    agent.feed([rank])
    spans = agent.report(9 * SECOND)
    (wait,) = named(spans, "nccl wait")
    last = max(named(spans, "ncclAllReduce"), key=lambda span: int(span["start"]))
    assert (wait["parent"], wait["nccl.wait.collectives"]) == (last["span"], 3)
    assert wait["nccl.wait.call"] == "cudaDeviceSynchronize"
    assert wait["end"] - wait["start"] == 4_000_000
    assert agent.metrics.value("nccl.wait.duration") == pytest.approx(4e-3)


def test_a_wait_on_another_stream_is_for_nothing() -> None:
    rank = Rank(0)
    rank.call()
    rank.device("cudaStreamSynchronize", stream=8)
    agent = agent_with([rank])
    agent.feed([rank])
    assert not named(agent.report(9 * SECOND, final=True), "nccl wait")


def test_default_streams_of_two_devices_are_two() -> None:
    rank, other = Rank(0), Rank(1, tgid=100, tid=77)
    rank.call(stream=0, device=0)
    other.call(stream=0, device=1)
    rank.device("cudaStreamSynchronize", stream=0)
    rank.device_calls[-1]["device"] = 1
    agent = agent_with([rank, other])
    agent.feed([rank, other])
    (wait,) = named(agent.report(9 * SECOND, final=True), "nccl wait")
    assert wait["nccl.rank"] == 1


def test_a_wait_may_end_after_its_collective_was_reported() -> None:
    rank = Rank(0)
    rank.call()
    rank.call()
    agent = agent_with([rank])
    agent.feed([rank])
    agent.report(SECOND)
    calls = named(agent.report(SECOND + SETTLED_NS), "ncclAllReduce")
    rank.device("cudaStreamSynchronize", duration_ns=5_000_000)
    agent.feed([rank])
    (wait,) = agent.report(4 * SECOND)
    last = max(calls, key=lambda span: int(span["start"]))
    assert (wait["parent"], wait["trace"], wait["nccl.wait.collectives"]) == (last["span"], last["trace"], 2)
    assert agent.metrics.value("nccl.wait.duration") == pytest.approx(5e-3)


def test_a_wait_is_also_for_what_was_reported_before_its_last_collective() -> None:
    rank = Rank(0)
    rank.call()
    rank.call()
    agent = agent_with([rank])
    agent.feed([rank])
    agent.report(SECOND)
    assert named(agent.report(4 * SECOND), "ncclAllReduce")
    rank.call()
    rank.device("cudaStreamSynchronize")
    agent.feed([rank])
    (wait,) = named(agent.report(5 * SECOND, final=True), "nccl wait")
    assert wait["nccl.wait.collectives"] == 3


def test_a_wait_for_several_collectives_is_the_time_of_none() -> None:
    rank = Rank(0)
    rank.call()
    rank.call()
    rank.device("cudaStreamSynchronize")
    agent = agent_with([rank])
    agent.feed([rank])
    calls = named(agent.report(SECOND, final=True), "ncclAllReduce")
    assert [key for call in calls for key in call if "bandwidth" in key] == []
    assert agent.metrics.value("nccl.collective.duration") == 0


def test_a_session_s_seed_is_in_no_id_of_a_shared_trace() -> None:
    found = []
    for seed in (1, 2):
        ranks = [Rank(0), Rank(1)]
        step_of_all(ranks, wait=False)
        agent = agent_with(ranks, seed=seed)
        agent.feed(ranks)
        found.append(sorted((span["trace"], span["span"]) for span in agent.report(SECOND, final=True)))
    assert found[0] == found[1]


def test_a_collective_waits_for_all_ranks_that_live_here() -> None:
    ranks = [Rank(0), Rank(1)]
    step_of_all(ranks)
    agent = agent_with(ranks)
    agent.feed([ranks[0]])
    assert not agent.report(SECOND)
    agent.feed([ranks[1]])
    assert len(named(agent.report(SECOND + 1), "ncclAllReduce")) == 2


def test_while_a_communicator_forms_ranks_that_are_not_known_yet_are_waited_for() -> None:
    first, second = ranks = [Rank(0, ranks=2), Rank(1, ranks=2)]
    step_of_all(ranks)
    agent = Agent()
    agent.session.learn([first.seen()])
    agent.feed([first])
    assert not agent.report(SECOND)
    agent.session.learn([second.seen(time_ns=SECOND)])
    agent.feed([second])
    spans = agent.report(SECOND + 1)
    (root,) = named(spans, "AllReduce")
    assert root["nccl.ranks.seen"] == 2


def test_ranks_of_other_hosts_are_waited_for_while_their_communicator_forms_and_no_longer() -> None:
    rank = Rank(0, ranks=2)
    step_of_all([rank])
    agent = Agent()
    agent.session.learn([rank.seen()])
    agent.feed([rank])
    assert not agent.report(SETTLED_NS - 1)
    assert agent.report(SETTLED_NS + SECOND)
    rank.now_ns = 2 * SETTLED_NS
    step_of_all([rank])
    agent.feed([rank])
    assert agent.report(2 * SETTLED_NS + SECOND // 10)


def test_a_rank_that_comes_too_late_is_reported_how_late() -> None:
    ranks = [Rank(0), Rank(1)]
    agent = agent_with(ranks)
    ranks[0].call()
    agent.feed([ranks[0]])
    agent.report(SECOND)
    (root,) = named(agent.report(4 * SECOND), "AllReduce")
    assert root["nccl.ranks.seen"] == 1
    assert "nccl.arrival.skew" not in root
    ranks[1].now_ns += 5 * SECOND
    ranks[1].call()
    agent.feed([ranks[1]])
    agent.report(6 * SECOND)
    (late,) = agent.report(9 * SECOND)
    assert late["nccl.arrival.lateness"] == pytest.approx(5)
    assert agent.session.counters == {"ranks_late": 1}


def test_two_that_say_they_are_the_same_rank_are_not_reported_as_one() -> None:
    ranks = [Rank(0), Rank(0, tgid=200)]
    for rank in ranks:
        rank.call()
    agent = agent_with(ranks)
    agent.feed(ranks)
    spans = agent.report(9 * SECOND, final=True)
    assert len({span["span"] for span in spans}) == len(spans) == 3
    assert len({span["trace"] for span in spans}) == 2
    assert agent.session.counters["rank_repeated"] == 1


def test_a_call_of_an_unknown_rank_is_still_in_the_trace() -> None:
    ranks = [Rank(0), Rank(1)]
    ranks[0].call()
    ranks[1].call(rank=-1)
    agent = Agent()
    agent.feed(ranks)
    spans = agent.report(9 * SECOND, final=True)
    assert len({span["trace"] for span in spans}) == 1
    assert len({span["span"] for span in spans}) == 3


REQUEST = Context(b"r" * 16, b"requestr", 1)
STEP = Context(b"s" * 16, b"stepstep", 1)


def linked(rank: Rank, owner: int = 0, **settings: Any) -> list[str]:
    rows, _ = rank.take()
    agent = agent_with([rank], **settings)
    agent.session.take(rows, np.full(len(rows), owner, dtype=np.int64))
    (span,) = named(agent.report(9 * SECOND, final=True), "ncclAllReduce")
    return [bytes.fromhex(link).decode() for link in span["links"]]


def test_a_call_links_to_what_it_was_made_under_the_most_trusted_first() -> None:
    rank = Rank(0)
    answers: dict[str, Any] = {"request_context": {5: REQUEST}.get, "step_at": lambda *_: STEP}
    published: dict[str, Any] = {
        "context_source": ContextSource.THREAD_CONTEXT,
        "trace_id": np.frombuffer(b"p" * 16, np.uint8),
        "span_id": np.frombuffer(b"publishd", np.uint8),
        "trace_flags": 1,
    }
    rank.call(**published)
    assert linked(rank, 5, **answers) == ["publishd"]
    rank.call()
    assert linked(rank, 5, **answers) == ["requestr"]
    rank.call()
    assert linked(rank, 0, **answers) == ["stepstep"]
    rank.call()
    assert linked(rank) == []


def test_calls_link_to_connections_of_their_communicator_and_say_how_many_they_left_out() -> None:
    rank, other = Rank(0), Rank(1)
    rank.call()
    other.call()
    at_hand = [Context(b"c" * 16, f"connect{number}".encode(), 1) for number in range(6)]
    of = {(rank.tgid, rank.hash): at_hand}
    agent = agent_with(
        [rank, other],
        step_at=lambda tgid, *_: STEP if tgid == rank.tgid else None,
        connections=lambda tgid, hash_: of.get((tgid, hash_), []),
    )
    agent.feed([rank, other])
    calls = named(agent.report(9 * SECOND, final=True), "ncclAllReduce")
    found = {span["pid"]: [bytes.fromhex(link).decode() for link in span["links"]] for span in calls}
    assert found == {
        rank.tgid: ["stepstep", "connect0", "connect1", "connect2", "connect3"],
        other.tgid: [],
    }
    assert {span["pid"]: span["dropped"] for span in calls} == {rank.tgid: 2, other.tgid: 0}


def test_calls_are_each_linked_to_their_step() -> None:
    rank = Rank(0)
    for _ in range(50):
        rank.call()
    asked: list[int] = []

    def step_at(_tgid: int, _tid: int, time_ns: int) -> Context | None:
        asked.append(time_ns)
        number = time_ns // 1_000_000
        return None if number == 3 else Context(bytes(16), number.to_bytes(8, "big"), 1)

    agent = agent_with([rank], step_at=step_at)
    agent.feed([rank])
    calls = named(agent.report(9 * SECOND, final=True), "ncclAllReduce")
    wrong = [
        span
        for span in calls
        if span["links"]
        != ([f"{span['start'] // 1_000_000:016x}"] if span["start"] // 1_000_000 != 3 else [])
    ]
    assert (len(calls), wrong) == (50, [])
    assert len(asked) < 50


def test_a_step_in_the_middle_of_calls_of_none_is_found() -> None:
    rank = Rank(0)
    for _ in range(9):
        rank.call()
    agent = agent_with(
        [rank], step_at=lambda _tgid, _tid, time_ns: STEP if 1_300_000 < time_ns < 1_600_000 else None
    )
    agent.feed([rank])
    calls = named(agent.report(SECOND, final=True), "ncclAllReduce")
    assert [bool(span["links"]) for span in sorted(calls, key=lambda span: int(span["start"]))] == [
        1_300_000 < int(span["start"]) < 1_600_000
        for span in sorted(calls, key=lambda span: int(span["start"]))
    ]
    assert sum(bool(span["links"]) for span in calls) == 2


def test_a_collective_waits_for_the_step_it_was_called_in_but_not_for_ever() -> None:
    rank = Rank(0)
    rank.call()
    rank.device("cudaStreamSynchronize")
    agent = agent_with([rank], step_at=lambda *_: UNSETTLED)
    agent.feed([rank])
    assert not agent.report(SECOND)
    assert not agent.report(SECOND + collective_session.LINKED_NS - 1)
    assert agent.report(SECOND + collective_session.LINKED_NS)


def test_device_time_of_the_kernels_launched_inside_a_call_is_reported() -> None:
    rank = Rank(0)
    rank.call()
    work = np.zeros(2, dtype=DEVICE_WORK)
    work["work"], work["tgid"], work["tid"] = Work.KERNEL, rank.tgid, rank.tid
    work["start_ns"] = rank.now_ns + 3_000, rank.now_ns + 30_000  # the second after the call
    work["duration_ns"] = 2_000_000
    agent = agent_with([rank])
    agent.session.see_device_work(work)
    agent.feed([rank])
    (call,) = named(agent.report(9 * SECOND, final=True), "ncclAllReduce")
    assert call["nccl.gpu.time"] == pytest.approx(2e-3)
    assert call["nccl.time.source"] == "gpu"
    assert call["nccl.algorithm.bandwidth"] == pytest.approx((1 << 20) / 2e-3)
    assert call["nccl.bus.bandwidth"] == pytest.approx((1 << 20) / 2e-3 * 2 * 3 / 4)


@pytest.mark.parametrize(("members", "measured"), [(1, 2e-3), (2, None)])
def test_what_a_group_launches_at_its_end_is_its_only_calls(members: int, measured: float | None) -> None:
    rank = Rank(0)
    rank.begin_group()
    for _ in range(members):
        rank.call()
    rank.end_group()
    work = np.zeros(1, dtype=DEVICE_WORK)
    work["work"], work["tgid"], work["tid"] = Work.KERNEL, rank.tgid, rank.tid
    work["start_ns"], work["duration_ns"] = rank.now_ns + 30_000, 2_000_000
    agent = agent_with([rank])
    agent.session.see_groups(rank.group_record(duration_ns=50_000, calls=members))
    agent.session.see_device_work(work)
    agent.feed([rank])
    found = named(agent.report(9 * SECOND, final=True), "ncclAllReduce")
    assert {span.get("nccl.gpu.time") for span in found} == {measured}


def test_a_group_may_say_that_it_was_noted_into_a_graph() -> None:
    rank = Rank(0)
    rank.begin_group()
    rank.call()
    rank.end_group()
    agent = agent_with([rank])
    agent.session.see_groups(rank.group_record(calls=1, sequence_source=SequenceSource.CAPTURED))
    agent.feed([rank])
    (call,) = agent.report(9 * SECOND, final=True)
    assert call["nccl.sequence.source"] == "captured"


def test_without_device_time_a_wait_that_followed_one_collective_gives_the_time() -> None:
    ranks = [Rank(0), Rank(1)]
    step_of_all(ranks)
    agent = agent_with(ranks)
    agent.feed(ranks)
    call = named(agent.report(SECOND), "ncclAllReduce")[0]
    assert call["nccl.time.source"] == "host_wait"
    labels: dict[str, Any] = {"nccl.time.source": "host_wait"}
    assert agent.metrics.value("nccl.collective.duration", **labels) == pytest.approx(18.8e-3, rel=1e-2)


@pytest.mark.parametrize(
    ("operation", "algorithm", "bus"),
    [
        ("AllReduce", 1.0, 2 * 7 / 8),
        ("AllGather", 8.0, 7.0),
        ("ReduceScatter", 8.0, 7.0),
        ("AlltoAll", 8.0, 7.0),
        ("Gather", 8.0, 7.0),
        ("Scatter", 8.0, 7.0),
        ("Broadcast", 1.0, 1.0),
        ("Reduce", 1.0, 1.0),
        ("Send", 1.0, 1.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(operation: str, algorithm: float, bus: float) -> None:
    one = np.ones(1)
    found = bandwidths(operation, one * 3.0, one * 3.0, one * 8)
    assert found is not None
    assert (found[0][0], found[1][0]) == (algorithm, bus)


def test_skew_and_lateness_are_measured() -> None:
    ranks = [Rank(rank) for rank in range(4)]
    step_of_all(ranks)
    agent = agent_with(ranks)
    agent.feed(ranks)
    agent.report(SECOND)
    assert agent.metrics.value("nccl.arrival.skew") == pytest.approx(3e-3)
    assert agent.metrics.value("nccl.arrival.lateness", None, **{"nccl.rank": 2}) == pytest.approx(2e-3)


def test_a_sample_is_the_same_on_every_rank_and_all_is_measured() -> None:
    ranks = [Rank(0), Rank(1)]
    for _ in range(400):
        step_of_all(ranks)
    kept = []
    for seed, rank in enumerate(ranks):
        agent = agent_with([rank], seed=seed, collective_sample_ratio=0.25)
        agent.feed([rank])
        spans = agent.report(9 * SECOND)
        kept.append({span["trace"] for span in spans})
        assert {span["state"] for span in spans} == {"ot=th:c"}
        assert agent.session.counters["collectives_sampled_out"] == 400 - len(kept[-1])
        assert agent.metrics.value("nccl.wait.duration") > 0
    assert kept[0] == kept[1]
    assert 60 < len(kept[0]) < 140
    assert all(int(trace, 16) % (1 << 56) >= 0.75 * (1 << 56) for trace in kept[0])


@pytest.mark.parametrize(
    ("ratio", "state"),
    [(1.0, ""), (0.5, "ot=th:8"), (0.1, "ot=th:e6666666666668"), (1 - 2**-60, ""), (0.0, "")],
)
def test_the_trace_state_reports_the_threshold_of_the_sample(ratio: float, state: str) -> None:
    assert trace_state(ratio) == state


def test_a_sample_of_nothing_is_nothing() -> None:
    ranks = [Rank(0), Rank(1)]
    step_of_all(ranks)
    assert reported(ranks, collective_sample_ratio=0.0) == []


def test_in_phases_collectives_are_measured_and_not_reported() -> None:
    ranks = [Rank(0), Rank(1)]
    step_of_all(ranks)
    agent = agent_with(ranks, detail="phases")
    agent.feed(ranks)
    assert not agent.report(SECOND)
    assert agent.metrics.value("nccl.arrival.skew") == pytest.approx(1e-3)


def test_of_a_flood_the_oldest_are_reported_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_session, "CALLS", 10)
    ranks = [Rank(0), Rank(1)]
    for _ in range(30):
        ranks[0].call()
    agent = agent_with(ranks)
    agent.feed([ranks[0]])
    calls = named(agent.report(SECOND), "ncclAllReduce")
    assert sorted(span["nccl.sequence"] for span in calls) == list(range(20))
    assert agent.session.counters == {"collectives_reported_early": 20}


def test_after_a_loss_what_was_only_counted_is_in_no_shared_trace() -> None:
    rank, made_later = Rank(0, readable=False), Rank(1, readable=False, hash=0xBEE)
    agent = agent_with([rank])
    agent.session.lose()
    rank.call()
    agent.feed([rank])
    agent.report(SECOND)
    agent.session.learn([made_later.seen(time_ns=rank.now_ns)])
    made_later.now_ns = rank.now_ns
    for one in (rank, made_later):
        one.call()
    agent.feed([rank, made_later])
    calls = named(agent.report(9 * SECOND, final=True), "ncclAllReduce")
    assert sorted((span["pid"], span["nccl.sequence.source"]) for span in calls) == [
        (100, "unknown"),
        (100, "unknown"),
        (101, "counted"),
    ]


def test_a_process_that_ended_is_still_reported_and_then_forgotten() -> None:
    rank = Rank(0)
    rank.call()
    agent = agent_with([rank])
    agent.feed([rank])
    assert agent.session.has_communicators(rank.tgid)
    agent.report(SECOND)
    agent.session.forget_process(rank.tgid, SECOND)
    assert not agent.session.has_communicators(rank.tgid)
    assert len(agent.report(9 * SECOND)) == 2


@examples(10)
@given(st.binary(min_size=128 * 6, max_size=128 * 6))
def test_records_of_any_bytes_are_reported_or_counted(noise: bytes) -> None:
    rank = Rank(0)
    for _ in range(6):
        rank.call()
    rows, _ = rank.take()
    wild = np.frombuffer(noise, dtype=rows.dtype).copy()
    wild["start_ns"] += np.arange(6, dtype=np.uint64)  # BPF's own: no thread is in two calls at once
    wild["kind"], wild["family"], wild["context_source"] = rows["kind"], 0, 0
    agent = Agent()
    agent.session.take(wild, np.zeros(6, dtype=np.int64))
    agent.session.see_waits(wild)
    spans = agent.report(1 << 62, final=True)
    assert len(named(spans, "nccl wait")) + len(spans) >= 6
    assert len({span["span"] for span in spans}) == len(spans)


def test_each_metric_has_the_attributes_that_it_is_documented_with() -> None:
    ranks = [Rank(0), Rank(1)]
    step_of_all(ranks)
    agent = agent_with(ranks)
    agent.feed(ranks)
    agent.report(SECOND)
    data, _ = agent.metrics.read(SECOND)
    found: dict[str, set[str]] = {}
    for of_resource in data.resource_metrics:
        for metric in of_resource.scope_metrics[0].metrics:
            for point in metric.histogram.data_points:
                found.setdefault(metric.name, set()).update(each.key for each in point.attributes)
    assert found == {metric.name: set(labels) for metric, labels in METRICS.items()}


def test_every_reason_that_is_counted_is_described() -> None:
    sources = [
        Path(module.__file__ or "").read_text()
        for module in (collective_session, collectives, collective_links)
    ]
    counted = set(re.findall(r'counters\["(\w+)"\] \+=', "".join(sources)))
    assert counted <= set(collective_session.COUNTERS)
    assert set(collective_session.COUNTERS) - counted == {
        f"collectives_{alone}" for alone in ("unnumbered", "captured", "failed")
    }
