"""Triton and KServe over gRPC: ``inference.GRPCInferenceService/ModelInfer`` and ``/ModelStreamInfer``.

Messages: grpc_service.proto of https://github.com/triton-inference-server/common (package ``inference``),
by field number: ModelInferRequest {model_name 1, id 3, inputs 5 {name 1, datatype 2, contents 5 {bytes_contents 8}},
raw_input_contents 7}; ModelInferResponse {model_name 1, id 3, outputs 5, raw_output_contents 6};
ModelStreamInferResponse {error_message 1, infer_response 2}. A raw BYTES tensor is 4 bytes of length
(little-endian), then the text, for each element.

A stream may carry several requests; the first one's id and model count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otelgpu.families.requests.llm.api import Api
from otelgpu.families.requests.llm.facts import MAX_TEXT, Facts
from otelgpu.families.requests.llm.triton import TEXT_INPUT, TEXT_OPERATION, TEXT_OUTPUT
from otelgpu.protobuf.fields import ProtobufError, fields, messages

_LENGTH_BYTES: Final = 4
_DATA_TYPES: Final = frozenset(
    b"BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16 BYTES".split()
)
"""Of a tensor: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol."""


class _Infer:
    """A request or a response: the few fields that matter."""

    __slots__ = ("id", "model", "names", "texts")

    def __init__(self, data: bytes, raw_contents: int) -> None:
        self.model = ""
        self.id = ""
        self.names: list[bytes] = []  # of the tensors, in order
        self.texts: list[bytes] = []  # their contents, by the same order
        inline: list[bytes] = []
        for number, value in fields(data):
            if isinstance(value, int):
                continue
            if number == 1:
                self.model = value.decode("utf-8", "replace")
            elif number == 3:
                self.id = value.decode("utf-8", "replace")
            elif number == 5:
                name, contents = _tensor(value)
                self.names.append(name)
                inline.append(contents)
            elif number == raw_contents:
                self.texts.append(value[_LENGTH_BYTES:])
        self.texts = self.texts or inline

    def text(self, name: str) -> bytes | None:
        """Return the first element of a BYTES tensor; None where there is no such tensor."""
        for tensor, text in zip(self.names, self.texts, strict=False):
            if tensor == name.encode():
                return text
        return None


def _tensor(data: bytes) -> tuple[bytes, bytes]:
    name = contents = b""
    for number, value in fields(data):
        if isinstance(value, int):
            continue
        if number == 1:
            name = value
        elif number == 5:
            contents = next((v for n, v in fields(value) if n == 8 and isinstance(v, bytes)), b"")
    return name, contents


def has_tensors(data: bytes) -> bool:
    """Whether a message names a model and has tensors of known types: a ModelInferRequest or ModelInferResponse."""
    named, types = False, []
    try:
        for number, value in fields(data):
            if isinstance(value, int):
                return False  # no field of either is a number
            named = named or (number == 1 and bool(value))
            if number == 5:
                types.append(next((v for n, v in fields(value) if n == 2), b""))
    except ProtobufError:
        return False
    return named and bool(types) and all(kind in _DATA_TYPES for kind in types)


def infer_responses(data: bytes) -> Iterator[bytes]:
    """The ModelInferResponse of a ModelStreamInferResponse, if it has one. Raises ProtobufError."""
    return messages(data, 2)


class ModelInfer(Api):
    """One request, one response."""

    provider = "triton"

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read a ModelInferRequest."""
        infer = _Infer(body, raw_contents=7)
        if not infer.model:
            return False
        if not facts.request_model:
            facts.asked(infer.model, facts.stream, None, None)
            facts.request_id = infer.id[:MAX_TEXT]
        text = infer.text(TEXT_INPUT)
        if text is not None:
            facts.operation = TEXT_OPERATION
            if facts.capture is not None:
                facts.capture.asked_text(text)
        return True

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read a ModelInferResponse."""
        return self._take(facts, data, 0)

    @staticmethod
    def _take(facts: Facts, data: bytes, time_ns: int) -> bool:
        infer = _Infer(data, raw_contents=6)
        facts.named(infer.id, infer.model)
        text = infer.text(TEXT_OUTPUT)
        if text and time_ns:
            facts.content_at(time_ns)
        if text and facts.capture is not None:
            facts.capture.answered_text(text)
        return bool(infer.model)


class ModelStreamInfer(ModelInfer):
    """Requests and responses of a stream."""

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read a ModelStreamInferResponse."""
        for number, value in fields(data):
            if isinstance(value, int):
                raise ProtobufError("not a ModelStreamInferResponse")
            if number == 1 and value:
                facts.failed(None)
            elif number == 2:
                self._take(facts, value, time_ns)
        return True
