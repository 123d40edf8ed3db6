"""Reads one request to an LLM API and its response, over HTTP, gRPC or a WebSocket.

In: heads, body bytes, gaps and messages, each response's with the time at which it was moved. Out: a
:class:`~otelgpu.model.exchange.Generation`, or None where the bytes turned out to be no LLM API's. It must
not keep text: bodies are dropped as soon as the few facts are read from them, and content is only tested
for being empty (unless ``ParserOutput.capture_content`` is set). It raises on no bytes; what it cannot read is
counted.
"""

from __future__ import annotations

from typing import Final

from otelgpu.families.requests.kept_body import KeptBody
from otelgpu.families.requests.llm.api import MALFORMED, Api, MessageHead
from otelgpu.families.requests.llm.cut_json import closed
from otelgpu.families.requests.llm.facts import Facts
from otelgpu.families.requests.llm.inflate import ENCODINGS, BodyInflater
from otelgpu.families.requests.llm.lines import LineReader
from otelgpu.families.requests.llm.routes import Route, find_realtime, find_route, find_rpc
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.sse import EventReader
from otelgpu.model.exchange import Generation

_SIGNS: Final = frozenset(
    (b"server", b"x-generated-tokens", b"x-inference-time", b"x-prompt-tokens", b"x-queue-time")
)
"""Of the server and its work.

* TGI's (router/src/server.rs), on answers that are not streamed: ``x-queue-time`` and ``x-inference-time`` in
  milliseconds, ``x-prompt-tokens``, ``x-generated-tokens``. LoRAX, its fork, sends the same.
* ``server: llama.cpp`` (tools/server/server.cpp).
"""
_MS_PER_S: Final = 1000
_MAX_DIGITS: Final = 12

HEADERS: Final = frozenset((b"content-encoding", b"content-type")) | _SIGNS
"""Header names (lower case) that readers ask a head for: whoever keeps only some headers has to keep these."""

