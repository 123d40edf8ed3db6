"""Profiles as OTLP/JSON lines and as a few lines of text: what a file and a terminal get.

A line is one ``ProfilesData`` as the Collector's file exporter writes it: ids in lower hex, 64-bit integers as decimal
strings, lowerCamelCase keys. It is made of the protobuf payload, so that both transports tell the same.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from otelgpu.export.profiles import encode_profiles
from otelgpu.export.quantities import duration, size
from otelgpu.model.profiles import ProfileColumns

SHOWN: Final = 10
"""Stacks of each sample type that a summary has."""
_FRAMES: Final = 5
"""Innermost frames of a stack in a summary."""
_KINDS: Final = 64
"""Sample types that are summed up."""
_STACKS: Final = 4096
"""Different stacks of one sample type that are summed up: of more, those with the least are dropped."""

_encode = msgspec.json.Encoder().encode


def profile_lines(columns: ProfileColumns) -> Iterator[tuple[bytes, int]]:
    """Lines of OTLP/JSON, and how many observations each holds.

    Raises :class:`ValueError` where the columns break their contract.
    """
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

    for payload in encode_profiles([columns]):  # ProfilesData has the fields of the request
        message = MessageToDict(ProfilesData.FromString(payload.body))
        _hex_ids(message)
        yield _encode(message) + b"\n", payload.rows


def _hex_ids(node: Any) -> None:
    """``traceId``, ``spanId`` and ``profileId`` from base64 (protobuf's JSON mapping) to hex (OTLP's), in place."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("traceId", "spanId", "profileId") and isinstance(value, str):
                node[key] = base64.b64decode(value).hex()
            else:
                _hex_ids(value)
    elif isinstance(node, list):
        for entry in node:
            _hex_ids(entry)


class TopStacks:
    """Sums of values by stack, of each sample type, within bounds."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Counter[tuple[str, ...]]] = {}
        self._totals: Counter[tuple[str, str]] = Counter()

    def add(self, columns: ProfileColumns) -> None:
        """Take a batch."""
        kind = columns.sample_type.type, columns.sample_type.unit
        if kind not in self._sums and len(self._sums) >= _KINDS:
            return
        sums = self._sums.setdefault(kind, Counter())
        values = np.zeros(len(columns.stacks), dtype=np.float64)
        np.add.at(values, columns.stack, columns.value)
        for stack, value in zip(columns.stacks, values.tolist(), strict=True):
            if value:
                sums[_shown(columns, stack)] += int(value)
        self._totals[kind] += int(values.sum())
        if len(sums) > _STACKS:
            self._sums[kind] = Counter(dict(sums.most_common(_STACKS // 2)))

    def lines(self) -> list[str]:
        """The largest of each type, with their share."""
        found: list[str] = []
        for kind, sums in sorted(self._sums.items()):
            total = self._totals[kind]
            found.append(f"profile {kind[0]}  {_quantity(total, kind[1])}")
            for stack, value in sums.most_common(SHOWN):
                share = 100 * value / total if total else 0.0
                found.append(f"  {share:5.1f} %  {_quantity(value, kind[1]):>9}  {' < '.join(stack)}")
        return found


def _shown(columns: ProfileColumns, stack: Sequence[int]) -> tuple[str, ...]:
    names = []
    for code in stack[:_FRAMES]:
        lines = columns.locations[code].lines
        names.append(columns.functions[lines[0].function].name if lines else "?")
    return (*names, "…") if len(stack) > _FRAMES else tuple(names)


def _quantity(value: int, unit: str) -> str:
    if unit == "nanoseconds":
        return duration(value)
    return size(value) if unit == "bytes" else f"{value:,}"
