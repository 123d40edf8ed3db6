"""Which LLM API a request is one to, by its body and its response's: where its path and method are not known.

They are not on an HTTP/2 connection found open, whose client sends them as numbers in a table that it filled before
(RFC 7541, section 2.3.2). In: heads without them, bodies, messages. Out: the same as a
:class:`~otelgpu.families.requests.llm.reader.GenerationReader` gives. It must not report what only one of the two
bodies shows: a request may be to any application, and several APIs have requests of one shape.

Example: ``{"model": "m", "messages": […]}`` may be OpenAI's, Anthropic's or Ollama's; the first event decides, and
until then each has a reader of its own, so that none takes what another's event said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from otelgpu.families.requests.llm.anthropic import Messages
from otelgpu.families.requests.llm.api import MALFORMED, MessageHead
from otelgpu.families.requests.llm.facts import Facts
from otelgpu.families.requests.llm.gemini import Gemini
from otelgpu.families.requests.llm.llamacpp import LlamaCpp
from otelgpu.families.requests.llm.ollama import Ollama
from otelgpu.families.requests.llm.openai_completions import Completions
from otelgpu.families.requests.llm.openai_embeddings import Embeddings
from otelgpu.families.requests.llm.openai_responses import Responses
from otelgpu.families.requests.llm.reader import GenerationReader
from otelgpu.families.requests.llm.routes import Route
from otelgpu.families.requests.llm.sglang import SGLang
from otelgpu.families.requests.llm.tgi import Tgi
from otelgpu.families.requests.llm.triton import TritonGenerate
from otelgpu.families.requests.llm.triton_grpc import (
    ModelInfer,
    ModelStreamInfer,
    has_tensors,
    infer_responses,
)
from otelgpu.families.requests.llm.vllm_generate import VllmGenerate
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.exchange import Generation

_EMBEDDING: Final = re.compile(rb'"object"\s{0,16}:\s{0,16}"embedding"')
_EMBEDDING_WITHIN: Final = 1024


class _Embeddings(Embeddings):
    """Not ``/classify`` and ``/score``, whose requests and responses are alike but for this."""

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read the model and the usage."""
        return _EMBEDDING.search(body, 0, _EMBEDDING_WITHIN) is not None and super().response(facts, body)


class _ModelInfer(ModelInfer):
    """Known by tensors of a model and their data types."""

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read a ModelInferRequest."""
        return has_tensors(body) and super().request(facts, body)

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read a ModelInferResponse."""
        return super().event(facts, data, time_ns) and has_tensors(data)


class _ModelStreamInfer(ModelStreamInfer):
    """Likewise, of a stream."""

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read a ModelInferRequest."""
        return has_tensors(body) and super().request(facts, body)

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read a ModelStreamInferResponse."""
        return super().event(facts, data, time_ns) and any(map(has_tensors, infer_responses(data)))


#: By a key that its requests have at the top, the routes of an API.
_ROUTES: Final = {
    "messages": (
        Route(operation="chat", apis=(Completions(),)),
        Route(operation="chat", apis=(Messages(),)),
        Route(operation="chat", apis=(Ollama(),)),
    ),
    "prompt": (
        Route(operation="text_completion", apis=(Completions(),)),
        Route(operation="text_completion", apis=(LlamaCpp(),)),
        Route(operation="text_completion", apis=(Ollama(),)),
    ),
    "input": (
        Route(operation="chat", apis=(Responses(),)),
        Route(operation="embeddings", apis=(_Embeddings(),)),
        Route(operation="embeddings", apis=(Ollama(),)),
    ),
    "inputs": (Route(operation="text_completion", apis=(Tgi(),)),),
    "contents": (Route(operation="generate_content", apis=(Gemini(),)),),
    "text": (Route(operation="text_completion", apis=(SGLang(),)),),
    "input_ids": (Route(operation="text_completion", apis=(SGLang(),)),),
    "text_input": (Route(operation="text_completion", apis=(TritonGenerate(),)),),
    "token_ids": (Route(operation="text_completion", apis=(VllmGenerate(),)),),
}
_KEY: Final = re.compile(rb'"(' + "|".join(_ROUTES).encode() + rb')"\s{0,16}:')
"""In a part of a body. A quote inside a JSON string is escaped: this is no part of a prompt."""
_MESSAGE_ROUTES: Final = (
    Route(operation="infer", apis=(_ModelInfer(),)),
    Route(operation="infer", apis=(_ModelStreamInfer(),), stream=True),
)
_NO_ROUTE: Final = Route(operation="", apis=())

