"""Finds the few facts of a JSON body that has gaps, by its keys.

In: the first and the last part of a body. Out: values in the facts. A quote inside a JSON string is
escaped, so ``"model":`` cannot be part of a prompt. Repetitions in the patterns are bounded: they take
linear time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from otelgpu.families.requests.llm.facts import Facts

_SPACE = rb"\s{0,16}:\s{0,16}"
_STRING = rb'"((?:[^"\\\x00-\x1f]|\\[^\x00-\x1f]){0,1024})"'
_NUMBER = rb"([0-9]{1,12})(?![0-9])"
_STREAM = re.compile(rb'"stream"' + _SPACE + b"true")
_MAX_REASONS = 128

_decode_string = msgspec.json.Decoder(str).decode


class Search:
    """The keys of one API, by what they mean."""

    __slots__ = ("_finish", "_id", "_input", "_model", "_output", "_request_model")

    def __init__(
        self,
        *,
        id: str = "id",
        model: str = "model",
        finish: str = "finish_reason",
        input_tokens: str = "prompt_tokens",
        output_tokens: str = "completion_tokens",
    ) -> None:
        self._request_model = _key("model", _STRING)
        self._id = _key(id, _STRING)
        self._model = _key(model, _STRING)
        self._finish = _key(finish, rb'"([A-Za-z_]{1,64})"')
        self._input = _key(input_tokens, _NUMBER)
        self._output = _key(output_tokens, _NUMBER)

    def request(self, facts: Facts, first: bytes, last: bytes) -> None:
        """Take the model and whether a stream is asked for."""
        facts.asked(
            _string(self._request_model, first, last),
            any(_STREAM.search(part) for part in (first, last)),
            None,
            None,
        )

    def response(self, facts: Facts, first: bytes, last: bytes) -> bool:
        """Take ids, model, tokens and finish reasons; whether there was any that only such an API has."""
        facts.named(_string(self._id, first), _string(self._model, first, last))
        reasons = self._finish.findall(first) + self._finish.findall(last)
        for choice, reason in enumerate(reasons[:_MAX_REASONS]):
            facts.finished(reason.decode(), choice)
        output = _number(self._output, last, first)
        facts.used(_number(self._input, last, first), output)
        return bool(reasons) or output is not None


def _key(name: str, value: bytes) -> re.Pattern[bytes]:
    return re.compile(b'"' + name.encode() + b'"' + _SPACE + value)


def _string(pattern: re.Pattern[bytes], *parts: bytes) -> str:
    for part in parts:
        match = pattern.search(part)
        if match is not None:
            try:
                return _decode_string(b'"' + match[1] + b'"')
            except (ValueError, RecursionError):
                continue
    return ""


def _number(pattern: re.Pattern[bytes], *parts: bytes) -> int | None:
    for part in parts:
        matches = pattern.findall(part)
        if matches:
            return int(matches[-1])
    return None
