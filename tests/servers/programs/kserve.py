"""The service over gRPC, by KServe's protocol: what its servers answer, and its messages, which have few fields.

The methods are those of ``inference.GRPCInferenceService``; a request's id is ``chatcmpl-NUMBER``. Calls, truth and
environment are those of service.py.

| request | calls | answer |
|---|---|---|
| ModelInfer, of the model `TINY` | 0, then 1 and 2 at the same time | one message |
| ModelStreamInfer, of the same | the same, and 3 after the first token | `TOKENS` messages of a token, PAUSE_S apart |
| ModelInfer, of `FAILING` | 0 | INTERNAL |
| ModelInfer, of `PATIENT` | the same as of `TINY` | none: it waits until its client gives up |
| ModelStreamInfer, of `PATIENT` | the same | two messages, then as above |
| either, of another | none | NOT_FOUND |
| ServerLive | none | an empty message |
| anything else | none | UNIMPLEMENTED |

Messages: grpc_service.proto of https://github.com/triton-inference-server/common.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SERVICE: Final = "inference.GRPCInferenceService"
TINY: Final = "tiny"
FAILING: Final = "failing"
PATIENT: Final = "patient"
TOKENS: Final = 6
TOKENS_BEFORE_WAITING: Final = 2
_MODEL, _ID, _TENSORS, _RESPONSE = 1, 3, 5, 2


def infer_request(model: str, number: str) -> bytes:
    """A ModelInferRequest."""
    return _infer(model, number, "text_input", b"Say token.")


def infer_response(model: str, number: str, text: str) -> bytes:
    """A ModelInferResponse."""
    return _infer(model, number, "text_output", text.encode())


def stream_response(model: str, number: str, text: str) -> bytes:
    """A ModelStreamInferResponse."""
    return _field(_RESPONSE, infer_response(model, number, text))


def asked(request: bytes) -> tuple[str, str]:
    """The model and the number of a ModelInferRequest."""
    fields = dict(_fields(request))
    return fields[_MODEL].decode(), fields[_ID].decode().removeprefix("chatcmpl-")


def _infer(model: str, number: str, tensor: str, text: bytes) -> bytes:
    contents = _field(8, text)
    tensors = _field(1, tensor.encode()) + _field(2, b"BYTES") + _field(5, contents)
    return (
        _field(_MODEL, model.encode())
        + _field(_ID, b"chatcmpl-" + number.encode())
        + _field(_TENSORS, tensors)
    )


def _field(number: int, value: bytes) -> bytes:
    """One that has a length, of less than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    while message:
        number, size = message[0] >> 3, message[1]
        yield number, message[2 : 2 + size]
        message = message[2 + size :]
