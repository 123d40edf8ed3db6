"""Batches of records into operations, in pieces that stay in the processor's cache. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from otelgpu.families.base import OperationDecoder, SampleDecoder
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import Operations, joined
from otelgpu.model.samples import Samples

ROWS_AT_A_TIME: Final = 8192
"""Operations that are joined and measured together: 1 MiB, so that they stay in the second-level cache."""


class SampleQueue:
    """Batches of samples since the last tick: they are short, for stacks come in between."""

    def __init__(self) -> None:
        self._batches: dict[tuple[int, str], list[Batch]] = {}
        self._decoders: dict[int, SampleDecoder] = {}

    def add(self, decoder: SampleDecoder, batch: Batch) -> None:
        """Keep a batch for :meth:`take`."""
        self._decoders[id(decoder)] = decoder
        self._batches.setdefault((id(decoder), batch.kind), []).append(batch)

    def take(self) -> Iterator[tuple[Samples, Callable[[int, int], str]]]:
        """Samples of one kind of records at a time, each in their order, and what their ``other`` is called."""
        batches, self._batches = self._batches, {}
        for (decoder, _), of_kind in batches.items():
            known = self._decoders[decoder]
            yield known.samples(_joined(of_kind)), known.name_of


def _joined(batches: Sequence[Batch]) -> Batch:
    """Byte by byte: numpy would give fields that share bytes bytes of their own."""
    if len(batches) == 1:
        return batches[0]
    content = bytearray().join(batch.records.tobytes() for batch in batches)
    return replace(batches[0], records=np.frombuffer(content, batches[0].records.dtype))


def decoded(decoder: OperationDecoder, batches: Sequence[Batch]) -> Iterator[Operations]:
    """New operations of a family, not many more than :data:`ROWS_AT_A_TIME` together, as they came."""
    parts: list[Operations] = []
    rows = 0
    for batch in batches:
        for begin in range(0, len(batch.records), ROWS_AT_A_TIME):
            some = replace(batch, records=batch.records[begin : begin + ROWS_AT_A_TIME])
            parts.append(decoder.decode(some))
            rows += len(parts[-1])
            if rows >= ROWS_AT_A_TIME:
                yield joined(parts)
                parts, rows = [], 0
    if rows:
        yield joined(parts)
