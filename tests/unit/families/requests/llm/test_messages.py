"""Generations that come as messages: Triton's gRPC, by the public field numbers, and realtime WebSockets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.llm.reader import GenerationReader, grpc_reader, realtime_reader
from otelgpu.families.requests.parser_output import ParserOutput
from tests.rig.examples import examples
from tests.unit.families.requests.llm.exchanges import BUDGET
from tests.unit.families.requests.llm.transcripts import ASKED, SAID

_TYPES = descriptor_pb2.FieldDescriptorProto
STRING, BYTES, MESSAGE = _TYPES.TYPE_STRING, _TYPES.TYPE_BYTES, _TYPES.TYPE_MESSAGE

#: grpc_service.proto of Triton, as far as it is read here, and the shape that stands in the way.
SCHEMA: dict[str, list[tuple[int, str, int, str, bool]]] = {
    "Contents": [(8, "bytes_contents", BYTES, "", True)],
    "Tensor": [
        (1, "name", STRING, "", False),
        (2, "datatype", STRING, "", False),
        (3, "shape", _TYPES.TYPE_INT64, "", True),
        (5, "contents", MESSAGE, "Contents", False),
    ],
    "ModelInferRequest": [
        (1, "model_name", STRING, "", False),
        (2, "model_version", STRING, "", False),
        (3, "id", STRING, "", False),
        (5, "inputs", MESSAGE, "Tensor", True),
        (7, "raw_input_contents", BYTES, "", True),
    ],
    "ModelInferResponse": [
        (1, "model_name", STRING, "", False),
        (2, "model_version", STRING, "", False),
        (3, "id", STRING, "", False),
        (5, "outputs", MESSAGE, "Tensor", True),
        (6, "raw_output_contents", BYTES, "", True),
    ],
    "ModelStreamInferResponse": [
        (1, "error_message", STRING, "", False),
        (2, "infer_response", MESSAGE, "ModelInferResponse", False),
    ],
}


def _messages() -> dict[str, Any]:
    """Message classes of protobuf's own library."""
    file = descriptor_pb2.FileDescriptorProto(name="triton.proto", package="inference", syntax="proto3")
    for name, members in SCHEMA.items():
        message = file.message_type.add(name=name)
        for number, member, kind, type_name, repeated in members:
            label = _TYPES.LABEL_REPEATED if repeated else _TYPES.LABEL_OPTIONAL
            field = message.field.add(name=member, number=number, type=kind, label=label)
            if type_name:
                field.type_name = f".inference.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}"))
        for name in SCHEMA
    }


MESSAGES = _messages()


def raw(text: str) -> bytes:
    """A BYTES tensor of one element, as raw contents."""
    data = text.encode()
    return len(data).to_bytes(4, "little") + data


def infer_request(**more: Any) -> bytes:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1]}
    message = {"model_name": "llm", "id": "7", "inputs": [tensor], "raw_input_contents": [raw(ASKED)], **more}
    data: bytes = MESSAGES["ModelInferRequest"](**message).SerializeToString()
    return data


def response(text: str) -> dict[str, Any]:
    tensor = {"name": "text_output", "datatype": "BYTES", "shape": [1]}
    return {"model_name": "llm", "model_version": "1", "id": "7", "outputs": [tensor],
            "raw_output_contents": [raw(text)]}  # fmt: skip


def stream_response(text: str = "", error: str = "") -> bytes:
    message = {"error_message": error} if error else {"infer_response": response(text)}
    data: bytes = MESSAGES["ModelStreamInferResponse"](**message).SerializeToString()
    return data


def rpc(name: str, output: ParserOutput | None = None) -> GenerationReader:
    reader = grpc_reader(f"inference.GRPCInferenceService/{name}", output or ParserOutput(BUDGET))
    assert reader is not None
    return reader


def test_a_triton_stream() -> None:
    reader = rpc("ModelStreamInfer")
    reader.request_message(infer_request(), 5)
    for time_ns, text in ((10, ""), (20, SAID), (30, "!")):
        reader.response_message(stream_response(text), time_ns)
    reported = reader.generation()
    assert reported is not None
    assert (reported.operation, reported.provider, reported.request_model, reported.response_model,
    reported.response_id) == ( "text_completion", "triton", "llm", "llm", "7",
    )  # fmt: skip
    assert (reported.stream, reported.first_chunk_ns, reported.first_content_ns, reported.content_deltas) == (
        True,
        10,
        20,
        2,
    )
    assert (reported.output_tokens, reported.usage_reported, reported.request_id) == (2, False, "7")


def test_a_triton_call_is_no_stream() -> None:
    reader = rpc("ModelInfer")
    reader.request_message(infer_request(), 5)
    reader.response_message(MESSAGES["ModelInferResponse"](**response(SAID)).SerializeToString(), 10)
    reported = reader.generation()
    assert reported is not None
    assert (reported.stream, reported.first_chunk_ns, reported.first_content_ns, reported.output_tokens) == (
        False,
        0,
        0,
        None,
    )
    assert (reported.response_model, reader.error) == ("llm", "")


