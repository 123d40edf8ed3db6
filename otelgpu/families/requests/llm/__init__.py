"""What LLM requests and their responses report, of every supported API and transport.

In: a method and a path, then heads, body bytes and messages with their times, whole or with gaps. Out: a
:class:`~otelgpu.model.exchange.Generation`, or nothing where the bodies turned out to be no LLM API's. It
must not know about connections or protocols, and keeps no text unless ``ParserOutput.capture_content`` is set.

A new API is a module with a subclass of ``api.Api`` and a line in ``routes``.
"""

from __future__ import annotations

from typing import Final

from otelgpu.families.requests.llm.reader import GenerationReader
from otelgpu.families.requests.llm.routes import find_realtime, find_route, find_rpc
from otelgpu.families.requests.llm.server_signs import HEADERS as _SERVER_SIGNS
from otelgpu.families.requests.parser_output import ParserOutput

__all__ = ["HEADERS", "GenerationReader", "grpc_reader", "http_reader", "realtime_reader"]

#: Header names (lower case) that readers use: a parser that keeps only some headers must keep these.
HEADERS: Final = frozenset((b"content-encoding", b"content-type")) | _SERVER_SIGNS


def http_reader(method: str, path: str, output: ParserOutput) -> GenerationReader | None:
    """Return a reader for a request, by its method and path (no query), or None when no LLM API has it."""
    route = find_route(method, path)
    return GenerationReader(route, output) if route is not None else None


def grpc_reader(method: str, output: ParserOutput) -> GenerationReader | None:
    """Return a reader for an RPC, by its ``package.Service/Method``, or None when no LLM API has it."""
    route = find_rpc(method)
    return GenerationReader(route, output) if route is not None else None


def realtime_reader(path: str, output: ParserOutput) -> GenerationReader | None:
    """Return a reader for the messages of a WebSocket, by its path (no query), or None when none has it."""
    route = find_realtime(path)
    return GenerationReader(route, output) if route is not None else None
