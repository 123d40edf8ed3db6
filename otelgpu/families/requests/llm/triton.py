"""Triton and KServe over HTTP: ``/v2/models/M[/versions/V]/generate``, ``…/generate_stream`` and ``…/infer``.

Shapes:
https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/protocol/extension_generate.html
and https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol. The generate
extension's fields are the model's own tensors; language models by convention have ``text_input`` and
``text_output``. Nothing counts tokens. An ``infer`` request is one of any model: its operation is
``infer``, a name of ours, unless its tensors have those names.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, filled
from otelgpu.families.requests.llm.facts import MAX_TEXT, Facts

TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
TEXT_OPERATION = "text_completion"


class _Parameters(msgspec.Struct):
    max_tokens: int | None = None
    stream: bool | None = None


class _GenerateRequest(msgspec.Struct):
    text_input: msgspec.Raw = msgspec.Raw()
    parameters: _Parameters | None = None
    max_tokens: int | None = None
    stream: bool | None = None


class _GenerateResponse(msgspec.Struct):
    model_name: str | None = None
    id: str | None = None
    text_output: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _Tensor(msgspec.Struct):
    name: str = ""
    data: msgspec.Raw = msgspec.Raw()


class _InferRequest(msgspec.Struct):
    id: str | None = None
    inputs: list[_Tensor] | None = None


class _InferResponse(msgspec.Struct):
    model_name: str | None = None
    id: str | None = None
    outputs: list[_Tensor] | None = None


_decode_generate_request = msgspec.json.Decoder(_GenerateRequest).decode
_decode_generate_response = msgspec.json.Decoder(_GenerateResponse).decode
_decode_infer_request = msgspec.json.Decoder(_InferRequest).decode
_decode_infer_response = msgspec.json.Decoder(_InferResponse).decode


class TritonGenerate(Api):
    """The generate extension."""

    provider = "triton"

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the limit; the model is in the path."""
        request = _decode_generate_request(body)
        if not filled(request.text_input):
            return False
        limit = request.max_tokens
        if limit is None and request.parameters is not None:
            limit = request.parameters.max_tokens
        facts.asked(None, facts.stream, limit, None)
        if facts.capture is not None:
            facts.capture.asked(request.text_input)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole answer."""
        return self._take(facts, _decode_generate_response(body), 0)

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read a part of an answer."""
        return self._take(facts, _decode_generate_response(data), time_ns)

    @staticmethod
    def _take(facts: Facts, response: _GenerateResponse, time_ns: int) -> bool:
        if filled(response.error):
            facts.failed(None)
        if response.model_name is None:
            return False
        facts.named(response.id, response.model_name)
        if time_ns and filled(response.text_output):
            facts.content_at(time_ns)
        if facts.capture is not None:
            facts.capture.answered(response.text_output)
        return True


class TritonInfer(Api):
    """``infer`` of the KServe v2 protocol."""

    provider = "triton"

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the id and whether it is text that is asked about."""
        request = _decode_infer_request(body)
        if not request.inputs:
            return False
        facts.request_id = (request.id or "")[:MAX_TEXT]
        for tensor in request.inputs:
            if tensor.name == TEXT_INPUT:
                facts.operation = TEXT_OPERATION
                if facts.capture is not None:
                    facts.capture.asked(tensor.data)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read the model and the id."""
        response = _decode_infer_response(body)
        if response.model_name is None or response.outputs is None:
            return False
        facts.named(response.id, response.model_name)
        if facts.capture is not None:
            for tensor in response.outputs:
                if tensor.name == TEXT_OUTPUT:
                    facts.capture.answered(tensor.data)
        return True
