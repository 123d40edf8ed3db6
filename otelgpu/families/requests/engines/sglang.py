"""SGLang's messages between its processes: bodies of ZeroMQ frames in, requests and outputs out.

They are msgspec Structs with ``tag`` and ``array_like``: MessagePack arrays ``[class name, rid or rids,
http_worker_ipc, field…]``. The fields read here have had the same positions since there are such messages.
Before, and with SGLANG_USE_PICKLE_IPC, they are pickles, which are not read here; so is the trace context, within.

A step is reported by the scheduler's ``BatchTokenIDOutput`` (``BatchStrOutput`` is the detokenizer's, of the same).
It counts all tokens of a request so far; the new ones are the difference to the message before. Requests that do
not stream are reported of every 50th token only (``DEFAULT_FORCE_STREAM_INTERVAL``), so not every step names them.

Source: ``sglang/srt/managers/io_struct.py`` and ``utils/msgpack_utils.py`` of the wheels 0.5.16, 0.5.20 and 0.5.23,
read in 2026-11; 0.5.13 still has pickles.
"""

from __future__ import annotations

from array import array

import msgspec

from otelgpu.families.requests.engines import msgpack
from otelgpu.families.requests.engines.envelope import Envelope, is_request_id
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.zmtp.frames import Body
from otelgpu.model.engine_messages import EngineItem, EngineMessage, EngineOutput, EngineRequest

ENGINE = "sglang"
MAX_COUNTED = 65_536  # requests of which the tokens so far are known

_REQUESTS = ("TokenizedGenerateReqInput", "TokenizedEmbeddingReqInput")
_BATCHES = ("BatchTokenizedGenerateReqInput", "BatchTokenizedEmbeddingReqInput")
_OUTPUTS = {"BatchTokenIDOutput": 13, "BatchEmbeddingOutput": None}  # where completion_tokens is
_RID, _BATCH, _FINISHED_REASONS, _INPUT_IDS = 1, 3, 3, 4
_EXT_ARRAY = 1  # array.array: u32 size of the metadata, metadata (its type code, in MessagePack), items

_strings = msgspec.msgpack.Decoder(list[str])
_integers = msgspec.msgpack.Decoder(list[int])
_anything = msgspec.msgpack.Decoder()
_text = msgspec.msgpack.Decoder(str)


class SglangReader:
    """Reads the messages of one connection. ``late``: requests were under way before observation began."""

    __slots__ = ("_late", "_output", "_tokens")

    def __init__(self, output: ParserOutput, *, late: bool) -> None:
        self._output = output
        self._late = late
        self._tokens: dict[str, int] = {}  # so far, by rid; the oldest first

    def read(self, tag: str, body: Body, envelope: Envelope) -> list[EngineMessage]:
        """Return what a message of that class reports; nothing where it is of another kind, or in doubt."""
        if tag not in (*_REQUESTS, *_BATCHES, *_OUTPUTS):
            return []
        if not body.complete:
            return self._cut(tag, body, envelope)
        values = msgpack.elements(body.head) or []
        try:
            if tag in _OUTPUTS:
                return [self._engine_output(tag, values, envelope)]
            batch = (msgpack.elements(values[_BATCH]) or []) if tag in _BATCHES else [body.head]
            return [_request(msgpack.elements(request) or [], envelope) for request in batch]
        except (*msgpack.MALFORMED, ValueError, IndexError):
            self._output.count("engine_layout_unknown")
            return []

    def _cut(self, tag: str, body: Body, envelope: Envelope) -> list[EngineMessage]:
        """A request's id comes first: it is known even where the rest was not captured."""
        outer = msgpack.array_at(body.head, 0)
        named = msgpack.string_at(body.head, outer[1]) if outer else None
        found = msgpack.string_at(body.head, named[1]) if named else None
        if tag not in _REQUESTS or found is None or not is_request_id(found[0]):
            self._output.count("engine_messages_cut")
            return []
        self._output.count("engine_parent_unseen")
        return [_made(found[0], None, envelope)]

    def _engine_output(self, tag: str, values: list[msgspec.Raw], envelope: Envelope) -> EngineOutput:
        rids = _strings.decode(values[_RID])
        reasons = msgpack.elements(values[_FINISHED_REASONS])
        place = _OUTPUTS[tag]
        totals = [0] * len(rids) if place is None else _integers.decode(values[place])
        if (
            reasons is None
            or not len(rids) == len(reasons) == len(totals)
            or not all(map(is_request_id, rids))
        ):
            raise ValueError(tag)
        kinds = msgpack.kinds(reasons)
        if kinds.strip("nm"):
            raise ValueError(kinds)
        items = tuple(
            self._item(rid, total, finished=reason == "m")
            for rid, total, reason in zip(rids, totals, kinds, strict=True)
        )
        return EngineOutput(
            time_ns=envelope.time_ns,
            tgid=envelope.tgid,
            tid=envelope.tid,
            sent=envelope.sent,
            connection=envelope.connection,
            engine=ENGINE,
            items=items,
        )

    def _item(self, rid: str, total: int, *, finished: bool) -> EngineItem:
        before = self._tokens.pop(rid, None)
        if before is None and self._late:
            self._output.count("engine_tokens_unknown")
            before = total
        if not finished:
            self._tokens[rid] = total
            if len(self._tokens) > MAX_COUNTED:
                del self._tokens[next(iter(self._tokens))]
                self._late = True  # from now on, one that is not known may have been forgotten
        return EngineItem(request_id=rid, new_tokens=max(0, total - (before or 0)), finished=finished)


def _request(values: list[msgspec.Raw], envelope: Envelope) -> EngineRequest:
    request_id = _text.decode(values[_RID])
    if not is_request_id(request_id):
        raise ValueError(request_id)
    return _made(request_id, _array_length(values[_INPUT_IDS]), envelope)


def _made(request_id: str, prompt_tokens: int | None, envelope: Envelope) -> EngineRequest:
    return EngineRequest(
        time_ns=envelope.time_ns,
        tgid=envelope.tgid,
        tid=envelope.tid,
        sent=envelope.sent,
        engine=ENGINE,
        request_id=request_id,
        published=envelope.published,
        prompt_tokens=prompt_tokens,
    )


def _array_length(value: msgspec.Raw) -> int | None:
    """Return how many items an ``array.array`` has; None where there is none."""
    if msgpack.kind(value) == "n":
        return None
    packed = _anything.decode(value)
    if not isinstance(packed, msgspec.msgpack.Ext) or packed.code != _EXT_ARRAY:
        raise ValueError("input_ids")
    data = bytes(packed.data)
    start = 4 + int.from_bytes(data[:4], "big")
    return (len(data) - start) // array(_text.decode(data[4:start])).itemsize
