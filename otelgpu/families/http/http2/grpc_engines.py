"""Serving engines that speak gRPC between their processes: text-generation-inference, router to shards.

In: whole request and response messages of ``Prefill`` and ``Decode``. Out: engine messages, appended to the
session. It must not hold anything, and says nothing of a message that is not as expected.

Field numbers: proto/v3/generate.proto of huggingface/text-generation-inference; those that are read here are the
same in ``generate.v2`` (proto/generate.proto). ``generate.v1`` is not read: its ``Generation`` changed by release.
Encoding: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from otelgpu.families.http.open_exchange import OpenExchange
from otelgpu.families.http.protocol import Call
from otelgpu.families.http.session import Session
from otelgpu.model.engine import EngineItem, EngineOutput, EngineRequest
from otelgpu.model.exchange import StartSource

_METHOD = re.compile(r"generate\.v[23]\.TextGenerationService/(Prefill|Decode)")
_ENGINE = "tgi"
_MAX_ITEMS = 4096

_VARINT, _BYTES = 0, 2  # wire types
_FIXED_BYTES = {1: 8, 5: 4}


class _Malformed(Exception):
    """Not the message that was expected. Never leaves this module."""


class EngineReader:
    """Reads the messages of one method; ``asks``: whether its requests bring new ones to the engine."""

    __slots__ = ("_asks", "_connection")

    def __init__(self, connection: int, *, asks: bool) -> None:
        self._connection = connection
        self._asks = asks

    def request(
        self, session: Session, call: Call, exchange: OpenExchange, data: bytes, time_ns: int
    ) -> None:
        """Take a ``PrefillRequest``: batch = 1, of which requests = 2, of which id = 1."""
        if not self._asks:
            return
        try:
            requests = [
                _number(request, 1) for batch in _messages(data, 1) for request in _messages(batch, 2)
            ]
        except _Malformed:
            session.count("engine_layout_unknown")
            return
        session.messages.extend(
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
        self, session: Session, call: Call, exchange: OpenExchange, data: bytes, time_ns: int
    ) -> None:
        """Take a ``PrefillResponse`` or ``DecodeResponse``: generations = 1."""
        try:
            items = tuple(_item(generation) for generation in _messages(data, 1))
        except _Malformed:
            session.count("engine_layout_unknown")
            return
        if items:
            session.messages.append(
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


def engine_reader(method: str, connection: int) -> EngineReader | None:
    """Return who reads the messages of ``package.Service/Method``, or None when no known engine has it."""
    match = _METHOD.fullmatch(method)
    return EngineReader(connection, asks=match[1] == "Prefill") if match else None


def _item(generation: bytes) -> EngineItem:
    """Read a ``Generation``: request_id = 1, tokens = 3 (ids = 1, packed), generated_text = 4 at its end."""
    new_tokens = 0
    for tokens in _messages(generation, 3):
        for ids in _messages(tokens, 1):
            new_tokens += sum(byte < 0x80 for byte in ids)  # the last byte of each varint
    finished = next(_messages(generation, 4), None) is not None
    return EngineItem(request_id=str(_number(generation, 1)), new_tokens=new_tokens, finished=finished)


def _number(data: bytes, wanted: int) -> int:
    """Return a varint field; 0, which is not sent, without it."""
    for field, wire_type, start, _ in _fields(data):
        if field == wanted:
            if wire_type != _VARINT:
                raise _Malformed
            return _varint(data, start)[0]
    return 0


def _messages(data: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the bytes of a field, as often as it is there."""
    for field, wire_type, start, stop in _fields(data):
        if field == wanted:
            if wire_type != _BYTES:
                raise _Malformed
            yield data[start:stop]


def _fields(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, start and stop of the value of each field."""
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        wire_type = key & 7
        if wire_type == _BYTES:
            size, position = _varint(data, position)
            stop = position + size
        elif wire_type == _VARINT:
            stop = _varint(data, position)[1]
        elif wire_type in _FIXED_BYTES:
            stop = position + _FIXED_BYTES[wire_type]
        else:
            raise _Malformed
        if stop > end or not key >> 3:
            raise _Malformed
        yield key >> 3, wire_type, position, stop
        position = stop


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise _Malformed
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, position
    raise _Malformed
