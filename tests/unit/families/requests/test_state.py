"""The set of connections: bounds, ends, and the contract with the C header."""

from __future__ import annotations

import numpy as np
import pytest

from otelgpu.families.requests.decode import MOST_CHUNKS_MISSED
from otelgpu.families.requests.parser_output import COUNTERS
from otelgpu.model.inputs import Batch
from tests.unit.families.requests.http2_traffic import Pair
from tests.unit.families.requests.traffic import (
    DTYPES,
    MS,
    READ,
    Connection,
    Seen,
    joined,
    new_state,
    opened,
    request,
    response,
)

MINUTE = 60_000 * MS


def test_the_builders_layout_has_the_sizes_of_c() -> None:
    assert DTYPES["record_head"].itemsize == 64
    assert [DTYPES[f"http_data_{size}"].itemsize for size in ("256", "4k", "16k")] == [368, 4208, 16496]
    assert (DTYPES["http_open"].itemsize, DTYPES["http_close"].itemsize) == (144, 80)


def test_batches_of_many_records_are_the_same_as_batches_of_one() -> None:
    c = Connection()
    batches = [c.open()]
    for i in range(5):
        batches += [*c.read(request("GET", f"/{i}")), *c.write(response(200, b"x" * 200 * i))]
    one, many = Seen(new_state()).feed(batches), Seen(new_state()).feed(joined(batches))
    assert len(joined(batches)) < len(batches)
    assert (one.exchanges, one.assignments) == (many.exchanges, many.assignments)


def test_records_that_are_not_contiguous() -> None:
    c, seen = opened()
    (batch,) = c.read(request())
    twice = np.concatenate([batch.records, batch.records])[::2]
    seen.feed(Batch(family="http", kind=batch.kind, records=twice)).feed(c.write(response()))
    assert len(seen.exchanges) == 1


def test_an_empty_batch_and_an_unknown_kind() -> None:
    seen = Seen(new_state())
    for kind in ("http_data_256", "http_open", "http_close"):
        seen.feed(Batch(family="http", kind=kind, records=np.zeros(0, DTYPES[kind])))
    seen.feed(Batch(family="http", kind="http_new", records=np.zeros(1, DTYPES["http_close"])))
    assert seen.counts() == {"unknown_kind": 1}


def test_every_counter_is_there_from_the_start() -> None:
    assert new_state().counters == dict.fromkeys(COUNTERS, 0)


def test_the_least_recently_used_connection_makes_room() -> None:
    seen = Seen(new_state(max_connections=2))
    a, b, c = (Connection(identity=i) for i in (1, 2, 3))
    seen.feed(a.open()).feed(b.open()).feed(b.read(request("GET", "/b"))).feed(a.read(request("GET", "/a")))
    seen.feed(c.open())
    assert [(e.path, e.error) for e in seen.exchanges] == [("/b", "connection_evicted")]
    assert (seen.state.connection_count, seen.counts()) == (2, {"connections_evicted": 1})
    assert seen.assignments[-1].begins is False


def test_a_process_that_exits_ends_its_connections_only() -> None:
    seen = Seen(new_state())
    a, b = Connection(identity=1, tgid=100), Connection(identity=2, tgid=200)
    for c in (a, b):
        seen.feed(c.open()).feed(c.read(request("GET", f"/{c.tgid}")))
    seen.take(seen.state.process_gone(100, 2 * MINUTE))
    seen.take(seen.state.process_gone(100, 2 * MINUTE)).take(seen.state.process_gone(300, 2 * MINUTE))
    assert [(e.path, e.error, e.end_ns) for e in seen.exchanges] == [("/100", "process_exited", 2 * MINUTE)]
    seen.feed(b.write(response()))
    assert (seen.exchanges[1].error, seen.state.connection_count) == ("", 1)


def test_a_connection_belongs_to_the_process_that_uses_it() -> None:
    c, seen = opened()
    c.tgid = 555  # accepted by one process, handed to another
    seen.feed(c.read(request())).take(seen.state.process_gone(100, MINUTE))
    assert seen.exchanges == []
    seen.take(seen.state.process_gone(555, MINUTE))
    assert [e.error for e in seen.exchanges] == ["process_exited"]


@pytest.mark.parametrize("role", ["SERVER", "CLIENT"])
@pytest.mark.parametrize("begun", [b"", response(200, None)[:-2], response(200, b"0123456789")[:-5]])
def test_a_request_that_is_under_way_when_the_session_ends_is_counted(role: str, begun: bytes) -> None:
    c, seen = opened(role)
    ask, answer = (c.read, c.write) if role == "SERVER" else (c.write, c.read)
    seen.feed(ask(request("GET", "/a"))).feed(answer(response())).feed(ask(request("GET", "/b")))
    if begun:
        seen.feed(answer(begun))
    assigned = seen.assigned()
    seen.take(seen.state.expire(c.now_ns, final=True))
    assert [(e.path, e.status_code) for e in seen.exchanges] == [("/a", 200)]
    assert seen.counts() == {"requests_under_way": 1}
    assert seen.assigned() == assigned  # what was done until the end was done for it


def test_each_stream_of_http2_that_is_under_way_when_the_session_ends_is_counted() -> None:
    c, seen, pair = *opened(), Pair()
    pair.request()
    pair.respond(pair.request())
    pair.request(end=False)
    for from_client, data in pair.wire:
        seen.feed(c.read(data) if from_client else c.write(data))
    seen.take(seen.state.expire(c.now_ns, final=True))
    assert (len(seen.exchanges), seen.counts()) == (1, {"requests_under_way": 2})


