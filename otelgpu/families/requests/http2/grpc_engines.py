"""Serving engines that use gRPC between their processes: text-generation-inference, router to shards.

In: whole request and response messages of ``Prefill`` and ``Decode``. Out: engine messages, appended to the
output. It must not keep anything, and reports nothing of a message that is not as expected.

Field numbers: proto/v3/generate.proto of huggingface/text-generation-inference; those that are read here are the
same in ``generate.v2`` (proto/generate.proto). ``generate.v1`` is not read: its ``Generation`` changed by release.
"""

from __future__ import annotations

import re

from otelgpu.families.requests.open_exchange import OpenExchange
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call
from otelgpu.model.engine_messages import EngineItem, EngineOutput, EngineRequest
from otelgpu.model.exchange import StartSource
from otelgpu.protobuf.fields import ProtobufError, integer, messages

_METHOD = re.compile(r"generate\.v[23]\.TextGenerationService/(Prefill|Decode)")
_ENGINE = "tgi"
_MAX_ITEMS = 4096


class GrpcEngineReader:
    """Reads the messages of one method; ``asks``: whether its requests bring new ones to the engine."""

    __slots__ = ("_asks", "_connection")

    def __init__(self, connection: int, *, asks: bool) -> None:
        self._connection = connection
        self._asks = asks

    def request(
        self, output: ParserOutput, call: Call, exchange: OpenExchange, data: bytes, time_ns: int
    ) -> None:
        """Take a ``PrefillRequest``: batch = 1, of which requests = 2, of which id = 1."""
        if not self._asks:
            return
        try:
            requests = [integer(request, 1) for batch in messages(data, 1) for request in messages(batch, 2)]
        except ProtobufError:
            output.count("engine_layout_unknown")
            return
        output.messages.extend(
            EngineRequest(
                time_ns=time_ns,
                tgid=call.tgid,
                tid=call.tid,
                sent=exchange.start_source is StartSource.WRITE,
                engine=_ENGINE,
                request_id=str(request),
                published=call.published,
            )
            for request in requests[:_MAX_ITEMS]
        )

    def response(
        self, output: ParserOutput, call: Call, exchange: OpenExchange, data: bytes, time_ns: int
    ) -> None:
        """Take a ``PrefillResponse`` or ``DecodeResponse``: generations = 1."""
        try:
            items = tuple(_item(generation) for generation in messages(data, 1))
        except ProtobufError:
            output.count("engine_layout_unknown")
            return
        if items:
            output.messages.append(
                EngineOutput(
                    time_ns=time_ns,
                    tgid=call.tgid,
                    tid=call.tid,
                    sent=exchange.start_source is not StartSource.WRITE,
                    connection=self._connection,
                    engine=_ENGINE,
                    items=items[:_MAX_ITEMS],
                )
            )


def engine_reader(method: str, connection: int) -> GrpcEngineReader | None:
    """Return who reads the messages of ``package.Service/Method``, or None when no known engine has it."""
    match = _METHOD.fullmatch(method)
    return GrpcEngineReader(connection, asks=match[1] == "Prefill") if match else None


def _item(generation: bytes) -> EngineItem:
    """Read a ``Generation``: request_id = 1, tokens = 3 (ids = 1, packed), generated_text = 4 at its end."""
    new_tokens = 0
    for tokens in messages(generation, 3):
        for ids in messages(tokens, 1):
            new_tokens += sum(byte < 0x80 for byte in ids)  # the last byte of each varint
    finished = next(messages(generation, 4), None) is not None
    return EngineItem(request_id=str(integer(generation, 1)), new_tokens=new_tokens, finished=finished)
