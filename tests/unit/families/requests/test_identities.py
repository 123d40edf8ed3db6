"""Which span an exchange is: every rule of DESIGN.md section 5 that decides it, and the order of the rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from otelgpu.families.requests import identities
from otelgpu.families.requests.identities import (
    ENDED_REMEMBERED,
    EXCLUDED,
    SAME_RECEIVED,
    SAMPLED_OUT,
    Identities,
    exports_telemetry,
    wire_span_id,
    wire_trace_id,
)
from otelgpu.model.context import Context
from otelgpu.model.exchange import Exchange, Opened, Published, Role, Rpc, TraceParent
from otelgpu.model.sampling import Exclusion, Sampler
from tests.rig.examples import examples
from tests.unit.model.builders import CALLER, exchange

SEED = 5
WIRE = bytes(range(40))
OTHER = TraceParent(trace_id=b"o" * 16, span_id=b"o" * 8, flags=1)
PUBLISHED = Published(trace_id=b"p" * 16, span_id=b"p" * 8, flags=1, source=1)


class Session:
    """Identities, and which thread serves which exchange."""

    def __init__(self, **options: Any) -> None:
        self.serving: dict[tuple[int, int], int] = {}
        self.made = Identities(SEED, lambda opened: self.serving.get((opened.tgid, opened.tid), 0), **options)

    def open(self, given: Exchange) -> Exchange:
        fields = ("key", "tgid", "tid", "start_ns", "role", "parent", "wire_id", "path", "user_agent")
        self.made.open(Opened(**{name: getattr(given, name) for name in fields}))
        return given

    def serve(self, given: Exchange) -> Exchange:
        self.serving[given.tgid, given.tid] = given.key
        return self.open(given)

    def context(self, key: int) -> Context:
        found = self.made.context(key)
        assert found is not None
        return found


def server(key: int = 1, **fields: Any) -> Exchange:
    return exchange(key, **fields)


def client(key: int = 2, **fields: Any) -> Exchange:
    return exchange(key, role=Role.CLIENT, **fields)


def test_a_request_of_nobody_known_is_a_root_of_the_seeds_making() -> None:
    one, same, other = (
        Session().made.of(server()),
        Session().made.of(server()),
        Session().made.of(server(2)),
    )
    assert one == same
    assert one.reported and one.parent_span_id == bytes(8)
    assert len({one.context, other.context}) == 2
    assert any(one.context.trace_id) and any(one.context.span_id)


def test_which_thread_sent_a_request_may_turn_out_after_it_opened() -> None:
    session = Session()
    session.serve(server(1, tid=5))
    session.open(client(2, tid=6))
    assert session.made.of(client(2, tid=5)).parent_span_id == session.context(1).span_id


def test_of_a_request_that_was_shed_nothing_is_kept() -> None:
    session = Session()
    for key in range(1, 2 * ENDED_REMEMBERED):
        shed = session.open(server(key, parent=OTHER, wire_id=WIRE))
        assert session.made.context(key) is not None
        session.made.forget(shed.key)
    kept = [table for table in vars(session.made).values() if isinstance(table, dict) and table]
    assert kept == []


def test_the_callers_header_is_the_parent() -> None:
    found = Session().made.of(server(parent=CALLER, wire_id=WIRE))
    assert (found.context.trace_id, found.parent_span_id, found.state) == (
        CALLER.trace_id,
        CALLER.span_id,
        CALLER.state,
    )


def test_an_unsampled_trace_stays_unsampled() -> None:
    found = Session().made.of(server(parent=replace(CALLER, flags=0)))
    assert found.own and not found.reported


NONE = Sampler(ratio=0.0)


def test_what_the_sampler_leaves_out_takes_along_what_was_sent_for_it() -> None:
    session = Session(sampler=NONE)
    above = session.made.of(session.serve(server(1, tid=7)))
    below = session.made.of(session.open(client(2, tid=7, wire_id=WIRE)))
    behind = session.made.of(session.open(server(3, tgid=9, wire_id=WIRE)))
    for each in (above, below, behind):
        assert (each.own, each.context.sampled, each.left_out) == (True, False, SAMPLED_OUT)
        assert each.context.trace_id == above.context.trace_id


@pytest.mark.parametrize("flags", [0, 1])
def test_a_parent_based_sampler_follows_the_caller(flags: int) -> None:
    found = Session(sampler=NONE).made.of(server(parent=replace(CALLER, flags=flags)))
    assert (found.context.flags, found.left_out) == (flags, "")


@pytest.mark.parametrize("flags", [0, 1])
def test_a_sampler_that_asks_no_parent_does_not(flags: int) -> None:
    caller = replace(CALLER, flags=flags)
    nothing = Session(sampler=Sampler(ratio=0.0, parent_based=False)).made.of(server(parent=caller))
    everything = Session(sampler=Sampler(parent_based=False)).made.of(server(parent=caller))
    assert (nothing.context.flags, nothing.left_out) == (0, SAMPLED_OUT)
    assert (everything.context.flags, everything.left_out) == (1, "")


@pytest.mark.parametrize("sampler", [NONE, Sampler(ratio=0.0, parent_based=False)])
def test_a_span_that_the_process_makes_itself_is_not_ours_to_sample(sampler: Sampler) -> None:
    session = Session(sampler=sampler)
    session.made.publish(1, server().tgid, PUBLISHED)
    found = session.made.of(server(published=PUBLISHED))
    assert (found.own, found.context.sampled, found.left_out) == (False, True, "")


def test_what_is_wanted_is_kept_and_stays_known_as_such() -> None:
    session = Session(sampler=NONE)
    failed = session.open(server(1, status_code=503))
    assert not session.context(1).sampled
    found = session.made.of(failed, wanted=True)
    assert (found.context.sampled, found.left_out, found.state) == (True, "", "")
    assert session.context(1) == found.context


def test_what_is_wanted_of_a_trace_that_its_caller_left_out_is_not_kept() -> None:
    found = Session().made.of(server(status_code=503, parent=replace(CALLER, flags=0)), wanted=True)
    assert not found.context.sampled


HEALTH = Exclusion(paths=("/health*", "/metrics"), user_agents=("kube-probe/*",))


@pytest.mark.parametrize(
    ("fields", "left_out"),
    [
        ({"path": "/healthz", "status_code": 503}, EXCLUDED),
        ({"path": "/health/live"}, EXCLUDED),
        ({"path": "/v1/models", "user_agent": "kube-probe/1.35"}, EXCLUDED),
        ({"path": "/metrics"}, EXCLUDED),
        ({"path": "/metrics", "parent": OTHER}, EXCLUDED),
        ({"path": "/v1/metrics"}, ""),
        ({"path": "/Healthz", "user_agent": "not kube-probe/1"}, ""),
    ],
)
def test_health_checks_are_left_out_whatever_became_of_them(fields: dict[str, Any], left_out: str) -> None:
    found = Session(exclusion=HEALTH).made.of(server(**fields))
    assert (found.left_out, found.context.sampled) == (left_out, not left_out)


def test_what_was_sent_for_a_health_check_goes_with_it() -> None:
    session = Session(exclusion=HEALTH)
    session.serve(server(1, tid=7, path="/healthz"))
    below = session.made.of(session.open(client(2, tid=7, path="/db", wire_id=WIRE)))
    behind = session.made.of(session.open(server(3, tgid=9, path="/db", wire_id=WIRE)))
    assert [(each.left_out, each.context.sampled) for each in (below, behind)] == [(EXCLUDED, False)] * 2


def test_both_ends_decide_alike_with_no_word_between_the_observers() -> None:
    half = Sampler(ratio=0.5)
    for number in range(64):
        wire = bytes([number]) * 40
        one = Session(sampler=half).made.of(client(1, wire_id=wire))
        other = Session(sampler=half).made.of(server(9, wire_id=wire))
        assert one.context.sampled == other.context.sampled


def test_the_identity_is_the_same_while_open_and_at_the_end() -> None:
    session = Session()
    for each in (server(1, wire_id=WIRE), server(2, parent=CALLER), server(3)):
        session.open(each)
        assert session.context(each.key) == session.made.of(each).context


def test_both_ends_meet_in_one_trace_with_no_word_between_the_observers() -> None:
    here, there = Session().made.of(client(wire_id=WIRE)), Session().made.of(server(wire_id=WIRE))
    assert here.context.trace_id == there.context.trace_id == wire_trace_id(WIRE)
    assert here.context.span_id != there.context.span_id


@pytest.mark.parametrize("client_first", [True, False])
def test_an_observed_client_is_its_servers_parent(client_first: bool) -> None:
    session = Session()
    ends = [client(2, wire_id=WIRE), server(1, wire_id=WIRE)]
    for each in ends if client_first else reversed(ends):
        session.open(each)
    asked = session.made.of(ends[0])
    assert session.made.of(ends[1]).parent_span_id == asked.context.span_id
    assert session.context(1).trace_id == asked.context.trace_id


def test_what_a_thread_asks_for_a_request_is_below_that_request() -> None:
    session = Session()
    session.serve(server(1, parent=CALLER))
    found = session.made.of(client(2, wire_id=WIRE))
    assert (found.context.trace_id, found.parent_span_id) == (CALLER.trace_id, session.context(1).span_id)
    # The peer, seen by another agent, knows no better than the wire.
    assert found.peer == Context(wire_trace_id(WIRE), wire_span_id(WIRE, Role.SERVER), 1)
    assert found.peer[:2] == Session().made.of(server(wire_id=WIRE)).context[:2]


def test_what_is_below_a_request_says_of_how_many_traces_it_is_one_too() -> None:
    session = Session(sampler=Sampler(ratio=0.5))
    for number in range(16):
        wire = bytes([number]) * 40
        root = session.made.of(session.serve(server(10 + number, wire_id=wire)))
        asked = session.made.of(session.open(client(100 + number, wire_id=wire[::2])))
        below = session.made.of(session.open(server(200 + number, tgid=300, tid=301, wire_id=wire[::2])))
        assert asked.state == below.state == root.state == ("ot=th:8" if root.context.sampled else "")


def test_a_request_that_is_dropped_takes_with_it_what_will_be_sent_for_it() -> None:
    session = Session()
    session.serve(server(1))
    dropped = session.made.drop(1, session.made.of(server(1)), "why")
    below = session.made.of(session.open(client(2, wire_id=WIRE)))
    assert [(each.context.sampled, each.left_out) for each in (dropped, below)] == [(False, "why")] * 2


def test_a_peer_that_is_observed_here_needs_no_link() -> None:
    session = Session()
    session.serve(server(1, parent=CALLER))
    session.open(client(2, wire_id=WIRE))
    session.open(server(3, tgid=300, tid=301, wire_id=WIRE))
    assert session.made.of(client(2, wire_id=WIRE)).peer is None


def test_a_chain_of_services_on_one_host_is_one_trace() -> None:
    session = Session()
    session.serve(server(1, parent=CALLER))
    session.open(client(2, wire_id=WIRE))
    session.open(server(3, tgid=300, tid=301, wire_id=WIRE))
    below = session.made.of(server(3, tgid=300, tid=301, wire_id=WIRE))
    assert below.context.trace_id == CALLER.trace_id
    assert below.parent_span_id == session.context(2).span_id


def test_another_threads_request_is_not_the_parent() -> None:
    session = Session()
    session.serve(server(1, tid=101))
    assert session.made.of(client(2, tid=102)).parent_span_id == bytes(8)


def test_a_client_that_sends_a_context_has_a_span_of_its_own() -> None:
    session = Session()
    session.serve(server(1))
    found = session.made.of(client(2, parent=OTHER))
    assert not found.reported
    assert found.context == Context(OTHER.trace_id, OTHER.span_id, 1)


def test_a_header_that_a_proxy_passes_on_is_not_a_span_of_the_proxys() -> None:
    session = Session()
    session.serve(server(1, parent=CALLER))
    found = session.made.of(client(2, parent=CALLER))
    assert found.reported
    assert found.parent_span_id == session.context(1).span_id


def test_a_proxys_header_is_known_again_whichever_thread_passes_it_on() -> None:
    session = Session()
    session.open(server(1, parent=CALLER))
    found = session.made.of(client(2, parent=CALLER, tid=99))
    assert found.reported
    assert found.parent_span_id == session.context(1).span_id
    assert not session.made.of(client(3, parent=CALLER, tgid=4711)).reported  # another process's


def hop(key: int, tgid: int, wire: bytes, start_ms: int = 10, end_ms: int = 100, **fields: Any) -> Exchange:
    """One end of a request that carries the caller's header."""
    given = {"parent": CALLER, "start_ns": start_ms * 10**6, "end_ns": end_ms * 10**6, "tgid": tgid} | fields
    return exchange(key, wire_id=wire, **given)


