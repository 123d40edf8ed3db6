"""What a session amounted to: the numbers of the table that ends a run. Pure, bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.threads import AMBIGUOUS
from otelgpu.model.exchange import Exchange
from otelgpu.model.operations import CopyDirection, OperationKind, Operations
from otelgpu.signals.operation_spans import Vocabulary

SAMPLES_KEPT: Final = 100_000
"""Latencies kept for percentiles; later ones replace earlier ones in turn."""


@dataclass(slots=True)
class Latencies:
    """Durations in seconds, of which the newest :data:`SAMPLES_KEPT` answer percentiles."""

    values: list[float] = field(default_factory=list)
    count: int = 0

    def add(self, value: float) -> None:
        """One more."""
        if self.count < SAMPLES_KEPT:
            self.values.append(value)
        else:
            self.values[self.count % SAMPLES_KEPT] = value
        self.count += 1

    def percentiles(self, *ranks: float) -> list[float]:
        """At each rank in 0–100, linearly interpolated; NaN when nothing was added."""
        if not self.values:
            return [float("nan")] * len(ranks)
        return [float(v) for v in np.percentile(self.values, ranks)]


@dataclass(slots=True)
class Summary:
    """Totals since the session began. Times in seconds, sizes in bytes."""

    requests: int = 0
    request_errors: int = 0
    duration: Latencies = field(default_factory=Latencies)
    time_to_first_token: Latencies = field(default_factory=Latencies)
    time_per_output_token: Latencies = field(default_factory=Latencies)
    output_tokens: int = 0
    calls: Counter[str] = field(default_factory=Counter)  # by API function
    kernels: Counter[str] = field(default_factory=Counter)  # launches by short kernel name
    kernel_host_ns: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)  # by direction
    copy_bytes: Counter[str] = field(default_factory=Counter)
    waits: int = 0
    wait_ns: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # "function: result"
    linked: int = 0
    unlinked: int = 0
    ambiguous: int = 0
    losses: Counter[tuple[str, str]] = field(default_factory=Counter)  # (family, reason)

    def add_exchange(self, exchange: Exchange) -> None:
        """One finished exchange."""
        self.requests += 1
        self.request_errors += bool(exchange.error_type)
        self.duration.add(exchange.duration_s)
        if (first := exchange.time_to_first_token_s) is not None:
            self.time_to_first_token.add(first)
        if (each := exchange.time_per_output_token_s) is not None:
            self.time_per_output_token.add(each)
        if exchange.generation is not None:
            self.output_tokens += exchange.generation.output_tokens or 0

    def add_operations(self, rows: Operations, owners: npt.NDArray[np.int64], vocabulary: Vocabulary) -> None:
        """Joined operations; ``owners`` as :meth:`ThreadTimeline.owners` gives them."""
        self.linked += int((owners > 0).sum())
        self.ambiguous += int((owners == AMBIGUOUS).sum())
        self.unlinked += int((owners == 0).sum())
        calls = (rows["family"].astype(np.int64) << 16) | rows["api"]
        for code, count in zip(*np.unique(calls, return_counts=True), strict=True):
            self.calls[vocabulary.call_name(int(code) >> 16, int(code) & 0xFFFF)] += int(count)
        launched = rows["kind"] == OperationKind.LAUNCH
        distinct, inverse, counts = np.unique(rows["name"][launched], return_inverse=True, return_counts=True)
        spent = np.bincount(inverse, weights=rows["duration_ns"][launched], minlength=len(distinct))
        for code, count, host_ns in zip(distinct, counts, spent, strict=True):
            name = vocabulary.short_kernels[int(code)]
            self.kernels[name] += int(count)
            self.kernel_host_ns[name] += int(host_ns)
        copies = rows.compress(rows["kind"] == OperationKind.COPY)
        for direction in np.unique(copies["direction"]):
            name = CopyDirection(int(direction)).name.lower()
            chosen = copies["direction"] == direction
            self.copies[name] += int(chosen.sum())
            self.copy_bytes[name] += int(copies["size_bytes"][chosen].sum())
        waits = rows.compress(rows["kind"] == OperationKind.SYNCHRONIZATION)
        self.waits += len(waits)
        self.wait_ns += int(waits["duration_ns"].sum())
        failed = rows.compress((rows["status"] != 0) & (rows["returned"] == 1))[["family", "api", "status"]]
        for row, count in zip(*np.unique(failed, return_counts=True), strict=True):
            call = vocabulary.call_name(int(row["family"]), int(row["api"]))
            result = vocabulary.result_name(int(row["family"]), int(row["status"]))
            self.errors[f"{call}: {result}"] += int(count)
