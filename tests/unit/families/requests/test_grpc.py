"""gRPC bodies, statuses and TGI's messages, without a connection around them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.http2.grpc import MAX_MESSAGE_BYTES, GrpcMessageReader, OpenRpc, is_grpc
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.engine_messages import EngineItem, EngineOutput, EngineRequest
from otelgpu.model.exchange import Role
from tests.rig.examples import examples
from tests.unit.families.requests.http2_traffic import (
    BUDGET,
    READER,
    TGID,
    WRITER,
    Observed,
    Pair,
    request_fields,
)

GRPC = ("content-type", "application/grpc+proto")
PREFILL, DECODE = (f"/generate.v3.TextGenerationService/{name}" for name in ("Prefill", "Decode"))


def packed(message: bytes, *, compressed: bool = False) -> bytes:
    return bytes((compressed,)) + len(message).to_bytes(4, "big") + message


def reader(output: ParserOutput | None = None) -> tuple[GrpcMessageReader, list[bytes]]:
    made, taken = GrpcMessageReader(output or ParserOutput(BUDGET)), []
    made.take = lambda data, time_ns: taken.append(data)
    return made, taken


@given(st.lists(st.binary(max_size=30), max_size=8), st.lists(st.integers(0, 200), max_size=10))
def test_messages_are_whole_however_the_body_is_cut(messages: list[bytes], cuts: list[int]) -> None:
    output = ParserOutput(BUDGET)
    made, taken = reader(output)
    body = b"".join(packed(message) for message in messages)
    start = 0
    for stop in (*sorted(cut for cut in cuts if cut < len(body)), len(body)):
        made.feed(body[start:stop], 1)
        start = stop
    assert taken == messages and made.count == len(messages)
    assert output.reserve(BUDGET)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 150), st.integers(1, 60))
def test_a_gap_in_a_message_costs_only_that_one(sizes: list[int], start: int, size: int) -> None:
    messages = [bytes((65 + number,)) * length for number, length in enumerate(sizes)]
    output = ParserOutput(BUDGET)
    made, taken = reader(output)
    body = b"".join(packed(message) for message in messages)
    start, stop = min(start, len(body)), min(start + size, len(body))
    made.feed(body[:start], 1)
    if stop > start:
        made.gap(stop - start)
    made.feed(body[stop:], 1)
    made.drop()
    position, expected, lost = 0, [], False
    for message in messages:
        begin, end = position + 5, position + 5 + len(message)
        if start < stop and start < begin and stop > position:
            lost = True  # the gap is in a prefix
        if not lost and (stop <= begin or start >= end or start == stop):
            expected.append(message)
        lost = lost or (start < stop and start < end < stop)
        position = end
    assert taken == expected
    assert lost is bool(output.counters["grpc_framing_lost"])
    assert lost or made.count == len(messages)
    assert output.reserve(BUDGET)


def test_compressed_and_large_messages_are_counted_and_not_read() -> None:
    output = ParserOutput(BUDGET)
    made, taken = reader(output)
    for message in (packed(b"gz", compressed=True), packed(bytes(MAX_MESSAGE_BYTES + 1)), packed(b"read")):
        for start in range(0, len(message), 9000):
            made.feed(message[start : start + 9000], 1)
    assert (made.count, taken) == (3, [b"read"])
    assert (output.counters["encoded_body"], output.counters["grpc_messages_not_kept"]) == (1, 1)


def test_messages_wait_only_within_the_budget() -> None:
    output = ParserOutput(10)
    made, taken = reader(output)
    message = packed(b"x" * 40)
    made.feed(message[:20], 1)
    made.feed(message[20:] + packed(b"whole"), 1)
    assert (made.count, taken) == (2, [b"whole"])
    assert output.counters["grpc_messages_not_kept"] == 1 and output.reserve(10)


def test_what_is_no_message_ends_the_counting() -> None:
    output = ParserOutput(BUDGET)
    made, taken = reader(output)
    made.feed(packed(b"a") + b"GET / HTTP/1.1", 1)
    made.feed(packed(b"b"), 1)
    assert (made.count, taken, output.counters["grpc_framing_lost"]) == (1, [b"a"], 1)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"Application/gRPC;x=y", True),
        (b"application/grpc-web", False),
        (b"application/grpc-web+proto", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_content_types(content_type: bytes, expected: bool) -> None:
    assert is_grpc(content_type) is expected


@pytest.mark.parametrize(
    ("status", "name", "server", "client"),
    [
        (b"0", "OK", False, False),
        (b"1", "CANCELLED", False, True),
        (b"2", "UNKNOWN", True, True),
        (b"3", "INVALID_ARGUMENT", False, True),
        (b"4", "DEADLINE_EXCEEDED", True, True),
        (b"5", "NOT_FOUND", False, True),
        (b"12", "UNIMPLEMENTED", True, True),
        (b"13", "INTERNAL", True, True),
        (b"14", "UNAVAILABLE", True, True),
        (b"15", "DATA_LOSS", True, True),
        (b"16", "UNAUTHENTICATED", False, True),
        (b"77", "77", False, True),
        (b"-1", "", False, False),
        (b"9999", "", False, False),
        (b"", "", False, False),
    ],
)
def test_statuses_and_whose_error_they_are(status: bytes, name: str, server: bool, client: bool) -> None:
    for role, failed in ((Role.SERVER, server), (Role.CLIENT, client)):
        call = OpenRpc(ParserOutput(BUDGET), "/a.B/C", b"", certain=True)
        call.trailers(status)
        rpc = call.finish(role)
        assert rpc is not None and (rpc.method, rpc.status, rpc.failed) == ("a.B/C", name, failed)


@pytest.mark.parametrize(
    ("code", "after_ns", "timeout", "expected"),
    [
        ("CANCEL", 10, b"", "CANCELLED"),
        ("CANCEL", 100_000_000, b"200m", "CANCELLED"),
        ("CANCEL", 200_000_000, b"200m", "DEADLINE_EXCEEDED"),
        ("CANCEL", 1_003_000_000, b"1010m", "DEADLINE_EXCEEDED"),  # 1003 ms of grpcio's
        ("CANCEL", 99_000_000_000, b"101S", "CANCELLED"),
        ("REFUSED_STREAM", 10, b"", "UNAVAILABLE"),
        ("ENHANCE_YOUR_CALM", 10, b"1S", "RESOURCE_EXHAUSTED"),
        ("PROTOCOL_ERROR", 10, b"nonsense", "INTERNAL"),
    ],
)
def test_resets_are_reported_as_grpc_does(code: str, after_ns: int, timeout: bytes, expected: str) -> None:
    call = OpenRpc(ParserOutput(BUDGET), "/a.B/C", timeout, certain=True)
    call.reset(code, after_ns)
    rpc = call.finish(Role.CLIENT)
    assert rpc is not None and rpc.status == expected


def test_a_status_that_was_seen_stands() -> None:
    call = OpenRpc(ParserOutput(BUDGET), "/a.B/C", b"", certain=True)
    call.trailers(b"5")
    call.reset("CANCEL", 0)
    rpc = call.finish(Role.SERVER)
    assert rpc is not None and rpc.status == "NOT_FOUND"


# text-generation-inference


@cache
def tgi_messages() -> dict[str, type]:
    """Message classes with TGI's field numbers, those that are not read among them."""
    file = descriptor_pb2.FileDescriptorProto(name="tgi.proto", package="generate.v3", syntax="proto3")
    number, text, message = (
        getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{t}") for t in ("UINT64", "STRING", "MESSAGE")
    )
    one, many = (
        descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
    )
    layout: dict[str, list[tuple[str, int, int, int, str]]] = {
        "Request": [("id", 1, number, one, ""), ("inputs", 2, text, one, ""), ("truncate", 3, number, one, "")],
        "Batch": [("id", 1, number, one, ""), ("requests", 2, message, many, "Request"), ("size", 3, number, one, "")],
        "PrefillRequest": [("batch", 1, message, one, "Batch")],
        "Tokens": [("ids", 1, number, many, ""), ("texts", 3, text, many, "")],
        "GeneratedText": [("text", 1, text, one, "")],
        "Generation": [
            ("request_id", 1, number, one, ""),
            ("prefill_tokens", 2, message, one, "Tokens"),
            ("tokens", 3, message, one, "Tokens"),
            ("generated_text", 4, message, one, "GeneratedText"),
        ],
        "PrefillResponse": [("generations", 1, message, many, "Generation"), ("forward_ns", 3, number, one, "")],
    }  # fmt: skip
    for name, fields in layout.items():
        described = file.message_type.add(name=name)
        for field, position, kind, label, type_name in fields:
            described.field.add(
                name=field, number=position, type=kind, label=label, type_name=type_name or None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"generate.v3.{name}"))
        for name in layout
    }


