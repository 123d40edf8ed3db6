"""What a session amounted to: the numbers of the table that ends a run. Pure, bounded memory."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine.attribution.threads import AMBIGUOUS
from otelgpu.engine.operation_metrics import Part
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.model.codes import distinct
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.exchange import Endpoint, Exchange
from otelgpu.model.operations import CopyDirection, OperationKind, Operations, api_and_status, results

SAMPLES_KEPT: Final = 100_000
"""Latencies kept for percentiles; later ones replace earlier ones in turn."""
SERVERS_KEPT: Final = 64
OTHER_SERVERS: Final = "other servers"


class Latencies(Struct):
    """Durations in seconds, of which the newest :data:`SAMPLES_KEPT` answer percentiles."""

    values: array[float] = field(default_factory=lambda: array("d"))
    count: int = 0

    def add(self, values: Sequence[float]) -> None:
        """Some more."""
        room = SAMPLES_KEPT - len(self.values)
        self.values.extend(values[:room])
        self.count += min(len(values), room)
        for value in values[room:]:
            self.values[self.count % SAMPLES_KEPT] = value
            self.count += 1

    def percentiles(self, *ranks: float) -> list[float]:
        """At each rank in 0–100, linearly interpolated; NaN when nothing was added."""
        if not self.values:
            return [float("nan")] * len(ranks)
        return [float(v) for v in np.percentile(self.values, ranks)]


class KernelLaunches(Struct):
    """Launches and their host time by index of the kernel's name, of which there are few: :meth:`add` looks none up."""

    names: Sequence[str] = ()
    counts: array[int] = field(default_factory=lambda: array("q"))
    host_ns: array[int] = field(default_factory=lambda: array("q"))

    def add(
        self, kernels: npt.NDArray[Any], durations_ns: npt.NDArray[np.uint64], names: Sequence[str]
    ) -> None:
        """Some more. ``names``: of all kernels so far, by index; those that were there stay as they are."""
        self.names = names
        size = len(names)
        for column, weights in ((self.counts, None), (self.host_ns, durations_ns)):
            column.frombytes(bytes((size - len(column)) * column.itemsize))
            sums = np.frombuffer(column, dtype=np.int64)
            sums += np.bincount(kernels, weights=weights, minlength=size).astype(np.int64, copy=False)

    def by_name(self, column: Sequence[int]) -> Counter[str]:
        """A column's sums; several kernels may have one name."""
        found: Counter[str] = Counter()
        known = self.names[: len(column)]  # names come after the last launches, too
        for name, count, value in zip(known, self.counts, column, strict=True):
            if count:
                found[name] += value
        return found


