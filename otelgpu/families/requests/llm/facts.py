"""What has been read of one exchange so far, from which a :class:`~otelgpu.model.exchange.Generation` is made.

In: the few values that an API's module took from a body or an event. Out: the finished form. Everything is
bounded here, whatever a body contains: texts to MAX_TEXT characters, counts to MAX_TOKENS, choices to
MAX_CHOICES. No text of a prompt or an answer is held, except in ``capture``, which exists only where the
user asked for it.
"""

from __future__ import annotations

import math
import re
from array import array
from typing import Final

from otelgpu.families.requests.llm.capture import Capture
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.exchange import CONTENT_TIMES, Generation

MAX_TEXT: Final = 256
MAX_CHOICES: Final = 128
MAX_TOKENS: Final = 1 << 40
SEVERAL_IN_A_DELTA: Final = frozenset({"vllm", "sglang"})
"""Providers that send all that was generated since the last delta in one: their deltas are no count of tokens.

vLLM: ``RequestOutputCollector`` (vllm/v1/engine/output_processor.py). SGLang: ``_wait_one_response``
(sglang/srt/managers/tokenizer_manager.py). Both do where the API server is slower than the engine.
"""
_MAX_SECONDS: Final = 1e7
_TIMES_STEP: Final = 512  # content times are paid for in steps of 4 KiB
_TIME_BYTES: Final = 8
_FIRST_ERROR_STATUS: Final = 400
_ERROR_TYPE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Facts:
    """One request and its response. Plain fields may be set by anyone; methods bound what they take."""

    __slots__ = (
        "_finish_reasons",
        "_output",
        "_times_reserved",
        "began_unseen",
        "cached_tokens",
        "capture",
        "choices",
        "content_deltas",
        "content_times_ns",
        "content_tokens",
        "decode_s",
        "error",
        "first_chunk_ns",
        "first_chunk_unseen",
        "first_content_ns",
        "input_tokens",
        "last_content_ns",
        "max_tokens",
        "operation",
        "output_tokens",
        "prefill_s",
        "progress",
        "provider",
        "queue_s",
        "reasoning_tokens",
        "request_id",
        "request_model",
        "response_id",
        "response_model",
        "signs_sought",
        "status",
        "stream",
    )

    def __init__(self, operation: str, output: ParserOutput) -> None:
        self._output = output
        self.operation = operation
        self.provider = ""  # where the response shows another flavour than its API's
        self.status = 0
        self.request_model = ""
        self.response_model = ""
        self.response_id = ""
        self.request_id = ""
        self.stream = False
        self.max_tokens: int | None = None
        self.choices: int | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.content_tokens: int | None = None
        self.queue_s: float | None = None
        self.prefill_s: float | None = None
        self.decode_s: float | None = None
        self.error = ""
        self.first_chunk_ns = 0
        self.first_chunk_unseen = False  # something was missing before it, which may have held an earlier one
        self.first_content_ns = 0
        self.began_unseen = False  # something was missing before the first content, which may have been in it
        self.last_content_ns = 0
        self.content_deltas = 0
        self.content_times_ns = array("Q")
        self._times_reserved = 0
        self._finish_reasons: dict[int, str] = {}
        self.progress: dict[int, int] = {}  # of APIs that report cumulative counts: tokens by choice
        self.signs_sought = False  # whether the first event was searched for the server's flavour
        self.capture = Capture(output) if output.capture_content else None

    def asked(self, model: str | None, stream: bool | None, max_tokens: int | None, n: int | None) -> None:
        """Take a request's parameters; None for those it lacks. A stream that was seen already stays one."""
        self.request_model = (model or self.request_model)[:MAX_TEXT]
        self.stream = self.stream or bool(stream)
        self.max_tokens = count(max_tokens)
        self.choices = n if n is not None and 1 < n <= MAX_TOKENS else None

    def named(self, response_id: str | int | None, model: str | None) -> None:
        """Take the response's id and model; the first that come count."""
        if response_id and not self.response_id:
            self.response_id = str(response_id)[:MAX_TEXT]
        if model and not self.response_model:
            self.response_model = model[:MAX_TEXT]

    def used(
        self,
        input_tokens: int | None,
        output_tokens: int | None,
        cached: int | None = None,
        reasoning: int | None = None,
    ) -> None:
        """Take token counts that the server reported; None and absurd ones change nothing."""
        if (tokens := count(input_tokens)) is not None:
            self.input_tokens = tokens
        if (tokens := count(output_tokens)) is not None:
            self.output_tokens = tokens
        if (tokens := count(cached)) is not None:
            self.cached_tokens = tokens
        if (tokens := count(reasoning)) is not None:
            self.reasoning_tokens = tokens

    def took(
        self, *, queue_s: float | None = None, prefill_s: float | None = None, decode_s: float | None = None
    ) -> None:
        """Take durations in seconds that the server reported; None and absurd ones change nothing."""
        if (reported := _seconds(queue_s)) is not None:
            self.queue_s = reported
        if (reported := _seconds(prefill_s)) is not None:
            self.prefill_s = reported
        if (reported := _seconds(decode_s)) is not None:
            self.decode_s = reported

    def finished(self, reason: str | None, choice: int = 0) -> None:
        """Take a choice's finish reason; None and the empty one change nothing."""
        if reason and (choice in self._finish_reasons or len(self._finish_reasons) < MAX_CHOICES):
            self._finish_reasons[choice] = reason[:MAX_TEXT]

    @property
    def finishes(self) -> int:
        """How many choices are finished."""
        return len(self._finish_reasons)

    def failed(self, error_type: str | None) -> None:
        """Note an error inside a response of success, by its type where it has a usable one.

        Under a 4xx or 5xx status the status is the error.
        """
        if self.error or self.status >= _FIRST_ERROR_STATUS:
            return
        if error_type and _ERROR_TYPE.fullmatch(error_type):
            self.error = error_type
        else:
            self.error = "stream_error" if self.first_chunk_ns else "response_error"

    def missed_response(self) -> None:
        """Note that something of the response is missing here."""
        self.first_chunk_unseen = self.first_chunk_unseen or not self.first_chunk_ns
        self.began_unseen = self.began_unseen or not self.content_deltas

    def content_at(self, time_ns: int) -> None:
        """Note content that was moved at a time; what comes later is never earlier."""
        if not self.content_deltas:
            self.first_content_ns = time_ns
        elif time_ns < self.last_content_ns:
            time_ns = self.last_content_ns
        self.content_deltas += 1
        self.last_content_ns = time_ns
        times = self.content_times_ns
        if len(times) < self._times_reserved or self._make_room():
            times.append(time_ns)

    def advanced(self, tokens: int | None, choice: int = 0) -> bool:
        """Take a choice's count of tokens so far; whether it grew. The sum of all is what was reported."""
        reported = count(tokens)
        before = self.progress.get(choice, 0)
        if (
            reported is None
            or reported <= before
            or (choice not in self.progress and len(self.progress) >= MAX_CHOICES)
        ):
            return False
        self.progress[choice] = reported
        self.output_tokens = sum(self.progress.values()) if len(self.progress) > 1 else reported
        return True

    def _make_room(self) -> bool:
        reserved = self._times_reserved
        if reserved >= CONTENT_TIMES or not self._output.reserve(_TIMES_STEP * _TIME_BYTES):
            return False
        self._times_reserved = reserved + _TIMES_STEP
        return True

    def drop(self) -> None:
        """Give back the budget; what was read stays readable."""
        self._output.release(self._times_reserved * _TIME_BYTES)
        self._times_reserved = 0
        if self.capture is not None:
            self.capture.drop()

    def generation(self, flavour: str, *, streamed: bool, whole: bool) -> Generation:
        """Return the finished form. ``whole``: every content delta of what is ``streamed`` was seen, and counts."""
        tokens = self.output_tokens
        if tokens == 0 and self.content_deltas:  # some end their streams so, whatever was in them
            tokens = None
            self._output.count("usage_contradicted")
        reported = tokens is not None
        provider = self.provider or flavour
        if not reported and streamed and whole and provider not in SEVERAL_IN_A_DELTA:
            tokens = self.content_deltas
        return Generation(
            operation=self.operation,
            provider=provider,
            request_model=self.request_model,
            response_model=self.response_model,
            response_id=self.response_id,
            stream=self.stream,
            input_tokens=self.input_tokens,
            output_tokens=tokens,
            usage_reported=reported,
            finish_reasons=tuple(reason for _, reason in sorted(self._finish_reasons.items())),
            first_content_ns=0 if self.began_unseen else self.first_content_ns,
            last_content_ns=self.last_content_ns,
            content_deltas=self.content_deltas,
            first_chunk_ns=0 if self.first_chunk_unseen else self.first_chunk_ns,
            whole=whole,
            content_times_ns=self.content_times_ns,
            content_tokens=self.content_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
            max_tokens=self.max_tokens,
            choices=self.choices,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            request_id=self.request_id,
            content=self.capture.content() if self.capture is not None else None,
        )


def count(value: int | None) -> int | None:
    """Return a count of tokens, or None where it is none or absurd."""
    return value if value is not None and 0 <= value <= MAX_TOKENS else None


def _seconds(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and 0 <= value <= _MAX_SECONDS else None
