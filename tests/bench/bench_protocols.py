"""How fast records of gRPC calls and of a serving engine's ZeroMQ messages are read, on one core, without a kernel.

The baselines are the libraries that read the same bytes with no pairing, no times and no semantics: hyperframe and
hpack for gRPC, msgspec for the engine's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from hpack import Decoder
from hyperframe.frame import Frame, HeadersFrame

from otelgpu.model.inputs import Batch
from tests.bench.bench_http import best_seconds
from tests.bench.programs import BenchError
from tests.bench.rows import Row
from tests.unit.families.requests.http2_traffic import Pair, Wire, request_fields
from tests.unit.families.requests.traffic import Connection, joined, new_state
from tests.unit.families.requests.zmtp_traffic import READY, greeting, message

NAME = "protocols"
GRPC = ("content-type", "application/grpc")
MESSAGE = b"\0\0\0\0\x40" + bytes(64)
MESSAGES_PER_CALL = 100
REQUESTS_PER_STEP = 64
WINDOW_BYTES = 1 << 30
PREFACE_BYTES = 24
FRAME_HEAD_BYTES = 9


@dataclass(frozen=True, slots=True)
class Recorded:
    """Records, what they must come to, and the same bytes' baseline."""

    batches: list[Batch]
    exchanges: int
    messages: int
    baseline: Callable[[], object]


def _calls(pair: Pair, calls: int, answers: int) -> None:
    pair.client.increment_flow_control_window(WINDOW_BYTES)
    pair.server.increment_flow_control_window(WINDOW_BYTES)
    for _ in range(calls):
        number = pair.request(request_fields("/inference.GRPCInferenceService/ModelInfer", GRPC), MESSAGE)
        pair.respond(number, 200, MESSAGE, GRPC, end=False)
        for _ in range(answers - 1):
            pair.server.send_data(number, MESSAGE)
            pair.flush()
        pair.server.send_headers(number, [("grpc-status", "0")], end_stream=True)
        pair.flush()


def grpc(calls: int, answers: int) -> Recorded:
    """Calls on one connection, each of one request and so many answers."""
    pair = Pair()
    _calls(pair, calls, answers)
    connection = Connection()
    batches = [connection.open()]
    for from_client, data in pair.wire:
        batches += connection.read(data) if from_client else connection.write(data)
    return Recorded(joined(batches), calls, 0, lambda: _parse(pair.wire))


def _parse(wire: Wire) -> None:
    decoders = {True: Decoder(), False: Decoder()}
    preface = PREFACE_BYTES
    for from_client, data in wire:
        view = memoryview(data)[preface if from_client else 0 :]
        preface = 0 if from_client else preface
        while view:
            frame, length = Frame.parse_frame_header(view[:FRAME_HEAD_BYTES])
            frame.parse_body(view[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + length])
            if isinstance(frame, HeadersFrame):
                decoders[from_client].decode(frame.data)
            view = view[FRAME_HEAD_BYTES + length :]


def steps(count: int) -> Recorded:
    """What vLLM's engine reports its API process after each step: a token for each of so many requests."""
    items = [[f"chatcmpl-{number:032x}", [number]] for number in range(REQUESTS_PER_STEP)]
    payload = msgspec.msgpack.encode([0, items, {"num_running_reqs": 64, "num_waiting_reqs": 2}, 1.5])
    connection = Connection()
    batches = [connection.open(), *connection.write(greeting()), *connection.read(greeting() + READY)]
    for _ in range(count):
        batches += connection.read(message(payload))

    def decode() -> None:
        for _ in range(count):
            msgspec.msgpack.decode(payload)

    return Recorded(joined(batches), 0, count, decode)


def _measured(recorded: Recorded) -> tuple[float, float]:
    """Seconds of ours and of the baseline; a `BenchError` when ours did not read it all."""

    def feed() -> tuple[int, int]:
        state = new_state()
        reported = [state.feed(batch) for batch in recorded.batches]
        return sum(len(each.exchanges) for each in reported), sum(len(each.messages) for each in reported)

    if (found := feed()) != (recorded.exchanges, recorded.messages):
        raise BenchError(f"read {found} of {recorded.exchanges, recorded.messages}")
    return best_seconds(feed), best_seconds(recorded.baseline)


def _row(name: str, unit: str, count: int, seconds: tuple[float, float], baseline: str) -> Row:
    mine, theirs = seconds
    return Row(
        bench=NAME,
        name=name,
        value=count / mine,
        unit=unit,
        baseline=baseline,
        baseline_value=count / theirs,
    )


def rows(quick: bool) -> Sequence[Row]:
    """gRPC unary and streamed, and an engine's steps."""
    calls = 200 if quick else 3000
    frames = "hyperframe and hpack alone, same bytes"
    streams = calls // 20
    unary = _measured(grpc(calls, 1))
    streamed = _measured(grpc(streams, MESSAGES_PER_CALL))
    engine = _measured(steps(calls))
    return [
        _row("gRPC, unary calls", "calls/s", calls, unary, frames),
        _row("gRPC, streamed messages", "messages/s", streams * MESSAGES_PER_CALL, streamed, frames),
        _row("ZeroMQ, steps of 64 requests", "messages/s", calls, engine, "msgspec alone, same bytes"),
    ]
