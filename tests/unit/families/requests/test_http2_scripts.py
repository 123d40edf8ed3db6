"""Random traffic of two h2 endpoints, cut at random and with random gaps, against what they themselves report."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.llm import reader as llm
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.exchange import Generation, Role
from tests.rig.examples import examples
from tests.unit.families.requests.http2_traffic import Observed, Pair, Wire, request_fields

PATHS = ("/a", "/v1/x?q=1", "/long" + "x" * 200, "/b")
STATUSES = (200, 204, 404, 503)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ("ask", "ask", "ask more", "answer", "answer", "answer more", "cancel", "refuse", "ping", "table")
        ),
        st.integers(0, 5),  # which of the open streams
        st.integers(0, 3),  # which path, status
        st.integers(0, 900),  # bytes of the body
        st.booleans(),  # whether that ends it
    ),
    min_size=1,
    max_size=25,
)


@dataclass
class Truth:
    path: str
    asked: bytes = b""
    ask_ended: bool = False
    status: int = 0
    answered: bytes = b""
    answer_ended: bool = False
    error: str = ""


class Recorder:
    """A reader that wants every byte."""

    error = request_id = ""

    def __init__(self) -> None:
        self.asked = self.answered = b""
        self.asked_whole = self.answered_whole = False
        self.dropped = 0

    def request_head(self, head: object) -> bool:
        return True

    def response_head(self, head: object, *, doubtful: bool = False) -> bool:
        return True

    def response_began_unseen(self) -> None:
        pass

    def request_body(self, data: bytes) -> None:
        self.asked += data

    def response_body(self, data: bytes, time_ns: int) -> None:
        assert time_ns
        self.answered += data

    def request_gap(self, size: int) -> None:
        self.asked += b"\0" * size

    def response_gap(self, size: int) -> None:
        self.answered += b"\0" * size

    def request_ended(self, complete: bool = True) -> None:
        self.asked_whole = True

    def response_ended(self, complete: bool = True) -> None:
        self.answered_whole = True

    def generation(self) -> Generation | None:
        return None

    def drop(self) -> None:
        self.dropped += 1


@pytest.fixture(scope="module", autouse=True)
def readers() -> list[Recorder]:
    """Every reader made, in the order of requests."""
    made: list[Recorder] = []

    def http_reader(method: str, path: str, output: ParserOutput) -> Recorder:
        made.append(Recorder())
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm, "http_reader", http_reader)
        yield made


def play(actions: list[tuple[str, int, int, int, bool]]) -> tuple[Wire, dict[int, Truth]]:
    """Let two ends do what of the actions they can; return the bytes and what happened."""
    pair, streams, resized = Pair(), {}, False
    for action, which, choice, size, end in (("ask", 0, 0, 5, False), ("ask", 1, 1, 0, True), *actions):
        body = bytes(choice + 1 for _ in range(size))
        alive = [n for n, t in streams.items() if not t.error and not (t.ask_ended and t.answer_ended)]
        if action == "ask":
            path = PATHS[choice]
            end = end or not body
            number = pair.request(request_fields(path, ("user-agent", f"agent/{which}")), body, end=end)
            streams[number] = Truth(path.partition("?")[0], body, end)
        elif action == "ping":
            pair.client.ping(bytes(8))
        elif action == "table" and not resized:  # h2 cannot take a second one before it sent a block
            resized = True
            pair.server.update_settings({1: (0, 64, 4096, 4096)[choice]})
        elif alive:
            number = alive[which % len(alive)]
            truth = streams[number]
            if action == "ask more" and not truth.ask_ended:
                pair.client.send_data(number, body, end_stream=end, pad_length=which or None)
                truth.asked += body
                truth.ask_ended = end
            elif action == "answer" and not truth.status:
                truth.status = STATUSES[choice]
                end = end or not body
                pair.respond(number, truth.status, body, ("server", "h2"), end=end)
                truth.answered, truth.answer_ended = body, end
            elif action == "answer more" and truth.status and not truth.answer_ended:
                if choice == 3:
                    pair.server.send_headers(number, [("x-sum", "1")], end_stream=True)
                    truth.answer_ended = True
                else:
                    pair.server.send_data(number, body, end_stream=end, pad_length=which or None)
                    truth.answered += body
                    truth.answer_ended = end
            elif action == "cancel":
                pair.client.reset_stream(number, error_code=8)
                truth.error = "CANCEL"
            elif action == "refuse" and not truth.answer_ended:
                pair.server.reset_stream(number, error_code=2)
                truth.error = "INTERNAL_ERROR"
        pair.flush()
    return pair.wire, streams


@examples(60)
@given(ACTIONS, st.sampled_from((Role.SERVER, Role.CLIENT)), st.randoms(use_true_random=False))
def test_exchanges_are_what_the_ends_did_however_calls_are_cut(
    readers: list[Recorder], actions: list, role: Role, chance: random.Random
) -> None:
    wire, truths = play(actions)
    readers.clear()
    whole = Observed(role=role).wire(wire).close()
    made = readers[:]
    cut = Observed(role=role)
    cut.wire(wire, lambda data: chance.sample(range(len(data)), min(len(data), chance.randrange(12)))).close()
    assert cut.exchanges == whole.exchanges
    assert cut.output.assignments == whole.output.assignments
    by_key = {exchange.key: exchange for exchange in whole.exchanges}
    assert list(by_key) == list(dict.fromkeys(exchange.key for exchange in whole.exchanges))
    for key, (truth, reader) in enumerate(zip(truths.values(), made, strict=True), start=1):
        exchange = by_key[key]
        closed = "" if truth.answer_ended else "connection_closed"
        error = "" if truth.answer_ended else truth.error or closed
        assert (exchange.path, exchange.status_code, exchange.error) == (truth.path, truth.status, error)
        assert (reader.asked, reader.answered) == (truth.asked, truth.answered)
        assert (reader.answered_whole, reader.dropped) == (truth.answer_ended, 1)
        assert reader.asked_whole or not truth.ask_ended
    held = {}
    for assignment in whole.output.assignments:
        assert held.get(assignment.exchange, False) is not assignment.begins
        held[assignment.exchange] = assignment.begins
    assert not any(held.values()) and len(held) == (len(truths) if role is Role.SERVER else 0)
    assert whole.counted == {} and whole.held_bytes == cut.held_bytes == 0


@examples(60)
@given(ACTIONS, st.booleans(), st.integers(0, 10), st.randoms(use_true_random=False))
def test_gaps_and_late_starts_give_less_and_nothing_wrong(
    readers: list[Recorder], actions: list, late: bool, missed: int, chance: random.Random
) -> None:
    wire, truths = play(actions)
    observed = Observed(late=late)
    for from_client, data in wire[missed if late else 0 :]:
        call = observed.call(from_client)
        start = 0
        while start < len(data):
            size = chance.randrange(1, 400)
            if chance.random() < 0.1:
                size = min(size, len(data) - start)
                observed.gap(from_client, size, call=call)
            else:
                observed.feed(from_client, data[start : start + size], call=call)
            start += size
    observed.close()
    assert observed.held_bytes == 0
    paths = {truth.path for truth in truths.values()}
    statuses = {truth.status for truth in truths.values()}
    assert len({exchange.key for exchange in observed.exchanges}) == len(observed.exchanges) <= len(truths)
    for exchange in observed.exchanges:
        assert exchange.path in paths or not exchange.path
        assert exchange.status_code in statuses or not exchange.status_code
    if "http2_invalid" in observed.counted:
        assert {"resync_bytes_skipped", "late_bytes_skipped"} & observed.counted.keys()


@examples(150)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.booleans(), st.binary(max_size=80)),
            st.tuples(st.booleans(), st.integers(1, 40)),
            st.tuples(
                st.booleans(),
                st.builds(
                    lambda kind, flags, stream, payload: (
                        len(payload).to_bytes(3, "big")
                        + bytes((kind, flags))
                        + stream.to_bytes(4, "big")
                        + payload
                    ),
                    st.integers(0, 12),
                    st.sampled_from((0, 1, 4, 5, 8, 13, 0x2D)),
                    st.integers(0, 7),
                    st.binary(max_size=40) | st.sampled_from((b"\x82\x86\x84", b"\x88", bytes(8))),
                ),
            ),
        ),
        max_size=40,
    ),
    st.booleans(),
    st.sampled_from((Role.SERVER, Role.CLIENT)),
)
def test_any_bytes_end_in_a_count(chunks: list, late: bool, role: Role) -> None:
    observed = Observed(late=late, role=role, budget=1000)
    observed.feed(True, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    for from_client, chunk in chunks:
        if isinstance(chunk, int):
            observed.gap(from_client, chunk)
        else:
            observed.feed(from_client, chunk)
    observed.close()
    assert observed.parser.ignored and not observed.parser.busy and observed.held_bytes == 0
    held = [assignment.exchange for assignment in observed.output.assignments if assignment.begins]
    assert sorted(held) == sorted(
        assignment.exchange for assignment in observed.output.assignments if not assignment.begins
    )