_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ContentReader(GenerationReader):
    """One exchange of unknown path."""

    __slots__ = ("_candidates", "_chosen")

    def __init__(self, output: ParserOutput) -> None:
        super().__init__(_NO_ROUTE, output)
        self._candidates: list[GenerationReader] = []
        self._chosen: GenerationReader | None = None

    @property
    def error(self) -> str:
        """``error.type`` of an error that came under a status of success."""
        return self._chosen.error if self._chosen is not None else ""

    @property
    def request_id(self) -> str:
        """The id under which other processes know the request."""
        return self._chosen.request_id if self._chosen is not None else ""

    def _take_request(self, first: bytes, last: bytes, *, whole: bool) -> None:
        self._consider(_routes(first, whole=whole), first, last, whole=whole)

    def request_message(self, data: bytes, time_ns: int) -> None:
        """Take a whole message of the client; the first one shows what it may be."""
        if self._chosen is None and not self._candidates:
            self._consider(_MESSAGE_ROUTES, data, b"", whole=True)

    def response_head(self, head: MessageHead, *, doubtful: bool = False) -> bool:
        """Take the head of the final response; whether its body is wanted."""
        self.request_ended(complete=False)
        readers = self._readers()
        wanted = bool(readers) and readers[0].response_head(head, doubtful=doubtful)
        for reader in readers[1:] if wanted else ():  # what one wants all of them do
            reader.response_head(head, doubtful=doubtful)
        return wanted

    def response_began_unseen(self) -> None:
        """Note that the response's head and beginning were not seen."""
        self.request_ended(complete=False)
        for reader in self._readers():
            reader.response_began_unseen()

    def response_body(self, data: bytes, time_ns: int) -> None:
        """Take bytes of the response's body that were moved at ``time_ns``."""
        for reader in self._readers():
            reader.response_body(data, time_ns)
        self._choose()

    def response_message(self, data: bytes, time_ns: int) -> None:
        """Take a whole message of the server that was moved at ``time_ns``."""
        for reader in self._readers():
            reader.response_message(data, time_ns)
        self._choose()

    def response_gap(self, size: int) -> None:
        """Note missing bytes in the response's body."""
        for reader in self._readers():
            reader.response_gap(size)

    def response_ended(self, complete: bool = True) -> None:
        """Read a JSON response, as far as it came."""
        for reader in self._readers():
            reader.response_ended(complete)
        self._choose()

    def generation(self) -> Generation | None:
        """Return what is known; None unless both bodies showed one API."""
        self.request_ended(complete=False)
        self.response_ended(complete=False)
        found = self._chosen.generation() if self._chosen is not None else None
        self.drop()
        return found

    def drop(self) -> None:
        """Give back what is kept without reading it."""
        super().drop()
        for reader in self._readers():
            reader.drop()

    def _readers(self) -> list[GenerationReader]:
        return self._candidates if self._chosen is None else [self._chosen]

    def _consider(self, routes: Iterable[Route], first: bytes, last: bytes, *, whole: bool) -> None:
        readers = [GenerationReader(route, self._output) for route in routes]
        self._candidates = [each for each in readers if each.may_be(first, last, whole=whole)]

    def _choose(self) -> None:
        if self._chosen is not None:
            return
        self._chosen = next((reader for reader in self._candidates if reader.response_fits), None)
        if self._chosen is not None:
            for reader in self._candidates:
                if reader is not self._chosen:
                    reader.drop()
            self._candidates = []


def _routes(body: bytes, *, whole: bool) -> list[Route]:
    """The routes whose requests have keys of this body, or of a part of one."""
    if whole:
        try:
            keys = set(_decode_keys(body))
        except MALFORMED:
            return []
    else:
        keys = {found.decode() for found in _KEY.findall(body)}
    return [route for key, routes in _ROUTES.items() if key in keys for route in routes]