_DONE: Final = b"[DONE]"
_GZIP: Final = b"\x1f\x8b"  # RFC 1952, section 2.3.1
_SPACE: Final = b" \t\r\n"
_FIELDS: Final = (
    b"data:",
    b"event:",
    b"id:",
    b"retry:",
    b":",
    b"\xef\xbb\xbf",
)  # a stream of events begins so
_BEGINNINGS: Final = (*_FIELDS, _GZIP)
_LINES: Final = frozenset(
    (b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-jsonlines")
)


class GenerationReader:
    """One exchange. Any call may be missing, the result then holds less; ``generation`` or ``drop`` ends it."""

    __slots__ = (
        "_apis",
        "_begun",
        "_done",
        "_events",
        "_facts",
        "_fits",
        "_gaps",
        "_output",
        "_request",
        "_request_inflater",
        "_response",
        "_response_fits",
        "_response_inflater",
        "_settled",
        "_sure",
        "_time_ns",
        "_unknown_type",
    )

    def __init__(self, route: Route, output: ParserOutput) -> None:
        self._output = output
        self._sure = route.sure
        self._fits = route.sure  # whether this is a generation
        self._settled = False  # whether bytes showed it
        self._apis = route.apis  # that it may still be; one, once bytes fitted it
        self._facts = Facts(route.operation, output)
        self._facts.request_model = route.model
        self._facts.stream = route.stream
        self._request: KeptBody | None = None
        self._request_inflater: BodyInflater | None = None
        self._response: KeptBody | None = None  # of JSON; a stream goes through _events
        self._response_inflater: BodyInflater | None = None
        self._events: EventReader | LineReader | None = None
        self._gaps = False
        self._done = False  # whether the server said that its stream is complete
        self._response_fits = False  # whether bytes of the response showed which API it is
        self._unknown_type = False  # the response's first bytes show what it is
        self._begun = b""  # of these, those that came and were too few
        self._time_ns = 0  # of the last bytes of the response

    @property
    def error(self) -> str:
        """``error.type`` of an error that came under a status of success; empty while there is none."""
        return self._facts.error if self._fits else ""

    @property
    def request_id(self) -> str:
        """The id under which other processes know the request; empty until the response reported it."""
        return self._facts.request_id or self._facts.response_id if self._fits else ""

    @property
    def is_broken_off(self) -> bool:
        """Whether all of a stream was seen, of an API that says why it ends, and it did not."""
        reasoned = self._done or self._facts.finishes or self._facts.error
        seen = self._fits and self._events is not None and not self._gaps
        return seen and self._apis[0].says_why_it_ends and not reasoned

    @property
    def response_fits(self) -> bool:
        """Whether bytes of the response can only be those of an API of this route."""
        return self._response_fits

    def request_head(self, head: MessageHead) -> bool:
        """Take the request's head; whether its body is wanted."""
        if not self._sure and (media := media_type(head)) and not is_json(media):
            return False
        wanted, self._request_inflater = decoding(head, self._output)
        if wanted:
            self._request = KeptBody(self._output)
        return wanted

    def may_be(self, first: bytes, last: bytes, *, whole: bool) -> bool:
        """Take a request of unknown path, in parts unless ``whole``; whether only its response can tell what it is."""
        self._take_request(first, last, whole=whole)
        may_be, self._fits, self._settled = self._fits or not whole, False, False
        return may_be

    def request_body(self, data: bytes) -> None:
        """Take bytes of the request's body."""
        if self._request is None:
            return
        if self._request_inflater is None:
            self._request.add(data)
            return
        for chunk in self._request_inflater.feed(data):
            self._request.add(chunk)

    def request_gap(self, size: int) -> None:
        """Note missing bytes in the request's body."""
        if self._request_inflater is not None:
            self._request_inflater.gap()
        if self._request is not None:
            self._request.gap(size)

    def request_ended(self, complete: bool = True) -> None:
        """Read the request's body, as far as it came, and drop it."""
        body, self._request = self._request, None
        if body is None:
            return
        whole = self._inflated(self._request_inflater, complete) and complete and body.whole
        self._request_inflater = None
        first, last = body.first, body.last
        body.drop()
        self._take_request(first, last, whole=whole)

    def _take_request(self, first: bytes, last: bytes, *, whole: bool) -> None:
        if whole:
            self._read_request(first)
        else:
            self._apis[0].search.request(self._facts, first, last)

    def response_head(self, head: MessageHead, *, doubtful: bool = False) -> bool:
        """Take the head of the final response; whether its body is wanted. ``doubtful``: fields of it are unknown."""
        facts = self._facts
        facts.status = head.status
        self._unknown_type = False
        _take_signs(facts, head)
        media = media_type(head)
        if media == b"text/event-stream":
            self._events = EventReader()
        elif media in _LINES:
            self._events = LineReader()
        elif is_json(media):
            self._response = KeptBody(self._output)
        elif doubtful and not media:
            self._unknown_type = True
        else:
            return False
        wanted, self._response_inflater = decoding(head, self._output)
        if not wanted:
            self._events = self._response = None
            self._unknown_type = False
        elif self._events is not None:
            facts.stream = True
        return wanted

    def response_began_unseen(self) -> None:
        """Note that the response's head and beginning were not seen, and what comes is the rest of its body."""
        self._unknown_type = True
        self.response_gap(0)

    def response_body(self, data: bytes, time_ns: int) -> None:
        """Take bytes of the response's body that were moved at ``time_ns``."""
        self._time_ns = time_ns
        events = self._events
        if self._unknown_type and self._response_inflater is None:
            data, self._begun = self._begun + data, b""
            if data.startswith(_GZIP):
                self._response_inflater = BodyInflater(b"gzip")
        if self._response_inflater is not None:
            for chunk in self._response_inflater.feed(data):
                self._plain(chunk, time_ns)
        elif events is not None:  # the usual case of a stream: what _plain does, without the call
            for event in events.feed(data):
                self._event(event, time_ns)
            if events.cut:
                self._cut_events(events, time_ns)
        else:
            self._plain(data, time_ns)

    def response_gap(self, size: int) -> None:
        """Note missing bytes in the response's body; 0: an unknown number, which may be more than one event's."""
        inflater, events = self._response_inflater, self._events
        self._begun = b""
        if inflater is not None:
            inflater.gap()
        if events is None or not events.gap() or inflater is not None or not size:
            self._unseen()
        if self._response is not None:
            self._response.gap(size)

    def _unseen(self) -> None:
        """Something of a stream was not seen, which may have been a token."""
        self._gaps = True
        self._facts.missed_response()

    def response_ended(self, complete: bool = True) -> None:
        """Read a JSON response, as far as it came, and drop it."""
        whole = self._inflated(self._response_inflater, complete)
        self._response_inflater = None
        events = self._events
        if events is not None:
            self._gaps = self._gaps or not whole
            if complete and isinstance(events, LineReader):
                for line in events.ended():
                    self._event(line, self._time_ns)
                self._cut_events(events, self._time_ns)
            if events.is_in_cut:
                self._unseen()
            self._output.count("stream_event_too_long", events.too_long)
            events.too_long = 0
        body, self._response = self._response, None
        if body is None:
            return
        first, last = body.first, body.last
        whole = whole and complete and body.whole
        body.drop()
        if whole:
            self._read_response(first)
        elif self._apis[0].search.response(self._facts, first, last):
            self._fits = True
            self._response_fits = self._facts.output_tokens is not None

    def request_message(self, data: bytes, time_ns: int) -> None:
        """Take a whole message of the client (gRPC, WebSocket)."""
        self._read_request(data)

    def response_message(self, data: bytes, time_ns: int) -> None:
        """Take a whole message of the server (gRPC, WebSocket) that was moved at ``time_ns``."""
        self._event(data, time_ns)

    def generation(self) -> Generation | None:
        """Return what is known, None where this is no LLM API; call it once, when the exchange is over."""
        self.request_ended(complete=False)
        self.response_ended(complete=False)
        facts = self._facts
        streamed = self._events is not None or facts.first_chunk_ns > 0
        generation = None
        if self._fits:
            generation = facts.generation(self._apis[0].provider, streamed=streamed, whole=not self._gaps)
        facts.drop()
        return generation

    def drop(self) -> None:
        """Give back what is kept without reading it."""
        for body in (self._request, self._response):
            if body is not None:
                body.drop()
        self._request = self._response = None
        self._facts.drop()

    def _find_type(self, data: bytes) -> None:
        """Tell by the first bytes of a response, if they suffice: a stream of events, or of lines, or JSON."""
        text = data.lstrip(_SPACE)
        if any(len(text) < len(each) and each.startswith(text) for each in _BEGINNINGS):
            self._begun = text
            return
        self._unknown_type = False
        if text.startswith(_FIELDS):
            self._events = EventReader()
        elif any(api.is_line(text) for api in self._apis):
            self._events = LineReader()
        else:
            self._response = KeptBody(self._output)
        self._facts.stream = self._facts.stream or self._events is not None
        if self._gaps and self._response is not None:
            self._response.gap(0)

    def _plain(self, data: bytes, time_ns: int) -> None:
        if self._unknown_type:
            data, self._begun = self._begun + data, b""
            self._find_type(data)
        if self._events is not None:
            for event in self._events.feed(data):
                self._event(event, time_ns)
            if self._events.cut:
                self._cut_events(self._events, time_ns)
        elif self._response is not None:
            self._response.add(data)

    def _event(self, data: bytes, time_ns: int) -> None:
        facts = self._facts
        if not facts.first_chunk_ns and facts.stream:
            facts.first_chunk_ns = time_ns
        for api in self._apis:
            try:
                if api.event(facts, data, time_ns):
                    if not self._settled:
                        self._is(api)
                        self._response_fits = True
                    return
            except MALFORMED:
                if data == _DONE:  # no JSON either; asked only here, for it costs every event else
                    self._done = True
                    return
                self._malformed()

    def _cut_events(self, events: EventReader | LineReader, time_ns: int) -> None:
        """Of each the beginning shows whether it has content, and the end what the server reports."""
        facts = self._facts
        for event in events.cut:
            deltas = facts.content_deltas
            if facts.choices is None:  # else another's content may be in what is missing
                self._apis[0].search.response(facts, b"", event.end)
                beginning = closed(event.beginning)
                if beginning is not None:
                    self._event(beginning, time_ns)
            if facts.content_deltas == deltas:
                self._unseen()
        events.cut.clear()

    def _read_request(self, body: bytes) -> None:
        for api in self._apis:
            try:
                if api.request(self._facts, body):
                    self._is(api)
                    return
            except MALFORMED:
                self._malformed()

    def _read_response(self, body: bytes) -> None:
        for api in self._apis:
            try:
                if api.response(self._facts, body):
                    self._is(api)
                    self._response_fits = True
                    return
            except MALFORMED:
                self._malformed()

    def _is(self, api: Api) -> None:
        """Bytes fitted this API."""
        self._fits = self._settled = True
        self._apis = (api,)

    def _malformed(self) -> None:
        """Bytes are not what their API promises; on an unsure path they may be another application's."""
        if self._fits:
            self._output.count("json_malformed")

    def _inflated(self, inflater: BodyInflater | None, complete: bool) -> bool:
        """Whether a body was read to its end, as far as its encoding is concerned; counts why not."""
        if inflater is None:
            return True
        if complete:
            inflater.ended()
        if not inflater.failure:
            return True
        self._output.count(inflater.failure)
        return False


def media_type(head: MessageHead) -> bytes:
    """``content-type`` without its parameters, in lower case."""
    return head.last(b"content-type").partition(b";")[0].strip(b" \t").lower()


def is_json(media: bytes) -> bool:
    """Whether a body of this type is JSON."""
    return media == b"application/json" or media.endswith(b"+json")


def decoding(head: MessageHead, output: ParserOutput) -> tuple[bool, BodyInflater | None]:
    """Whether a body can be read, and what undoes its content encoding."""
    encoding = head.last(b"content-encoding").lower()
    if encoding in (b"", b"identity"):
        return True, None
    if encoding in ENCODINGS and len(head.all(b"content-encoding")) == 1:
        return True, BodyInflater(encoding)
    output.count("encoded_body")
    return False, None


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


def _take_signs(facts: Facts, head: MessageHead) -> None:
    """Take what the head of a response reports of the server and its work."""
    queue_ms = _number(head.last(b"x-queue-time"))
    if queue_ms is not None and head.last(b"x-inference-time"):
        facts.provider = "tgi"
        facts.took(queue_s=queue_ms / _MS_PER_S)
        facts.used(_number(head.last(b"x-prompt-tokens")), _number(head.last(b"x-generated-tokens")))
    elif head.last(b"server") == b"llama.cpp":
        facts.provider = "llama.cpp"


def _number(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) <= _MAX_DIGITS else None