def test_another_models_tensors_are_an_inference() -> None:
    reader = rpc("ModelInfer")
    reader.request_message(infer_request(inputs=[{"name": "image"}]), 5)
    reported = reader.generation()
    assert reported is not None
    assert reported.operation == "infer"


def test_a_triton_error_in_a_stream() -> None:
    reader = rpc("ModelStreamInfer")
    reader.response_message(stream_response(error="out of memory"), 10)
    assert reader.error == "stream_error"


@pytest.mark.parametrize("inline", [False, True])
def test_triton_text_is_kept_only_for_those_who_ask(inline: bool) -> None:
    contents: dict[str, Any] = {}
    if inline:
        tensor = {"name": "text_input", "contents": {"bytes_contents": [ASKED.encode()]}}
        contents = {"inputs": [tensor], "raw_input_contents": []}
    for capture in (False, True):
        reader = rpc("ModelStreamInfer", ParserOutput(BUDGET, capture_content=capture))
        reader.request_message(infer_request(**contents), 5)
        reader.response_message(stream_response(SAID), 10)
        reported = reader.generation()
        assert reported is not None
        assert (reported.content.request if reported.content else "") == (ASKED if capture else "")
        assert (reported.content.response if reported.content else "") == (SAID if capture else "")


def test_other_rpcs_are_no_generations() -> None:
    for method in ("inference.GRPCInferenceService/ServerLive", "pkg.Greeter/Hello", ""):
        assert grpc_reader(method, ParserOutput(BUDGET)) is None


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
@examples(50)
@given(data=st.one_of(st.binary(max_size=60), st.integers(0, 60).map(lambda n: infer_request()[n:]),
                      st.integers(0, 60).map(lambda n: stream_response(SAID)[:n])))  # fmt: skip
def test_bytes_that_are_no_message_never_raise(name: str, data: bytes) -> None:
    output = ParserOutput(BUDGET)
    reader = rpc(name, output)
    reader.request_message(data, 5)
    reader.response_message(data, 10)
    reader.generation()
    assert {name for name, count in output.counters.items() if count} <= {"json_malformed"}


def spoken(*events: tuple[str, dict[str, Any]], output: ParserOutput | None = None) -> GenerationReader:
    reader = realtime_reader("/v1/realtime", output or ParserOutput(BUDGET))
    assert reader is not None
    for i, (sender, event) in enumerate(events):
        take = reader.request_message if sender == "client" else reader.response_message
        take(json.dumps(event).encode(), (i + 1) * 10)
    return reader


def done(response_id: str, status: str, input_tokens: int, output_tokens: int) -> tuple[str, dict[str, Any]]:
    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens,
             "input_token_details": {"cached_tokens": 1}}  # fmt: skip
    return "server", {
        "type": "response.done",
        "response": {"id": response_id, "status": status, "usage": usage},
    }


CONVERSATION = (
    ("server", {"type": "session.created", "session": {"model": "gpt-realtime"}}),
    ("client", {"type": "session.update", "session": {"model": "asked"}}),
    (
        "client",
        {"type": "conversation.item.create", "item": {"content": [{"type": "input_text", "text": ASKED}]}},
    ),
    ("client", {"type": "response.create"}),
    ("server", {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}),
    ("server", {"type": "response.output_text.delta", "delta": SAID}),
    ("server", {"type": "response.output_audio.delta", "delta": "UklGRg=="}),
    done("resp_1", "completed", 10, 4),
    ("server", {"type": "response.created", "response": {"id": "resp_2"}}),
    done("resp_2", "cancelled", 20, 0),
)


def test_a_realtime_conversation() -> None:
    reader = spoken(*CONVERSATION)
    reported = reader.generation()
    assert reported is not None
    assert (reported.operation, reported.request_model, reported.response_model, reported.response_id) == (
        "chat", "asked", "gpt-realtime", "resp_1",
    )  # fmt: skip
    assert (
        reported.stream,
        reported.first_content_ns,
        reported.last_content_ns,
        reported.content_deltas,
    ) == (
        True,
        60,
        70,
        2,
    )
    assert (reported.input_tokens, reported.output_tokens, reported.cached_tokens) == (30, 4, 2)
    assert reported.finish_reasons == ("completed", "cancelled")
    assert ASKED not in repr(reported)


def test_realtime_text_for_those_who_ask_and_never_its_audio() -> None:
    reported = spoken(*CONVERSATION, output=ParserOutput(BUDGET, capture_content=True)).generation()
    assert reported is not None
    assert reported.content is not None
    assert ASKED in reported.content.request
    assert reported.content.response == SAID


def test_a_realtime_error() -> None:
    reader = spoken(CONVERSATION[0], ("server", {"type": "error", "error": {"type": "server_error"}}))
    assert reader.error == "server_error"


def test_a_web_socket_of_another_application() -> None:
    assert realtime_reader("/ws/game", ParserOutput(BUDGET)) is None
    reader = spoken(("client", {"type": "join", "room": 1}), ("server", {"type": "joined"}), ("server", {}))
    assert reader.generation() is None
