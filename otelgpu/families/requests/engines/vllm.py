"""vLLM's messages between API server and engine core: bodies of ZeroMQ frames in, requests and outputs out.

Both are msgspec Structs with ``array_like`` and ``omit_defaults``: MessagePack arrays whose positions have moved from
version to version, and whose defaults at the end are left out. The version is not on the wire. What a message
is made of (the kinds of its elements) shows which of :data:`LAYOUTS` it has; where that leaves a doubt, what is
doubtful is not read, and counted.

Source: ``vllm/v1/engine/__init__.py`` of the wheels 0.8.0, 0.8.5, 0.9.0, 0.9.2, 0.10.0, 0.10.1, 0.10.2, 0.11.0,
0.14.1, 0.16.0, 0.19.0, 0.20.0, 0.22.0, 0.24.0, 0.29.0 and 0.33.0, read in 2026-11. Tensors that go in frames of
their own come after these, and nothing in them is wanted.

Example: ``["r-1", [5, 6], nil, {…}, nil, 1.5, nil, nil, nil, nil, nil, 0, 0, 0, {"traceparent": "00-…"}]`` has the
kinds ``sanmnfnnnnniiim``: a request as of 0.22, of two prompt tokens, with its trace headers at 14.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from otelgpu.families.requests.engines import msgpack
from otelgpu.families.requests.engines.envelope import Envelope, is_request_id
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.trace_context import parse_trace_context
from otelgpu.families.requests.zmtp.frames import Body
from otelgpu.model.engine_messages import EngineItem, EngineOutput, EngineRequest
from otelgpu.model.exchange import TraceParent

ENGINE = "vllm"
ADD = b"\x00"  # EngineCoreRequestType.ADD, the frame before the request


class Layout(Struct, frozen=True):
    """The kinds of an ``EngineCoreRequest``'s elements: a regular expression for each, a blank between them."""

    since: str
    required: str
    optional: str  # left out at the end where they have their defaults
    prompt: int = 1
    trace_headers: int | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """All of it; compiled once, as ``re`` keeps what it compiled."""
        rest = "(?:" + self.optional.replace(" ", "(?:") + ".*" + ")?" * (self.optional.count(" ") + 1)
        return re.compile(self.required.replace(" ", "") + rest)


LAYOUTS: Final = (
    Layout("0.8.0", "s [sn] a [an] [an] [an] m [in] f [an]", "", prompt=2),
    Layout("0.8.5", "s a [an] [an] [an] m [in] f [an]", "[isn] i"),
    Layout("0.9.2", "s a [an] [an] [an] [mn] [an] [in] f [an] [sn] [in]", "i i i"),
    Layout(
        "0.10.2",
        "s a [an] [mn] [an] [in] f [an] [sn] [in]",
        "i i i [mn]",
        trace_headers=13,
    ),
    Layout(
        "0.11.0",
        "s [an] [an] [mn] [an] [in] f [an] [sn] [in]",
        "[an] i i i [mn]",
        trace_headers=14,
    ),
    Layout(
        "0.19.0",
        "s [an] [an] [mn] [an] f [an] [sn] [in]",
        "[an] i i i [mn]",
        trace_headers=13,
    ),
    Layout(
        "0.22.0",
        "s [an] [an] [mn] [an] f [an] [sn] [in]",
        "[an] [an] i i i [mn]",
        trace_headers=14,
    ),
)
_SHORTEST = min(len(layout.required.split()) for layout in LAYOUTS)
_LONGEST = 40  # elements: twice as many as any version has
_TRACE_PLACES = sorted({layout.trace_headers for layout in LAYOUTS if layout.trace_headers is not None})
_TRACE_HEADERS = re.compile(rb"[\x81\x82]\xabtraceparent\xd9\x37")
_AFTER_TRACE_HEADERS = re.compile("m(?:b|[sn]|$).*")


def read_request(body: Body, envelope: Envelope, output: ParserOutput) -> EngineRequest | None:
    """Return the request that follows an :data:`ADD`; None: not one, or it is in doubt."""
    fields = _whole_request(body, output) if body.complete else _cut_request(body, output)
    if fields is None:
        return None
    request_id, prompt_tokens, parent = fields
    return EngineRequest(
        time_ns=envelope.time_ns,
        tgid=envelope.tgid,
        tid=envelope.tid,
        sent=envelope.sent,
        engine=ENGINE,
        request_id=request_id,
        parent=parent,
        published=envelope.published,
        prompt_tokens=prompt_tokens,
    )


_Fields = tuple[str, int | None, TraceParent | None]


def _whole_request(body: Body, output: ParserOutput) -> _Fields | None:
    values = msgpack.elements(body.head) or []
    kinds = msgpack.kinds(values)
    layouts = [layout for layout in LAYOUTS if layout.pattern.fullmatch(kinds)]
    found = msgpack.string_at(memoryview(values[0]), 0) if layouts else None
    if found is None or not is_request_id(found[0]) or len({layout.prompt for layout in layouts}) > 1:
        output.count("engine_layout_unknown")
        return None
    prompt = msgpack.array_at(memoryview(values[layouts[0].prompt]), 0)
    places = {layout.trace_headers for layout in layouts if layout.trace_headers is not None}
    if len(places) > 1 and len(values) > min(places):
        output.count("engine_parent_unseen")
        places.clear()
    parent = next((_parent(values[place]) for place in places if place < len(values)), None)
    return found[0], prompt[0] if prompt else None, parent


