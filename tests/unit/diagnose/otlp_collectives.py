"""Collectives of several hosts as OTLP/JSON, with clocks that are off by known amounts and ranks that are late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MS = 1_000_000
START = 1_700_000_000_000_000_000


@dataclass
class Host:
    """A host with its ranks; its clock shows ``ahead_ns`` more than the true time."""

    name: str
    ranks: tuple[int, ...]
    ahead_ns: int = 0
    spans: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        resource = {"attributes": [_attribute("host.name", self.name)]}
        scope = {"scope": {"name": "otelgpu.nccl"}, "spans": self.spans}
        return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def collectives(
    hosts: list[Host],
    count: int,
    late_ns: Callable[[int, int], int],
    *,
    communicator: int = 0xAB,
    jitter_ns: Callable[[int, int], int] = lambda *_: 0,
    waits: bool = True,
) -> None:
    """``late_ns`` and ``jitter_ns`` (of a rank's end): by number and rank."""
    for number in range(count):
        begin = START + number * 100 * MS
        ranks = [(host, rank) for host in hosts for rank in host.ranks]
        end = begin + max(late_ns(number, rank) for _, rank in ranks) + 2 * MS
        for host, rank in ranks:
            start = begin + late_ns(number, rank) + host.ahead_ns
            identity = f"{communicator:04x}{number:08x}{rank:04x}"
            common = {"traceId": f"{communicator:08x}{number:024x}"}
            host.spans.append(
                common
                | {
                    "spanId": identity,
                    "startTimeUnixNano": str(start),
                    "endTimeUnixNano": str(start + 5000),
                    "attributes": [
                        _attribute("nccl.phase", "enqueue"),
                        _attribute("nccl.operation", "AllReduce"),
                        _attribute("nccl.communicator.hash", f"0x{communicator:016x}"),
                        _attribute("nccl.sequence", number),
                        _attribute("nccl.rank", rank),
                        _attribute("nccl.algorithm.bandwidth", 2.0e9),
                        _attribute("nccl.bus.bandwidth", 3.0e9),
                        _attribute("nccl.time.source", "host_wait"),
                    ],
                }
            )
            if waits:
                stop = end + host.ahead_ns + jitter_ns(number, rank)
                host.spans.append(
                    common
                    | {
                        "spanId": "ff" + identity[2:],
                        "parentSpanId": identity,
                        "startTimeUnixNano": str(start + 6000),
                        "endTimeUnixNano": str(stop),
                        "attributes": [_attribute("nccl.phase", "wait")],
                    }
                )


def _attribute(key: str, value: str | int | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"key": key, "value": {"stringValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    return {"key": key, "value": {"doubleValue": value}}
