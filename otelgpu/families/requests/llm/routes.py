"""Which LLM APIs a request's path may be: the first and quickest test, for every request on every connection.

In: a path without its query. Out: a :class:`Route`. A path that only LLM servers have is ``sure``: the
exchange is a generation whatever its bodies hold. The others (``/generate``, ``/v1/messages``, ``/``) exist
in many applications: there the bodies decide, and the first API that fits them is the one.

gen_ai.operation.name: "chat", "text_completion", "embeddings" and "generate_content" are names of the
semantic conventions; "rerank", "score", "classify" and "infer" are ours, for what they do not name.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from otelgpu.families.requests.llm.anthropic import Messages
from otelgpu.families.requests.llm.api import Api
from otelgpu.families.requests.llm.gemini import Gemini
from otelgpu.families.requests.llm.llamacpp import LlamaCpp
from otelgpu.families.requests.llm.ollama import Ollama
from otelgpu.families.requests.llm.openai_completions import Completions
from otelgpu.families.requests.llm.openai_embeddings import Embeddings
from otelgpu.families.requests.llm.openai_realtime import Realtime
from otelgpu.families.requests.llm.openai_responses import Responses
from otelgpu.families.requests.llm.sglang import SGLang
from otelgpu.families.requests.llm.tgi import Tgi
from otelgpu.families.requests.llm.triton import TritonGenerate, TritonInfer
from otelgpu.families.requests.llm.triton_grpc import ModelInfer, ModelStreamInfer
from otelgpu.families.requests.llm.vllm_generate import VllmGenerate


class Route(Struct, frozen=True, kw_only=True):
    """What is known of a request by its path."""

    operation: str  # gen_ai.operation.name
    apis: tuple[Api, ...]  # the APIs that it may be, the likeliest first
    sure: bool = False
    model: str = ""  # where the path names it
    stream: bool = False  # where the path shows it


#: By the last segment of the path: what the path has to end in, and the route.
_BY_SEGMENT: Final[dict[str, tuple[tuple[str, Route], ...]]] = {}


def _add(suffix: str, operation: str, *apis: Api, sure: bool = False, stream: bool = False) -> None:
    segment = suffix.rpartition("/")[2]
    route = Route(operation=operation, apis=apis, sure=sure, stream=stream)
    _BY_SEGMENT[segment] = (*_BY_SEGMENT.get(segment, ()), (suffix, route))


_add("/chat/completions", "chat", Completions(), sure=True)
_add("/v1/completions", "text_completion", Completions(), sure=True)
_add("/completions", "text_completion", LlamaCpp(), Completions())
_add("/completion", "text_completion", LlamaCpp())
_add("/responses", "chat", Responses())
_add("/messages", "chat", Messages())
_add("/embeddings", "embeddings", Embeddings())
_add("/pooling", "embeddings", Embeddings())
_add("/rerank", "rerank", Embeddings())
_add("/score", "score", Embeddings())
_add("/classify", "classify", Embeddings())
_add("/inference/v1/generate", "text_completion", VllmGenerate())
_add("/api/chat", "chat", Ollama())
_add("/api/generate", "text_completion", Ollama())
_add("/api/embed", "embeddings", Ollama())
_add("/generate", "text_completion", SGLang(), Tgi())
_add("/generate_stream", "text_completion", Tgi(), stream=True)

_TRITON: Final = re.compile(
    r".*/v2/models/([^/]{1,256})(?:/versions/[^/]{1,256})?/(generate|generate_stream|infer)"
)
_TRITON_METHODS: Final = frozenset(("generate", "generate_stream", "infer"))
_TRITON_GENERATE: Final = (TritonGenerate(),)
_TRITON_INFER: Final = (TritonInfer(),)
_GEMINI: Final = re.compile(r".*/models/([^/:]{1,256}):(generateContent|streamGenerateContent)")
_GEMINI_APIS: Final = (Gemini(),)
_TGI_ROOT: Final = Route(operation="text_completion", apis=(Tgi(),))

_RPCS: Final = {
    "inference.GRPCInferenceService/ModelInfer": Route(operation="infer", apis=(ModelInfer(),), sure=True),
    "inference.GRPCInferenceService/ModelStreamInfer": Route(
        operation="infer", apis=(ModelStreamInfer(),), sure=True, stream=True
    ),
}
_REALTIME: Final = Route(operation="chat", apis=(Realtime(),), stream=True)


def find_route(method: str, path: str) -> Route | None:
    """Return the route of an HTTP request; None: no LLM API."""
    if method != "POST":
        return None
    segment = path.rpartition("/")[2]
    if segment in _TRITON_METHODS and (found := _TRITON.fullmatch(path)):
        model, name = found.groups()
        return Route(
            operation="infer" if name == "infer" else "text_completion",
            apis=_TRITON_INFER if name == "infer" else _TRITON_GENERATE,
            model=model,
            stream=name == "generate_stream",
        )
    for suffix, route in _BY_SEGMENT.get(segment, ()):
        if path.endswith(suffix):
            return route
    if ":" in segment and (found := _GEMINI.fullmatch(path)):
        model, name = found.groups()
        return Route(
            operation="generate_content",
            apis=_GEMINI_APIS,
            model=model,
            stream=name == "streamGenerateContent",
        )
    return _TGI_ROOT if path == "/" else None


def find_rpc(method: str) -> Route | None:
    """Return the route of a gRPC method, ``package.Service/Method``."""
    return _RPCS.get(method)


def find_realtime(path: str) -> Route | None:
    """Return the route of a WebSocket."""
    return _REALTIME if path.endswith("/realtime") else None
