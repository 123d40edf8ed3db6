"""What an LLM API says about itself: OpenAI-style ``/v1/chat/completions`` and ``/v1/completions``.

In: the body of a request and of its response, whole or with holes, with the time of each write. Out: a
:class:`~otelgpu.model.exchange.Generation`. It must not keep the text of a prompt or a completion: bodies
are dropped as soon as the few facts are read from them, and content is only tested for being empty.

A body with holes is not JSON any more; model, stream flag, ids and usage are then searched for in what was
captured. A quote inside a JSON string is escaped, so ``"model":`` cannot be part of a prompt.
"""

from __future__ import annotations

import re

import msgspec

from otelgpu.families.http.framing import Head
from otelgpu.families.http.kept_body import KeptBody
from otelgpu.families.http.session import Session
from otelgpu.families.http.sse import EventReader
from otelgpu.model.exchange import Generation

_OPERATIONS = (("/v1/chat/completions", "chat"), ("/v1/completions", "text_completion"))
_MAX_TEXT = 256
_MAX_CHOICES = 128
_MAX_TOKENS = 1 << 40

_EMPTY = frozenset((b"", b"null", b'""', b"[]", b"{}"))
_LONGEST_EMPTY = 4
_STRING = rb'"((?:[^"\\\x00-\x1f]|\\[^\x00-\x1f]){0,1024})"'
_MODEL = re.compile(rb'"model"\s{0,16}:\s{0,16}' + _STRING)
_ID = re.compile(rb'"id"\s{0,16}:\s{0,16}' + _STRING)
_STREAM = re.compile(rb'"stream"\s{0,16}:\s{0,16}true')
_FINISH_REASON = re.compile(rb'"finish_reason"\s{0,16}:\s{0,16}"([a-z_]{1,64})"')
_INPUT_TOKENS = re.compile(rb'"prompt_tokens"\s{0,16}:\s{0,16}([0-9]{1,12})(?![0-9])')
_OUTPUT_TOKENS = re.compile(rb'"completion_tokens"\s{0,16}:\s{0,16}([0-9]{1,12})(?![0-9])')
_ERROR_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FIRST_ERROR_STATUS = 400