def _cut_request(body: Body, output: ParserOutput) -> _Fields | None:
    """Read a request's first elements, and its trace headers from the end of it."""
    head = body.head
    outer = msgpack.array_at(head, 0)
    found = msgpack.string_at(head, outer[1]) if outer else None
    if outer is None or found is None:
        output.count("engine_messages_cut")
        return None
    count, (request_id, at) = outer[0], found
    if not _SHORTEST <= count <= _LONGEST or not is_request_id(request_id):
        output.count("engine_layout_unknown")
        return None
    prompt = msgpack.array_at(head, at)
    parent = _parent_at_the_end(bytes(body.tail), count)
    if parent is None and count > _TRACE_PLACES[0]:
        output.count("engine_parent_unseen")
    return request_id, prompt[0] if prompt else None, parent


def _parent_at_the_end(tail: bytes, count: int) -> TraceParent | None:
    """Find trace headers that are followed by just as many elements as a layout has after them.

    So text that only looks like them, in a prompt's or a parameter's string, is not taken for them: what
    follows it does not end where the message ends.
    """
    found = []
    for match in _TRACE_HEADERS.finditer(tail):
        for place in _TRACE_PLACES:
            values = msgpack.some_elements(tail[match.start() :], count - place) if count > place else None
            if values and _AFTER_TRACE_HEADERS.fullmatch(msgpack.kinds(values)):
                found.append(_parent(values[0]))
    return found[0] if len(found) == 1 else None


def _parent(headers: msgspec.Raw) -> TraceParent | None:
    try:
        values = _headers.decode(headers)
    except msgpack.MALFORMED:
        return None
    named = {name.lower(): value.encode() for name, value in (values or {}).items()}
    parents, states = ([named[name]] if name in named else [] for name in ("traceparent", "tracestate"))
    return parse_trace_context(parents, states)


_headers = msgspec.msgpack.Decoder(dict[str, str] | None)


class _Output(msgspec.Struct, array_like=True, gc=False):
    """``EngineCoreOutput``. ``finish_reason`` has been at 4 (to 0.9.0) and, after ``pooling_output``, at 5."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: msgspec.Raw = msgpack.NIL
    new_prompt_logprobs: msgspec.Raw = msgpack.NIL
    fourth: msgspec.Raw = msgpack.NIL
    fifth: msgspec.Raw = msgpack.NIL


class _Stats(msgspec.Struct, gc=False):
    """``SchedulerStats``, a map; ``num_skipped_waiting_reqs`` are as well in the queue."""

    num_running_reqs: int | None = None
    num_waiting_reqs: int | None = None
    num_skipped_waiting_reqs: int = 0


class _Outputs(msgspec.Struct, array_like=True, gc=False):
    """``EngineCoreOutputs``; before 0.8.5 without the first."""

    engine_index: int
    outputs: list[_Output]
    scheduler_stats: msgspec.Raw = msgpack.NIL


class _FirstOutputs(msgspec.Struct, array_like=True, gc=False):
    outputs: list[_Output]
    scheduler_stats: msgspec.Raw = msgpack.NIL


_outputs = msgspec.msgpack.Decoder(_Outputs)
_first_outputs = msgspec.msgpack.Decoder(_FirstOutputs)
_stats = msgspec.msgpack.Decoder(_Stats)
# Kinds of elements 4 and 5 → whether a request ended: pooling_output, finish_reason; or finish_reason, stop_reason.
_ENDS = dict.fromkeys(("nn", "an", "xn", "mn"), False) | dict.fromkeys(
    ("in", "ii", "is", "ni", "ai", "xi", "mi"), True
)


def read_output(body: Body, envelope: Envelope, output: ParserOutput) -> EngineOutput | None:
    """Return what a step gave; None: a message of another kind, or it is in doubt.

    A step of which a part was not captured is not reported: it would miss requests.
    """
    if not body.complete:
        output.count("engine_messages_cut")
        return None
    try:
        values = _decoder(body.head).decode(body.head)
        items = tuple([_item(output) for output in values.outputs])
    except (*msgpack.MALFORMED, ValueError):
        output.count("engine_layout_unknown")
        return None
    stats = _queues(values.scheduler_stats)
    if not items and stats.num_running_reqs is None:
        return None
    return EngineOutput(
        time_ns=envelope.time_ns,
        tgid=envelope.tgid,
        tid=envelope.tid,
        sent=envelope.sent,
        connection=envelope.connection,
        engine=ENGINE,
        items=items,
        waiting=None
        if stats.num_waiting_reqs is None
        else stats.num_waiting_reqs + stats.num_skipped_waiting_reqs,
        running=stats.num_running_reqs,
    )


def _decoder(data: bytearray) -> msgspec.msgpack.Decoder[_Outputs] | msgspec.msgpack.Decoder[_FirstOutputs]:
    outer = msgpack.array_at(data, 0)
    return _outputs if outer is None or msgpack.array_at(data, outer[1]) is None else _first_outputs


def _item(output: _Output) -> EngineItem:
    """Raises ValueError where the layout is in doubt."""
    request_id, fourth, fifth = output.request_id, output.fourth, output.fifth
    finished: bool | None = False  # most outputs are of requests that go on
    if fourth != msgpack.NIL or fifth != msgpack.NIL:
        finished = _ENDS.get(msgpack.kind(fourth) + msgpack.kind(fifth))
    if finished is None or not is_request_id(request_id):
        raise ValueError(request_id)
    return EngineItem(request_id, len(output.new_token_ids), finished)


def _queues(stats: msgspec.Raw) -> _Stats:
    try:
        return _stats.decode(stats)
    except msgpack.MALFORMED:
        return _Stats()
