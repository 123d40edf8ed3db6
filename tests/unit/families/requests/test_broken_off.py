"""A stream whose client has gone before its end, and which its server, as Go's does, ends in due form."""

from __future__ import annotations

import json

import pytest

from otelgpu.model.exchange import Exchange
from tests.unit.families.requests.test_incomplete import LARGE, stream_of, token, usage
from tests.unit.families.requests.traffic import READ, opened, request, response

FINISHED = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def answered(pieces: list[bytes], *, leaves_after: int | None, captured: int | None = None) -> Exchange:
    """A chat completion of ``pieces``, whose client ends its side when so many were written."""
    c, seen = opened()
    asked = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
    seen.feed(c.read(request("POST", "/v1/chat/completions", asked)))
    seen.feed(c.write(response(200, None, content_type="text/event-stream", transfer_encoding="chunked")))
    for number, piece in enumerate(pieces):
        if number == leaves_after:
            seen.feed(c.result(READ, 0))
        seen.feed(c.write(piece, captured=captured if len(piece) > LARGE else None))
    seen.feed(c.close())
    (exchange,) = seen.exchanges
    return exchange


def test_one_that_ends_without_saying_why_after_its_client_left_failed() -> None:
    exchange = answered(stream_of(*(token(f"w{n}") for n in range(3)), done=False), leaves_after=2)
    assert (exchange.status_code, exchange.error_type, exchange.answered) == (200, "connection_closed", True)


def test_so_did_one_that_had_no_token_yet() -> None:
    assert answered([b"0\r\n\r\n"], leaves_after=0).error_type == "connection_closed"


@pytest.mark.parametrize(
    "last", [[*stream_of(token("w"), FINISHED, done=False)], [*stream_of(token("w"), usage(1))]]
)
def test_a_client_that_only_ends_its_side_early_has_all_of_its_answer(last: list[bytes]) -> None:
    assert answered(last, leaves_after=0).error_type == ""


def test_a_server_that_never_says_why_it_ends_fails_nobody() -> None:
    assert answered(stream_of(token("w"), done=False), leaves_after=None).error_type == ""


def test_what_was_not_seen_may_have_said_why() -> None:
    pieces = stream_of(token("w"), {**FINISHED, "probs": "x" * 2 * LARGE}, done=False)
    assert answered(pieces, leaves_after=1, captured=50).error_type == ""