class Summary(Struct):
    """Totals since the session began. Times in seconds, sizes in bytes."""

    requests: int = (
        0  # at each server that is observed: one that a proxy passes on counts there and behind it
    )
    servers: Counter[str] = field(
        default_factory=Counter
    )  # requests by address and port, SERVERS_KEPT and the rest
    request_errors: int = 0
    requests_incomplete: int = 0  # of which not all was seen
    duration: Latencies = field(default_factory=Latencies)
    time_to_first_token: Latencies = field(default_factory=Latencies)
    time_per_output_token: Latencies = field(default_factory=Latencies)
    output_tokens: int = 0
    calls: Counter[str] = field(default_factory=Counter)  # by API function
    probe_hits: Counter[str] = field(default_factory=Counter)  # by the user's name of the probe
    launches: KernelLaunches = field(default_factory=KernelLaunches)  # by short kernel name
    copies: Counter[str] = field(default_factory=Counter)  # by direction
    copy_bytes: Counter[str] = field(default_factory=Counter)
    waits: int = 0
    wait_ns: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # "function: result"
    counted: int = 0  # calls of which nothing but their number is known
    linked_by: Counter[ContextSource] = field(
        default_factory=Counter
    )  # calls of requests and published spans
    unattributed: int = 0
    ambiguous: int = 0
    multiplexed: Counter[tuple[str, ...]] = field(
        default_factory=Counter
    )  # calls of processes with requests under way, by the runtimes that interleave these
    requests_multiplexed: Counter[tuple[str, ...]] = field(
        default_factory=Counter
    )  # that such processes sent
    stepped: int = 0
    steps: int = 0  # of engines
    losses: Counter[tuple[str, str]] = field(default_factory=Counter)  # (family, reason)

    @property
    def kernels(self) -> Counter[str]:
        """Launches by short kernel name."""
        return self.launches.by_name(self.launches.counts)

    @property
    def kernel_host_ns(self) -> Counter[str]:
        """Their time on the host."""
        return self.launches.by_name(self.launches.host_ns)

    def add_exchanges(self, exchanges: Sequence[Exchange]) -> None:
        """Finished exchanges."""
        self.requests += len(exchanges)
        for exchange in exchanges:
            self._add_to_server(exchange.server)
        self.request_errors += sum(1 for exchange in exchanges if exchange.error_type)
        self.requests_incomplete += sum(1 for exchange in exchanges if exchange.incomplete)
        self.duration.add(_known(exchange.known_duration_s for exchange in exchanges))
        generated = [exchange for exchange in exchanges if exchange.generation is not None]
        self.time_to_first_token.add(_known(exchange.time_to_first_token_s for exchange in generated))
        self.time_per_output_token.add(_known(exchange.time_per_output_token_s for exchange in generated))
        self.output_tokens += sum(e.generation.output_tokens or 0 for e in generated if e.generation)

    def _add_to_server(self, server: Endpoint) -> None:
        name = server_name(server)
        if name not in self.servers and len(self.servers) >= SERVERS_KEPT:
            name = OTHER_SERVERS
        self.servers[name] += 1

    @property
    def linked(self) -> int:
        """Operations that are of a request, or of a span that their process published."""
        return self.linked_by.total()

    def add_linked(self, sources: npt.NDArray[np.uint8]) -> None:
        """Operations of requests or published spans, by how that is known."""
        for source, count in enumerate(np.bincount(sources).tolist()):
            if count:
                self.linked_by[ContextSource(source)] += count

    def add_unattributed(self, owners: npt.NDArray[np.int64]) -> None:
        """Operations of nobody; ``owners`` as :meth:`ThreadTimeline.owners` gives them."""
        ambiguous = int((owners == AMBIGUOUS).sum())
        self.ambiguous += ambiguous
        self.unattributed += len(owners) - ambiguous

    def add_multiplexed(self, runtimes: tuple[str, ...], count: int) -> None:
        """Operations of nobody, in processes with these runtimes."""
        self.multiplexed[runtimes] += count

    def add_steps(self, operations: int) -> None:
        """Operations that are of steps, or may be."""
        self.stepped += operations

    def add_counted(self, api: str, count: int) -> None:
        """Calls that were counted in place of being recorded."""
        self.calls[api] += count
        self.counted += count

    def add_operations(self, parts: Iterable[Part], vocabulary: Vocabulary) -> None:
        """Operations in parts."""
        for part in parts:
            rows, family = part.rows, part.family
            called = self.probe_hits if part.kind is OperationKind.PROBE else self.calls
            for api, count in _counted(rows["api"]):
                called[vocabulary.call_name(family, api)] += count
            match part.kind:
                case OperationKind.LAUNCH:
                    kernels = np.ascontiguousarray(rows["name"])
                    self.launches.add(kernels, rows["duration_ns"], vocabulary.short_kernels)
                case OperationKind.COPY:
                    self._add_copies(rows)
                case OperationKind.SYNCHRONIZATION:
                    self.waits += len(rows)
                    self.wait_ns += int(rows["duration_ns"].sum())
            if part.failed:
                for result, count in _counted(results(rows)):
                    api, status = api_and_status(result)
                    name = vocabulary.result_name(family, api, status)
                    self.errors[f"{vocabulary.call_name(family, api)}: {name}"] += count

    def _add_copies(self, rows: Operations) -> None:
        directions, codes = distinct(rows["direction"])
        for code, direction in enumerate(directions.tolist()):
            name = CopyDirection(direction).name.lower()
            chosen = codes == code
            self.copies[name] += int(chosen.sum())
            self.copy_bytes[name] += int(rows["size_bytes"][chosen].sum())


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _counted(column: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Distinct values and how often each occurs."""
    values, codes = distinct(column)
    return list(zip(values.tolist(), np.bincount(codes, minlength=len(values)).tolist(), strict=True))


def server_name(server: Endpoint) -> str:
    """Where a server was asked: its address and port."""
    if not server.port:
        return server.address or "a Unix socket, or an unknown address"
    return f"[{server.address}]:{server.port}" if ":" in server.address else f"{server.address}:{server.port}"