def through(session: Session, *exchanges: Exchange) -> dict[int, identities.Identity]:
    """What becomes of exchanges that began in this order and end the other way round, by key."""
    for each in exchanges:
        session.open(each)
    return {each.key: session.made.of(each) for each in reversed(exchanges)}


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_what_a_proxy_passes_on_goes_through_its_span(order: tuple[int, ...]) -> None:
    """Records of both ends of a connection may come in any order."""
    chain = [
        hop(1, 10, b"a"),
        hop(2, 10, b"b", 20, 90, role=Role.CLIENT),
        hop(3, 20, b"b", 30, 80),
    ]
    session = Session()
    for each in order:
        session.open(chain[each])
    session.made.context(3)  # work of it came meanwhile
    found = {each.key: session.made.of(each) for each in reversed(chain)}
    assert found[1].parent_span_id == CALLER.span_id
    assert found[2].parent_span_id == found[1].context.span_id
    assert found[3].parent_span_id == found[2].context.span_id
    assert {each.context.trace_id for each in found.values()} == {CALLER.trace_id}
    assert found[3].state == CALLER.state
    assert all(each.reported for each in found.values())


def test_two_proxies_in_a_row_are_two_hops() -> None:
    chain = [
        hop(number + 1, 10 * (number // 2), bytes([(number + 1) // 2]), 10 + number, 90 - number, role=role)
        for number, role in enumerate([Role.SERVER, Role.CLIENT] * 2 + [Role.SERVER])
    ]
    found = through(Session(), *chain)
    assert [found[key].parent_span_id for key in range(2, 6)] == [
        found[key].context.span_id for key in range(1, 5)
    ]


def test_a_client_that_made_the_header_itself_is_not_passed_through() -> None:
    found = through(Session(), hop(1, 10, b"a", role=Role.CLIENT), hop(2, 20, b"a", 20, 90))
    assert not found[1].reported
    assert found[2].parent_span_id == CALLER.span_id


def test_what_a_process_asks_of_itself_it_does_not_pass_on() -> None:
    """It made the header; a second request with it, sent while it answers the first, is no child of the answer."""
    found = through(
        Session(),
        hop(1, 10, b"a", role=Role.CLIENT),
        hop(2, 10, b"a", 20, 90),
        hop(3, 10, b"c", 30, 80, role=Role.CLIENT),
        hop(4, 20, b"c", 40, 70),
    )
    assert not found[1].reported and not found[3].reported
    assert found[2].parent_span_id == found[4].parent_span_id == CALLER.span_id


def at_once(received: list[tuple[int, int]]) -> int:
    """(begin, how long) → the most that are under way in a moment; who begins in it begins before others end."""
    return max(sum(start <= moment <= start + long for start, long in received) for moment, _ in received)


@examples(200)
@example([(1, 2)] + 8 * [(1, 1)], 3)  # the ninth comes before any has ended
@example(
    [(1, 5)] + 7 * [(1, 1)] + [(1, 5)], 4
)  # two of nine are under way, one of which is not known any more
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=12), st.integers(1, 80)
)
def test_of_requests_with_one_header_only_the_one_that_is_surely_passed_on_is_a_parent(
    received: list[tuple[int, int]], sent_ms: int
) -> None:
    session = Session()
    events = [(start, key, True) for key, (start, _) in enumerate(received, 1)]
    events += [(start + long, key, False) for key, (start, long) in enumerate(received, 1)]
    exchanges = {
        key: hop(key, 10, bytes([key]), start, start + long) for key, (start, long) in enumerate(received, 1)
    }
    for time_ms, key, begins in sorted(events, key=lambda event: (event[0], not event[2])):
        if time_ms > sent_ms:
            break
        if begins:
            session.open(exchanges[key])
        else:
            session.made.of(exchanges[key])
    session.open(passed := hop(100, 10, b"out", sent_ms, sent_ms + 1, role=Role.CLIENT))
    found = session.made.of(passed)
    before = [key for key, (start, _) in enumerate(received, 1) if start <= sent_ms]
    under_way = [key for key in before if sum(received[key - 1]) >= sent_ms]
    spans = {session.context(key).span_id: key for key in before}
    if found.parent_span_id in spans:
        parent = spans[found.parent_span_id]
        assert before == [parent] or under_way == [parent]
    elif not before:
        assert not found.reported
    else:
        assert found.parent_span_id == CALLER.span_id  # an ancestor, whichever of them it was
        assert len(before) > 1 and (len(under_way) != 1 or at_once(received) > SAME_RECEIVED)