def test_what_is_not_under_way_when_the_session_ends_is_not_counted() -> None:
    """Idle, shed, its process gone, of no known protocol, answered before its request had ended."""
    seen = Seen(new_state())
    idle, shed, gone, unknown, early = (Connection(identity=n, tgid=100 + n) for n in range(5))
    for c in (idle, shed, gone, unknown, early):
        seen.feed(c.open())
    seen.feed(idle.read(request())).feed(idle.write(response()))
    seen.feed(shed.read(request()))
    for _ in range(MOST_CHUNKS_MISSED + 1):
        shed.write(b"x")
    seen.feed(shed.write(b"x"))
    seen.feed(gone.read(request())).take(seen.state.process_gone(gone.tgid, gone.now_ns))
    seen.feed(unknown.read(b"\0" * 100))
    seen.feed(early.read(request("POST", "/early", b"x" * 100)[:-50])).feed(early.write(response(413)))
    seen.take(seen.state.expire(MINUTE, final=True))
    assert sorted((e.status_code, e.error) for e in seen.exchanges) == [
        (0, "process_exited"),
        (200, ""),
        (413, ""),
    ]
    counts = seen.counts()
    assert (counts["requests_shed"], "requests_under_way" in counts) == (1, False)


@pytest.mark.parametrize("closed", [False, True])
def test_what_waits_for_a_chunk_that_did_not_come_is_read_when_the_session_ends(closed: bool) -> None:
    """However late it came: nobody would look at it again, or count what is missing."""
    c, seen = opened()
    asked = request("POST", "/a", b"x" * 100)
    seen.feed(c.read(asked[:-50]))
    c.read(asked[-50:-25])
    seen.feed(c.read(asked[-25:])).feed(c.write(response(201)))
    if closed:
        seen.feed(c.close())
    seen.take(seen.state.expire(c.now_ns, final=True))
    assert [(e.path, e.status_code, e.error) for e in seen.exchanges] == [("/a", 201, "")]
    assert seen.counts() == {"chunks_lost": 1}


def test_idle_connections_are_forgotten_but_not_busy_ones() -> None:
    seen = Seen(new_state(idle_ns=5 * MINUTE))
    idle, busy = Connection(identity=1), Connection(identity=2)
    seen.feed(idle.open()).feed(busy.open()).feed(busy.read(request()))
    seen.take(seen.state.expire(4 * MINUTE))
    assert seen.state.connection_count == 2
    seen.take(seen.state.expire(6 * MINUTE))
    assert (seen.state.connection_count, seen.counts()) == (1, {"connections_expired": 1})
    seen.feed(busy.write(response()))
    assert seen.exchanges[0].status_code == 200


def test_connections_are_looked_at_again_when_the_first_of_them_may_be_idle() -> None:
    seen = Seen(new_state(idle_ns=5 * MINUTE))
    first, second = Connection(identity=1), Connection(identity=2, now_ns=2 * MINUTE)
    seen.feed(first.open()).feed(second.open())
    seen.take(seen.state.expire(3 * MINUTE))
    for of, left in ((first, 1), (second, 0)):
        assert of.now_ns <= seen.state.expires_ns - 5 * MINUTE <= of.now_ns + MINUTE
        seen.take(seen.state.expire(seen.state.expires_ns))
        assert seen.state.connection_count == left


def test_an_expired_connection_goes_on_with_its_next_request() -> None:
    c, seen = opened()
    seen.feed(c.read(request())).feed(c.write(response()))
    seen.take(seen.state.expire(60 * MINUTE))
    c.now_ns = 61 * MINUTE
    seen.feed(c.read(request("GET", "/again"))).take(seen.state.expire(62 * MINUTE)).feed(c.write(response()))
    assert [e.path for e in seen.exchanges] == ["/", "/again"]
    assert seen.counts() == {"connections_expired": 1, "connections_not_opened": 1}


def test_chunks_after_the_close_are_counted() -> None:
    c, seen = opened()
    seen.feed(c.close()).feed(c.read(request()))
    assert (seen.exchanges, seen.counts()) == ([], {"chunks_after_close": 1})


def test_a_close_waits_for_chunks_that_are_still_to_come() -> None:
    c, seen = opened()
    chunk = c.read(request())
    seen.feed(c.close())
    assert seen.state.connection_count == 1
    seen.feed(chunk)
    assert [e.error for e in seen.exchanges] == ["connection_closed"]


def test_a_close_whose_chunks_never_come() -> None:
    c, seen = opened()
    c.read(request())
    seen.feed(c.close()).take(seen.state.expire(10_000 * MS))
    assert (seen.state.connection_count, seen.counts()) == (0, {"chunks_lost": 1})


def test_nothing_stays_behind_a_closed_connection() -> None:
    seen = Seen(new_state(budget_bytes=1 << 20))
    for i in range(1, 300):
        c = Connection(identity=i)
        body = b'{"model":"m","stream":false,"x":"' + b"y" * 10_000  # never closed: not JSON
        seen.feed(c.open()).feed(c.read(request("POST", "/v1/completions", body))[:])
        seen.feed(c.read(request("POST", "/v1/completions", body)[:-1])).feed(c.close())
    assert seen.state.connection_count == 0
    assert seen.counts() == {"json_malformed": 299}
    assert seen.state._output.reserve(1 << 20)  # all of the budget was given back
    assert not seen.state._by_process and not seen.state._waiting


@pytest.mark.parametrize("late", [False, True])
def test_end_of_file_alone_is_nothing(late: bool) -> None:
    c = Connection()
    seen = Seen(new_state()).feed(c.open(late=late)).feed(c.result(READ, 0)).feed(c.close())
    assert (seen.exchanges, seen.counts(), seen.state.connection_count) == ([], {}, 0)
