"""What attributes were before a store made texts of them. Pure.

The Collector's exporter to ClickHouse keeps each value as ``pcommon.Value.AsString`` writes it: numbers and booleans as
in JSON, arrays as JSON. Which keys have texts is known of their descriptions' examples; a key that nobody describes
stays a text, and its value is not given anyhow.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import msgspec

from otelgpu.engine.description_tables import described

_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,17})(?P<rest>\.\d{1,20})?(?P<power>e[+-]?\d{1,3})?", re.ASCII)
_LONGEST_LIST: Final = 1 << 16
_TEXTS: Final = frozenset({"network.protocol.version", "hw.serial_number", "otelgpu.job.id"})
"""Whose examples are numbers all the same."""


def restored(key: str, text: str) -> str | bool | int | float | list[Any]:
    """The value of an attribute.

    >>> restored("thread.id", "4071"), restored("gen_ai.response.model", "7"), restored("gen_ai.request.stream", "true")
    (4071, '7', True)
    """
    return _value(text) if key in _not_texts() else text


@cache
def _not_texts() -> frozenset[str]:
    return frozenset(
        key
        for each in described()
        for key, words in each.descriptions.attributes.items()
        if key not in _TEXTS and (not words.example or not isinstance(_value(words.example.strip("`")), str))
    )


def _value(text: str) -> str | bool | int | float | list[Any]:
    if text in ("true", "false"):
        return text == "true"
    if number := _NUMBER.fullmatch(text):
        return float(text) if number["rest"] or number["power"] else int(text)
    if text.startswith("[") and text.endswith("]") and len(text) <= _LONGEST_LIST:
        try:
            return msgspec.json.decode(text, type=list[str | bool | int | float])
        except msgspec.DecodeError:
            return text
    return text
