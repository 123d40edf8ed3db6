"""Reads OTLP/JSON lines, whoever wrote them: bytes of lines in, messages out. Pure.

In: the lines of one input, in their order. Out: :class:`~otelgpu.otlp_json.messages.Document`, and of those the spans,
metrics and attributes that somebody looks at. Nothing that a file says can raise: what cannot be read is passed over,
counted by its reason, and the first of each reason is remembered with its place (:class:`Skips`). Memory is that of a
line: how long one may be is for who reads the file to say (``otelgpu.store.line_files``).

Read beyond what the specification asks for: ids in base64, as protobuf's own JSON mapping writes them.

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from otelgpu.model.resource import AttributeValue
from otelgpu.otlp_json.messages import (
    AnyValue,
    Document,
    KeyValue,
    Metric,
    Number,
    ScopeMetrics,
    ScopeSpans,
    Span,
)

Message = TypeVar("Message")

LINES: Final = "lines_unreadable"
LINES_CUT: Final = "lines_cut"
RESOURCES: Final = "resources_unreadable"
SPANS: Final = "spans_unreadable"
METRICS: Final = "metrics_unreadable"
PROFILES: Final = "profiles_unreadable"
SAMPLES: Final = "samples_unreadable"

_LATEST: Final = 1 << 63  # nanoseconds: in 2262
_MOST_OF_A_REASON: Final = 200  # characters: it may quote what stands in the file


class Unreadable(ValueError):
    """Text that is not what its place asks for."""


class SkippedAt(Struct, frozen=True):
    """Where something was passed over, and why. Lines count from 1."""

    source: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.why}"


class Skips(Struct):
    """What was passed over, of one input or of several: how often for each reason, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, SkippedAt] = field(default_factory=dict)

    def add(self, reason: str, place: SkippedAt, count: int = 1) -> None:
        """Count ``reason``."""
        self.counts[reason] += count
        self.first.setdefault(reason, place)


class Reader:
    """Reads the lines of one input. ``line``: how many were read before."""

    def __init__(self, source: str = "", skips: Skips | None = None, *, line: int = 0) -> None:
        self.source = source
        self.skips = skips if skips is not None else Skips()
        self.line = line

    def documents(self, lines: Iterable[bytes | None], *, containing: bytes = b"") -> Iterator[Document]:
        """The documents of lines; None stands for a line too long to be read.

        Lines that lack the bytes ``containing`` are passed over unread: those of other signals.
        """
        for line in lines:
            self.line += 1
            if line is None:
                self.skip(LINES_CUT, "longer than what is read at once")
            elif containing in line and not line.isspace() and line:
                try:
                    yield decoded(_DOCUMENT, line)
                except Unreadable as error:
                    self.skip(LINES, error)

    def spans(self, scope: ScopeSpans) -> Iterator[Span]:
        """The spans of a scope. Whether their ids, times and attributes can be read is seen when they are."""
        for raw in scope.spans:
            try:
                yield decoded(_SPAN, raw)
            except Unreadable as error:
                self.skip(SPANS, error)

    def metrics(self, scope: ScopeMetrics) -> Iterator[Metric]:
        """The metrics of a scope."""
        for raw in scope.metrics:
            try:
                yield decoded(_METRIC, raw)
            except Unreadable as error:
                self.skip(METRICS, error)

    def skip(self, reason: str, why: object, count: int = 1) -> None:
        """Something in the line that is being read was passed over."""
        self.skips.add(reason, SkippedAt(self.source, self.line, str(why)[:_MOST_OF_A_REASON]), count)


def decoded(decoder: msgspec.json.Decoder[Message], text: bytes | msgspec.Raw) -> Message:
    """A message. Raises `Unreadable`."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def key_values(raw: bytes | msgspec.Raw) -> list[KeyValue]:
    """A list of attributes. Raises `Unreadable`."""
    return decoded(_KEY_VALUES, raw)


def attributes(raw: bytes | msgspec.Raw) -> dict[str, AttributeValue]:
    """A list of attributes, as the model has them; those without a key are left out. Raises `Unreadable`."""
    return {each.key: attribute_value(each.value) for each in key_values(raw) if each.key}


def attribute_value(value: AnyValue) -> AttributeValue:
    """A value as the model has them: an array is of texts, and of what the model lacks nothing is left but "".

    Raises `Unreadable`.
    """
    if value.string_value is not None:
        return value.string_value
    if value.bool_value is not None:
        return value.bool_value
    if value.int_value is not None:
        return int64(value.int_value)
    if value.double_value is not None:
        return double(value.double_value)
    if value.array_value is not None:
        try:
            return tuple(str(attribute_value(each)) for each in value.array_value.values)
        except RecursionError as error:
            raise Unreadable(str(error)) from error
    return ""


def int64(value: Number) -> int:
    """A signed integer of 64 bits; what has more wraps around. Raises `Unreadable`."""
    return (_integer(value) + 2**63) % 2**64 - 2**63


def uint64(value: Number) -> int:
    """An unsigned integer of 64 bits; what has more wraps around. Raises `Unreadable`."""
    return _integer(value) & 0xFFFF_FFFF_FFFF_FFFF


def time_ns(value: Number) -> int:
    """Nanoseconds since 1970, as signed columns hold them. Raises `Unreadable`."""
    time = _integer(value)
    if not 0 <= time < _LATEST:
        raise Unreadable(f"{value!r} is no time in nanoseconds")
    return time


def double(value: float | str) -> float:
    """A number, or the name of one that JSON lacks. Raises `Unreadable`."""
    try:
        return float(value)
    except ValueError as error:
        raise Unreadable(f"{value!r} is no number") from error


def identity(text: str, width: int) -> bytes:
    """An id of ``width`` bytes, in hex (two characters a byte) or base64 (fewer). Raises `Unreadable`."""
    try:
        found = bytes.fromhex(text) if len(text) == 2 * width else base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Unreadable(f"{text!r} is no id") from error
    if len(found) != width:
        raise Unreadable(f"{text!r} is no id of {width} bytes")
    return found


def _integer(value: Number) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise Unreadable(f"{value!r} is no integer") from error


def _decoder(message: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(message)


_DOCUMENT: Final[msgspec.json.Decoder[Document]] = _decoder(Document)
_SPAN: Final[msgspec.json.Decoder[Span]] = _decoder(Span)
_METRIC: Final[msgspec.json.Decoder[Metric]] = _decoder(Metric)
_KEY_VALUES: Final[msgspec.json.Decoder[list[KeyValue]]] = _decoder(list[KeyValue])
