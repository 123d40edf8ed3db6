"""A simulated cluster as OTLP/JSON lines, and what is true of it: nodes, devices, connections, communicators, faults.

Each node has as many NICs as GPUs: GPU and NIC of one number are below one PCIe switch, half of them on each NUMA node.
Every GPU's rank is connected with the rank of the same GPU on the next node, round and round; all ranks are in one
communicator, those of a node in another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
UNITS = {
    "hw.network.bandwidth.limit": "By/s",
    "otelgpu.gpu.nvlink.links": "{link}",
    "otelgpu.gpu.process.memory.usage": "By",
}
Attributes = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """``faults``: of (node, GPU): ``xid``, ``absent``, ``broken`` (its queue pairs), ``port`` (its NIC's is down)."""

    nodes: int = 1
    gpus: int = 8
    nodes_per_rack: int = 16
    nodes_per_job: int = 0  # 0: one job on all
    pairs: int = 1  # queue pairs of a GPU with its neighbour
    faults: Mapping[tuple[int, int], str] = field(default_factory=dict)

    def host(self, node: int) -> str:
        return f"gpu-{node:04}"

    def uuid(self, node: int, gpu: int) -> str:
        return f"GPU-{node:08x}-0000-0000-0000-{gpu:012x}"

    def job(self, node: int) -> int:
        return node // self.nodes_per_job if self.nodes_per_job else 0

    def edges(self) -> set[frozenset[tuple[str, str, int]]]:
        """Pairs of (host, RDMA device, number of the queue pair)."""
        return {
            frozenset((self._end(node, gpu, pair, 0), self._end((node + 1) % self.nodes, gpu, pair, 1)))
            for node in range(self.nodes)
            for gpu in range(self.gpus)
            for pair in range(self.pairs)
            if self.nodes > 1
        }

    def lines(self) -> Iterator[bytes]:
        """One line of metrics of each node's agent, then lines of metrics and of spans of each of its processes."""
        for node in range(self.nodes):
            yield self._agent(node)
            for gpu in range(self.gpus):
                if self.faults.get((node, gpu)) != "absent":
                    yield from self._process(node, gpu)
        if self.nodes > 1:
            yield from self._services()

    def write(self, path: Path) -> Path:
        with path.open("wb") as file:
            file.writelines(self.lines())
        return path

    # -- one line each ------------------------------------------------------------------------------------

    def _end(self, node: int, gpu: int, pair: int, side: int) -> tuple[str, str, int]:
        """Numbers are the same on every node, as devices give them."""
        return self.host(node), f"mlx5_{gpu}", 100 + 2 * pair + side

    def _gid(self, node: int, gpu: int) -> str:
        return f"fd00::{node:x}:{gpu + 1:x}"

    def _place(self, gpu: int, slot: int) -> dict[str, Any]:
        numa, root = gpu * 2 // self.gpus, gpu + 1
        ports = "/".join(f"0000:{root:02x}:{device}.0" for device in ("01", "02", f"0{slot}", f"1{slot}"))
        path = f"pci0000:{root:02x}/{ports}"
        return {"otelgpu.hw.pci_path": path, "otelgpu.hw.numa_node": numa}

    def _resource(self, node: int) -> dict[str, Any]:
        rack = f"rack-{node // self.nodes_per_rack:02}"
        return {"host.name": self.host(node), "k8s.node.label.topology.kubernetes.io/rack": rack}

    def _agent(self, node: int) -> bytes:
        devices: list[Any] = []
        fabric: list[Any] = []
        for gpu in range(self.gpus):
            fault = self.faults.get((node, gpu))
            own = {
                "hw.id": self.uuid(node, gpu),
                "hw.name": f"gpu{gpu}",
                "hw.type": "gpu",
                "hw.model": "NVIDIA H200",
            }
            if fault != "absent":
                devices.append(("hw.status", own | {"hw.state": "ok"}, 1))
                devices.append(("otelgpu.hw.location", own | self._place(gpu, 3), 1))
                devices.append(("otelgpu.gpu.nvlink.links", own | {"otelgpu.gpu.peer": "switch"}, 18))
            nic: dict[str, Any] = {"hw.id": f"mlx5_{gpu}/1", "hw.name": f"mlx5_{gpu}", "hw.type": "network"}
            nic |= {"rdma.device": f"mlx5_{gpu}", "rdma.port": 1, "rdma.link_layer": "Ethernet"}
            devices.append(("otelgpu.hw.location", nic | self._place(gpu, 4), 1))
            fabric.append(("hw.network.up", nic, 1))
            if fault == "port":
                fabric.append(("hw.network.up", nic, 0))
            fabric.append(("hw.network.bandwidth.limit", nic, 50_000_000_000))
        return metrics_line(self._resource(node), {"otelgpu.devices": devices, "otelgpu.fabric": fabric})

    def _process(self, node: int, gpu: int) -> Iterator[bytes]:
        job, rank = self.job(node), node * self.gpus + gpu
        resource = self._resource(node) | {
            "service.name": "trainer",
            "process.pid": 1000 + gpu,
            "k8s.pod.name": f"job-{job}-worker-{node}-{gpu}",
            "k8s.namespace.name": "training",
        }
        resource |= {"otelgpu.job.id": f"job-{job}", "otelgpu.job.rank": rank, "otelgpu.job.local_rank": gpu}
        fault = self.faults.get((node, gpu))
        used: tuple[str, Any, float] = (
            "otelgpu.gpu.process.memory.usage",
            {"hw.id": self.uuid(node, gpu)},
            80 << 30,
        )
        ends = list(self._ends(node, gpu, fault)) if self.nodes > 1 else []
        status: list[tuple[str, Any, float]] = [("rdma.qp.status", own, 1) for own, _ in ends]
        yield metrics_line(resource, {"otelgpu.devices": [used], "otelgpu.rdma": status})
        connects = [
            span("RDMA connect", own | {"rdma.connection.identity": "ends"}, trace=trace, number=place)
            for place, (own, trace) in enumerate(ends)
        ]
        calls = [
            self._call("world", rank, self.nodes * self.gpus),
            self._call(f"node{node}", gpu, self.gpus),
        ]
        scopes = {"otelgpu.rdma": connects, "otelgpu.nccl": calls}
        if fault == "xid":
            error = {"hw.id": self.uuid(node, gpu), "hw.type": "gpu", "otelgpu.hw.error.code": 79}
            error |= {
                "otelgpu.hw.error.class": "bus",
                "otelgpu.hw.error.hint": "reset the GPU, or restart the node",
            }
            error |= {"otelgpu.hw.error.message": "GPU has fallen off the bus."}
            scopes["otelgpu.hardware"] = [span("Xid 79", error, failed=True)]
        yield spans_line(resource, scopes)

    def _ends(self, node: int, gpu: int, fault: str | None) -> Iterator[tuple[dict[str, Any], str]]:
        for pair in range(self.pairs):
            for side, other in ((0, (node + 1) % self.nodes), (1, (node - 1) % self.nodes)):
                _, device, number = self._end(node, gpu, pair, side)
                first = node if side == 0 else other
                own = {"rdma.device": device, "rdma.port": 1, "rdma.qp.number": number, "rdma.qp.type": "rc"}
                own |= {"rdma.gid": self._gid(node, gpu), "rdma.peer.gid": self._gid(other, gpu)}
                own |= {"rdma.peer.qp.number": self._end(other, gpu, pair, 1 - side)[2]}
                own |= {"nccl.communicator.hash": "world"}
                own |= {"rdma.qp.state": "error" if fault == "broken" else "ready_to_send"}
                yield own, f"{first:016x}{gpu:08x}{pair:08x}"

    def _call(self, name: str, rank: int, ranks: int) -> dict[str, Any]:
        attributes = {"nccl.communicator.hash": name, "nccl.rank": rank, "nccl.communicator.ranks": ranks}
        return span(
            "ncclAllReduce",
            attributes | {"nccl.phase": "enqueue", "nccl.operation": "AllReduce"},
            number=rank,
        )

    def _services(self) -> Iterator[bytes]:
        """``front`` asks ``router`` twenty times, which asks ``model`` as often and fails once."""
        for client, server, failed in (("front", "router", 0), ("router", "model", 1)):
            asked = [
                span("POST", {}, number=at, kind=3, trace=f"{client:>16}".encode().hex()) for at in range(20)
            ]
            answered = [
                span(
                    "POST",
                    {},
                    number=at + 100,
                    kind=2,
                    trace=each["traceId"],
                    parent=each["spanId"],
                    failed=at < failed,
                )
                for at, each in enumerate(asked)
            ]
            for service, spans in ((client, asked), (server, answered)):
                resource = self._resource(0) | {
                    "service.name": service,
                    "process.pid": 7,
                    "k8s.pod.name": service,
                }
                yield spans_line(resource, {"otelgpu.http": spans})


def span(
    name: str,
    attributes: Attributes,
    *,
    number: int = 0,
    kind: int = 1,
    trace: str = "ab" * 16,
    parent: str = "",
    failed: bool = False,
    at_s: float = 0.0,
) -> dict[str, Any]:
    """A span of 10 ms."""
    start = START + round(at_s * SECOND)
    made = {
        "traceId": trace,
        "spanId": f"{number + 1:016x}",
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + SECOND // 100),
        "attributes": listed(attributes),
        "status": {"code": 2} if failed else {},
    }
    return made | ({"parentSpanId": parent} if parent else {})


def spans_line(resource: Attributes, scopes: Mapping[str, list[dict[str, Any]]]) -> bytes:
    """Spans of one resource, by scope."""
    of = [{"scope": {"name": name}, "spans": spans} for name, spans in scopes.items() if spans]
    return _line({"resourceSpans": [{"resource": {"attributes": listed(resource)}, "scopeSpans": of}]})


def metrics_line(
    resource: Attributes, scopes: Mapping[str, list[tuple[str, Attributes, float]]], *, at_s: float = 0.0
) -> bytes:
    """Points of (metric, attributes, value), by scope; points of one metric follow each other by a second."""
    of = []
    for scope, points in scopes.items():
        by_name: dict[str, list[Any]] = {}
        for name, attributes, value in points:
            some = by_name.setdefault(name, [])
            at = START + round(at_s * SECOND) + len(some)
            number = {"asInt": str(value)} if isinstance(value, int) else {"asDouble": value}
            point = {
                "attributes": listed(attributes),
                "startTimeUnixNano": str(START),
                "timeUnixNano": str(at),
            }
            some.append(point | number)
        metrics = [
            {
                "name": name,
                "unit": UNITS.get(name, "1"),
                "sum": {"aggregationTemporality": 2, "dataPoints": some},
            }
            for name, some in by_name.items()
        ]
        of.append({"scope": {"name": scope}, "metrics": metrics})
    return _line({"resourceMetrics": [{"resource": {"attributes": listed(resource)}, "scopeMetrics": of}]})


def listed(attributes: Attributes) -> list[dict[str, Any]]:
    """As OTLP/JSON has them."""
    kinds = {str: "stringValue", bool: "boolValue", float: "doubleValue"}
    return [
        {"key": key, "value": {"intValue": str(value)} if type(value) is int else {kinds[type(value)]: value}}
        for key, value in attributes.items()
    ]


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"