def call(path: str, request: bytes, response: bytes, role: Role) -> Observed:
    pair = Pair()
    number = pair.request(request_fields(path, GRPC), packed(request))
    pair.respond(number, 200, packed(response), GRPC, trailers=[("grpc-status", "0")])
    return Observed(role=role).wire(pair.wire)


def tgi_response(*generations: tuple[int, Iterable[int], bool]) -> bytes:
    tgi = tgi_messages()
    response = tgi["PrefillResponse"](forward_ns=123456)
    for request_id, ids, finished in generations:
        generation = response.generations.add(request_id=request_id)
        generation.prefill_tokens.ids.extend(range(500))
        generation.tokens.ids.extend(ids)
        generation.tokens.texts.append("token")
        if finished:
            generation.generated_text.text = "all of it"
    return response.SerializeToString()


@pytest.mark.parametrize(("role", "sent"), [(Role.CLIENT, True), (Role.SERVER, False)])
def test_tgi_prefill_names_its_requests_and_tokens(role: Role, sent: bool) -> None:
    tgi = tgi_messages()
    batch = tgi["Batch"](id=5, size=2)
    batch.requests.add(id=2**40, inputs="a prompt")
    batch.requests.add(id=7, inputs="", truncate=9)
    request = tgi["PrefillRequest"](batch=batch).SerializeToString()
    observed = call(PREFILL, request, tgi_response((2**40, [3], False), (7, [128000], True)), role)
    first, second, output = observed.output.messages
    assert isinstance(first, EngineRequest) and isinstance(second, EngineRequest)
    assert [(m.request_id, m.sent, m.engine, m.tid) for m in (first, second)] == [
        (str(number), sent, "tgi", WRITER if sent else READER) for number in (2**40, 7)
    ]
    assert isinstance(output, EngineOutput) and output.sent is not sent and output.tgid == TGID
    assert output.connection == observed.facts.identity
    assert output.items == (
        EngineItem(request_id=str(2**40), new_tokens=1),
        EngineItem(request_id="7", new_tokens=1, finished=True),
    )


def test_tgi_decode_counts_speculated_tokens() -> None:
    observed = call(DECODE, b"\x0a\x02\x08\x05", tgi_response((7, [1, 300, 70000], False)), Role.CLIENT)
    (output,) = observed.output.messages
    assert isinstance(output, EngineOutput)
    assert output.items == (EngineItem(request_id="7", new_tokens=3),)


def test_other_versions_and_methods_of_tgi_are_left_alone() -> None:
    for path in (
        PREFILL.replace("v3", "v1"),
        PREFILL.replace("Prefill", "Warmup"),
        "/generate.v3.Other/Prefill",
    ):
        assert not call(path, b"", tgi_response((7, [1], False)), Role.CLIENT).output.messages


@examples(40)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_as_tgi_messages_are_counted(request: bytes, response: bytes) -> None:
    observed = call(PREFILL, request, response, Role.SERVER)
    (exchange,) = observed.exchanges
    assert exchange.rpc is not None and (exchange.rpc.requests, exchange.rpc.responses) == (1, 1)
    assert observed.counted.keys() <= {"engine_layout_unknown"}