def test_what_the_process_published_is_the_span_and_not_ours() -> None:
    session = Session()
    found = session.made.of(given := server(parent=CALLER, published=PUBLISHED))
    assert found.reported  # before anybody noted what it published
    session.made.note(given)
    found = session.made.of(given)
    assert not found.own
    assert found.context == Context(PUBLISHED.trace_id, PUBLISHED.span_id, 1)


def test_a_publishers_open_request_is_unknown_until_it_names_its_span() -> None:
    session = Session()
    session.made.note(server(9, published=PUBLISHED))
    session.open(server(1))
    assert session.made.context(1) is None
    session.made.publish(1, 100, PUBLISHED)
    assert session.context(1).span_id == PUBLISHED.span_id
    session.open(server(2, tgid=555))
    assert session.made.context(2) is not None
    session.open(server(3))
    session.made.forget_process(100)
    assert session.made.context(3) is not None


def test_a_clients_span_goes_under_what_its_thread_published() -> None:
    session = Session()
    session.made.note(given := client(published=PUBLISHED))
    found = session.made.of(given)
    assert found.reported
    assert (found.context.trace_id, found.parent_span_id) == (PUBLISHED.trace_id, PUBLISHED.span_id)


def test_spans_beside_the_processs_own_when_asked_for() -> None:
    session = Session(defer=False)
    session.made.note(given := server(parent=CALLER, published=PUBLISHED))
    found = session.made.of(given)
    assert found.reported and found.parent_span_id == CALLER.span_id
    assert session.made.of(client(2, parent=OTHER)).reported


