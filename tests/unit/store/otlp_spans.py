"""Spans of ranks that train, as OTLP/JSON lines: steps, calls of collectives and waits for them."""

from __future__ import annotations

import json
from typing import Any

MS = 1_000_000
START = 1_700_000_000_000_000_000
DEVICE = "otelgpu.step.device."


class Rank:
    """A process of a job, which sees its steps from ``first`` on and numbers them from 1."""

    def __init__(
        self, rank: int, *, host: str = "", first: int = 0, ranks: int = 4, communicator: str = "c0"
    ) -> None:
        self.rank, self.first, self.ranks, self.communicator = rank, first, ranks, communicator
        self.host = host or f"host-{rank // 2}"
        self.launched: dict[str, Any] = {}  # what the launcher said, resource attributes
        scopes = ("otelgpu.training", "otelgpu.nccl", "otelgpu.probe")
        self.spans: dict[str, list[dict[str, Any]]] = {scope: [] for scope in scopes}

    def step(
        self,
        step: int,
        length_ms: int = 100,
        *,
        slowest_file: str = "",
        major_faults: int = 0,
        written_bytes: int = 0,
        **parts: float,
    ) -> None:
        """``parts``: seconds by the end of the attribute's name."""
        begin = START + step * 100 * MS
        attributes: dict[str, Any] = {f"otelgpu.step.{name}.duration": value for name, value in parts.items()}
        attributes |= {"otelgpu.step.slowest_file": slowest_file} if slowest_file else {}
        attributes |= {"otelgpu.step.major_faults": major_faults} if major_faults else {}
        attributes |= {"otelgpu.step.written_bytes": written_bytes} if written_bytes else {}
        attributes["otelgpu.step.number"] = step - self.first + 1
        self._add(
            "otelgpu.training", "training step", f"1{step:07x}", begin, begin + length_ms * MS, attributes
        )

    def probe(self, step: int, name: str, seconds: float, **more: float) -> None:
        """A hit of a user's own, at the beginning of a step. ``more``: attributes, by names with _ for their points."""
        begin = START + step * 100 * MS
        attributes = {"otelgpu.probe.name": name} | {key.replace("_", "."): more[key] for key in more}
        self._add("otelgpu.probe", name, f"4{step:07x}", begin, begin + round(seconds * 1e9), attributes)

    def collective(
        self,
        step: int,
        *,
        wait_ms: float | None = 2,
        device_ms: float | None = None,
        operation: str = "AllReduce",
        run_ms: float = 0,
    ) -> None:
        """One call in a step; the number is the step's. ``run_ms``: it runs the collective itself, for so long."""
        begin = START + step * 100 * MS + 50 * MS
        attributes: dict[str, Any] = {
            "nccl.phase": "run" if run_ms else "enqueue",
            "nccl.operation": operation,
            "nccl.communicator.hash": self.communicator,
            "nccl.rank": self.rank,
            "nccl.communicator.ranks": self.ranks,
            "nccl.sequence": step,
            "nccl.message.size": 4096,
        }
        if device_ms is not None:
            attributes["nccl.gpu.time"] = device_ms * 1e-3
        call = f"2{step:07x}"
        trace = f"{self.communicator}{operation}".encode().hex()[:16].ljust(16, "0") + f"{step:016x}"
        self._add(
            "otelgpu.nccl",
            f"nccl{operation}",
            call,
            begin,
            begin + (round(run_ms * MS) or 5000),
            attributes,
            trace,
        )
        if wait_ms is not None and not run_ms:
            end = begin + round(wait_ms * MS)
            self._add(
                "otelgpu.nccl", "nccl wait", f"3{step:07x}", end - 1, end, {"nccl.phase": "wait"}, trace, call
            )

    def _add(
        self,
        scope: str,
        name: str,
        identity: str,
        start: int,
        end: int,
        attributes: dict[str, Any],
        trace: str = "ab" * 16,
        parent: str = "",
    ) -> None:
        span = {
            "traceId": trace,
            "spanId": self._span_id(identity),
            "name": name,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(end),
            "attributes": [_attribute(key, value) for key, value in attributes.items()],
        }
        self.spans[scope].append(span | ({"parentSpanId": self._span_id(parent)} if parent else {}))

    def _span_id(self, identity: str) -> str:
        return f"{self.communicator.encode().hex():.4}{self.rank:04x}{identity}"

    def line(self) -> bytes:
        """All of them, as one line of a file."""
        owner = {"host.name": self.host, "service.name": "llama", "process.pid": 100 + self.rank}
        owner |= self.launched
        scopes = [{"scope": {"name": name}, "spans": spans} for name, spans in self.spans.items()]
        resource = {"attributes": [_attribute(key, value) for key, value in owner.items()]}
        document = {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def job(ranks: int = 4, steps: int = 10, **of_collective: Any) -> list[Rank]:
    """Ranks that take 100 ms for a step, with one collective in each."""
    made = [Rank(rank, ranks=ranks) for rank in range(ranks)]
    for rank in made:
        for step in range(steps):
            rank.step(step, data_loader_stall=0.01, host_overhead=0.02)
            rank.collective(step, **of_collective)
    return made


def _attribute(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"key": key, "value": {"stringValue": value}}
    if isinstance(value, float):
        return {"key": key, "value": {"doubleValue": value}}
    return {"key": key, "value": {"intValue": str(value)}}