class _Request(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Delta(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    refusal: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()
    function_call: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: msgspec.Raw = msgspec.Raw()
    finish_reason: str | None = None


class _Response(msgspec.Struct):
    """A response body, or one event of a stream."""

    id: str | int | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _Error(msgspec.Struct):
    type: str | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_error = msgspec.json.Decoder(_Error).decode
_decode_string = msgspec.json.Decoder(str).decode
#: What msgspec raises on bytes that are not the JSON asked for (bad UTF-8 is a ValueError).
_MALFORMED = (ValueError, RecursionError)


def llm_operation(method: str, path: str) -> str:
    """Return ``gen_ai.operation.name`` of a request, or the empty string when it is none of ours."""
    if method == "POST":
        for suffix, operation in _OPERATIONS:
            if path.endswith(suffix):
                return operation
    return ""


def _filled(raw: msgspec.Raw) -> bool:
    return len(raw) > _LONGEST_EMPTY or bytes(raw) not in _EMPTY


def _has_content(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return _filled(choice.text)
    return (
        len(delta.content) > _LONGEST_EMPTY
        or _filled(delta.content)
        or _filled(delta.reasoning_content)
        or _filled(delta.reasoning)
        or _filled(delta.tool_calls)
        or _filled(delta.function_call)
        or _filled(delta.refusal)
        or _filled(choice.text)
    )


def _encoded(head: Head) -> bool:
    return head.last(b"content-encoding").lower() not in (b"", b"identity")


class GenerationReader:
    """Reads one request and its response; every method may be left out, the answer is then poorer."""

    __slots__ = (
        "_content_deltas",
        "_events",
        "_finish_reasons",
        "_first_content_ns",
        "_holes",
        "_input_tokens",
        "_last_content_ns",
        "_operation",
        "_output_tokens",
        "_request",
        "_request_model",
        "_response",
        "_response_id",
        "_response_model",
        "_session",
        "_status",
        "_stream",
        "error",
    )

    def __init__(self, operation: str, session: Session) -> None:
        self._operation = operation
        self._session = session
        self._request: KeptBody | None = None
        self._response: KeptBody | None = None  # of JSON; a stream goes through _events
        self._events: EventReader | None = None
        self._holes = False
        self._status = 0
        self._stream = False
        self._request_model = ""
        self._response_model = ""
        self._response_id = ""
        self._input_tokens: int | None = None
        self._output_tokens: int | None = None
        self._finish_reasons: dict[int, str] = {}
        self._first_content_ns = 0
        self._last_content_ns = 0
        self._content_deltas = 0
        self.error = ""  # error.type of an error that came under a status of success

    def request_head(self, head: Head) -> bool:
        """Take the request's head; whether its body is wanted."""
        if _encoded(head):
            self._session.count("encoded_body")
            return False
        self._request = KeptBody(self._session)
        return True

    def request_body(self, data: bytes) -> None:
        """Take bytes of the request's body."""
        if self._request is not None:
            self._request.add(data)

    def request_gap(self, size: int) -> None:
        """Take note of missing bytes in the request's body."""
        if self._request is not None:
            self._request.gap(size)

    def request_ended(self, complete: bool = True) -> None:
        """Read the request's body, as far as it came, and drop it."""
        body, self._request = self._request, None
        if body is None:
            return
        first, last = body.first, body.last
        body.drop()
        if complete and body.whole:
            try:
                request = _decode_request(first)
            except _MALFORMED:
                self._session.count("json_malformed")
                return
            self._request_model = (request.model or "")[:_MAX_TEXT]
            self._stream = bool(request.stream)
            return
        self._request_model = _search_string(_MODEL, first, last)
        self._stream = any(_STREAM.search(part) for part in (first, last))

    def response_head(self, head: Head) -> bool:
        """Take the head of the final response; whether its body is wanted."""
        self._status = head.status
        if _encoded(head):
            self._session.count("encoded_body")
            return False
        media_type = head.last(b"content-type").partition(b";")[0].strip(b" \t").lower()
        if media_type == b"text/event-stream":
            self._events = EventReader()
            self._stream = True
            return True
        if media_type == b"application/json" or media_type.endswith(b"+json"):
            self._response = KeptBody(self._session)
            return True
        return False

    def response_body(self, data: bytes, write_ns: int) -> None:
        """Take bytes of the response's body that the write begun at ``write_ns`` carried."""
        events = self._events
        if events is None:
            if self._response is not None:
                self._response.add(data)
            return
        for event in events.feed(data):
            self._event(event, write_ns)

    def response_gap(self, size: int) -> None:
        """Take note of missing bytes in the response's body."""
        if self._events is not None:
            self._events.gap()
            self._holes = True
        elif self._response is not None:
            self._response.gap(size)

    def response_ended(self, complete: bool = True) -> None:
        """Read a JSON response, as far as it came, and drop it."""
        events = self._events
        if events is not None and events.too_long:
            self._session.count("stream_event_too_long", events.too_long)
            self._holes = True
            events.too_long = 0
        body, self._response = self._response, None
        if body is None:
            return
        first, last = body.first, body.last
        body.drop()
        if not (complete and body.whole):
            self._search_response(first, last)
            return
        try:
            response = _decode_response(first)
        except _MALFORMED:
            self._session.count("json_malformed")
            return
        self._take(response)

    def _event(self, data: bytes, write_ns: int) -> None:
        if data == b"[DONE]":
            return
        try:
            response = _decode_response(data)
        except _MALFORMED:
            self._session.count("json_malformed")
            return
        self._take(response, write_ns)

    def _take(self, response: _Response, write_ns: int = 0) -> None:
        """Take a whole response, or an event of the stream that the write begun at ``write_ns`` carried."""
        if not self._response_id and response.id:
            self._response_id = str(response.id)[:_MAX_TEXT]
        if not self._response_model and response.model:
            self._response_model = response.model[:_MAX_TEXT]
        for choice in response.choices or ():
            if choice.finish_reason and len(self._finish_reasons) < _MAX_CHOICES:
                self._finish_reasons[choice.index] = choice.finish_reason[:_MAX_TEXT]
            if write_ns and _has_content(choice):
                self._content_deltas += 1
                self._last_content_ns = write_ns
                self._first_content_ns = self._first_content_ns or write_ns
        if response.usage and _filled(response.usage):
            self._take_usage(response.usage)
        if (
            response.error
            and _filled(response.error)
            and not self.error
            and self._status < _FIRST_ERROR_STATUS
        ):
            self.error = self._error_type(response.error)

    def _take_usage(self, raw: msgspec.Raw) -> None:
        try:
            usage = _decode_usage(raw)
        except _MALFORMED:
            self._session.count("json_malformed")
            return
        if usage.prompt_tokens is not None and 0 <= usage.prompt_tokens <= _MAX_TOKENS:
            self._input_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None and 0 <= usage.completion_tokens <= _MAX_TOKENS:
            self._output_tokens = usage.completion_tokens

    def _error_type(self, raw: msgspec.Raw) -> str:
        unknown = "stream_error" if self._events is not None else "response_error"
        try:
            error = _decode_error(raw)
        except _MALFORMED:
            return unknown
        return error.type if error.type and _ERROR_TYPE.fullmatch(error.type) else unknown

    def _search_response(self, first: bytes, last: bytes) -> None:
        self._response_id = _search_string(_ID, first)
        self._response_model = _search_string(_MODEL, first, last)
        reasons = _FINISH_REASON.findall(first) + _FINISH_REASON.findall(last)
        self._finish_reasons = {i: reason.decode() for i, reason in enumerate(reasons[:_MAX_CHOICES])}
        self._input_tokens = _search_number(_INPUT_TOKENS, last, first)
        self._output_tokens = _search_number(_OUTPUT_TOKENS, last, first)

    def generation(self) -> Generation:
        """Return what is known; call it once, when the exchange is over."""
        self.request_ended(complete=False)
        self.response_ended(complete=False)
        reported = self._output_tokens is not None
        tokens = self._output_tokens
        if not reported and self._events is not None and not self._holes:
            tokens = self._content_deltas
        return Generation(
            operation=self._operation,
            request_model=self._request_model,
            response_model=self._response_model,
            response_id=self._response_id,
            stream=self._stream,
            input_tokens=self._input_tokens,
            output_tokens=tokens,
            usage_reported=reported,
            finish_reasons=tuple(reason for _, reason in sorted(self._finish_reasons.items())),
            first_content_ns=self._first_content_ns,
            last_content_ns=self._last_content_ns,
            content_deltas=self._content_deltas,
        )

    def drop(self) -> None:
        """Give back what is kept without reading it."""
        for body in (self._request, self._response):
            if body is not None:
                body.drop()
        self._request = self._response = None


def _search_string(pattern: re.Pattern[bytes], *parts: bytes) -> str:
    for part in parts:
        match = pattern.search(part)
        if match is not None:
            try:
                return _decode_string(b'"' + match[1] + b'"')[:_MAX_TEXT]
            except _MALFORMED:
                continue
    return ""


def _search_number(pattern: re.Pattern[bytes], *parts: bytes) -> int | None:
    for part in parts:
        matches = pattern.findall(part)
        if matches:
            return int(matches[-1])
    return None