EXPORT = {"method": "POST", "path": "/v1/traces"}
GRPC = {"rpc": Rpc(system="grpc", method="opentelemetry.proto.collector.trace.v1.TraceService/Export")}


@pytest.mark.parametrize("fields", [EXPORT, GRPC])
def test_a_process_that_exports_traces_reports_its_requests_itself(fields: dict[str, Any]) -> None:
    session = Session()
    session.made.note(client(8, **fields))
    found = session.made.of(server(1, parent=CALLER))
    assert not found.own
    assert found.context == Context(CALLER.trace_id, CALLER.span_id, CALLER.flags)
    assert session.made.of(server(2)).reported  # of which nobody could say where its span is
    assert session.made.of(server(3, tgid=555, parent=CALLER)).reported


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (EXPORT, True),
        (GRPC, True),
        ({"method": "POST", "path": "/tenant/v1/metrics"}, True),
        ({"method": "GET", "path": "/v1/traces"}, False),
        ({"method": "POST", "path": "/v1/traces/1"}, False),
        ({"rpc": Rpc(system="grpc", method="a.B/Export"), "method": "POST", "path": "/v1/traces"}, False),
    ],
)
def test_what_counts_as_telemetry(fields: dict[str, Any], expected: bool) -> None:
    assert exports_telemetry(server(**fields)) is expected


