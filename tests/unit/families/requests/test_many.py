"""Many connections, slow ones, and huge ones: memory is bounded, and what is dropped is counted."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from otelgpu.model.inputs import Batch
from tests.unit.families.requests.test_fuzz import reachable_bytes
from tests.unit.families.requests.traffic import (
    READ,
    WRITE,
    Connection,
    Seen,
    new_state,
    opened,
    request,
    response,
)


def each(batch: Batch, count: int) -> Batch:
    """The same record on connections 1 … count."""
    records = np.repeat(batch.records, count)
    (records["chunk"] if "chunk" in records.dtype.names else records)["connection"] = np.arange(1, count + 1)
    return replace(batch, records=records)


@pytest.mark.slow
def test_ten_thousand_connections_at_once() -> None:
    c, count = Connection(), 10_000
    batches = [c.open(), *c.read(request("GET", "/a")), *c.write(response(200, b"x"))]
    seen = Seen(new_state()).feed(each(batch, count) for batch in batches)
    assert (len(seen.exchanges), seen.state.connection_count, seen.counts()) == (count, count, {})
    assert {exchange.connection for exchange in seen.exchanges} == set(range(1, count + 1))


def test_too_many_connections_push_out_the_oldest() -> None:
    connections = [Connection(identity=number) for number in range(1, 1001)]
    batches = [batch for c in connections for batch in (c.open(), *c.read(b"GE"))]  # undecided
    batches += [batch for c in connections[-100:] for batch in c.read(b"T / HTTP/1.1\r\n\r\n")]
    seen = Seen(new_state(max_connections=100)).feed(batches)
    assert (seen.state.connection_count, seen.counts()) == (100, {"connections_evicted": 900})
    assert reachable_bytes(seen.state) < 1_000_000


def test_a_slow_loris_costs_what_it_sent_and_no_more() -> None:
    c, seen = opened()
    for byte in b"POST /v1/chat/completions HTTP/1.1\r\n" + b"x: y\r\n" * 300:
        seen.feed(c.read(bytes((byte,))))
    assert seen.state._connections[1].busy
    assert reachable_bytes(seen.state) < 100_000
    seen.feed(c.close())
    assert seen.counts() == {"requests_incomplete": 1}


def test_garbage_after_a_valid_start_frees_everything() -> None:
    c, seen = opened()
    body = b'{"model":"m","x":"' + b"y" * 200_000
    head = f"POST /v1/completions HTTP/1.1\r\ncontent-length: {len(body) + 10}\r\n\r\n".encode()
    seen.feed(c.read(head + body)).feed(c.write(b"\xff\xfe\xfd" * 100)).feed(c.read(b"\0" * 5000))
    assert [(e.path, e.error) for e in seen.exchanges] == [("/v1/completions", "invalid_http")]
    assert seen.state._output.reserve(32 << 20)
    assert reachable_bytes(seen.state) < 100_000


def test_a_hundred_megabyte_answer_with_gaps_at_both_ends_of_the_connection() -> None:
    size = 100 << 20
    for role, ask, answer in (("SERVER", READ, WRITE), ("CLIENT", WRITE, READ)):
        c, seen = opened(role)
        seen.feed(c.read(request()) if ask == READ else c.write(request()))
        head = response(200, None, content_length=str(size))
        move = c.write if answer == WRITE else c.read
        seen.feed(move(head + b"x" * 1000))
        for _ in range(99):
            c.skip(answer, 1 << 20)
            seen.feed(move(b"x" * 10))
        c.skip(answer, size - 1000 - 99 * ((1 << 20) + 10))
        seen.feed(move(b"")).take(seen.state.expire(1 << 62))
        seen.feed(c.read(request()) if ask == READ else c.write(request())).feed(move(response(204, None)))
        assert [(e.status_code, e.error) for e in seen.exchanges] == [(200, ""), (204, "")]
        assert seen.exchanges[0].response_bytes == size + len(head)