def test_of_those_that_ended_the_oldest_are_forgotten_and_open_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identities, "ENDED_REMEMBERED", 3)
    session = Session()
    long_open = session.open(client(100, wire_id=WIRE))
    for key in range(1, 9):
        session.made.of(session.open(server(key)))
    assert [key for key in range(1, 9) if session.made.context(key) is not None] == [6, 7, 8]
    assert session.made.of(server(9, wire_id=WIRE)).parent_span_id == session.context(long_open.key).span_id


def test_what_ended_long_ago_is_forgotten_and_what_is_open_is_not() -> None:
    session = Session()
    session.open(server(10**6))
    for key in range(1, ENDED_REMEMBERED + 10):
        session.made.of(client(key, wire_id=key.to_bytes(4, "big")))
    assert session.made.context(10**6) is not None
    asked = [session.made.context(key) is None for key in (1, 9, 10, ENDED_REMEMBERED)]
    assert asked == [True, True, False, False]


def test_who_ends_requests_without_end_pushes_out_its_own() -> None:
    session = Session()
    for key in range(1, 11):
        session.made.of(server(key, cgroup_id=1))
    for key in range(11, 2 * ENDED_REMEMBERED):
        session.made.of(server(key, cgroup_id=2))
    assert all(session.made.context(key) is not None for key in range(1, 11))
    assert session.made.context(11) is None
