"""What a Collector's Prometheus exporter shows of nodes and their devices → OTLP lines, as agents send them. Pure.

A series says whose it is where the exporter has resource attributes as labels (``RESOURCE_LABELS``, in
``collector-config/backends/prometheus-scrape.yaml``). Names are those that the exporter makes of OpenTelemetry's: only
what is looked at is turned back. Counters are passed over: since when they count is not there to be read.

A series stays for minutes after its last point, so that a queue pair may be there in several states: then in the worst.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

import msgspec

from otelgpu.engine.hardware_names import ID, LOCATION, NAME, NUMA_NODE, PARENT, PCI_PATH, TYPE
from otelgpu.engine.prometheus_names import label_name, metric_name
from otelgpu.families.gpu.devices import metrics as gpus
from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma import port_counters as counters
from otelgpu.families.rdma import ports
from otelgpu.model.job import JOB_ID, JOB_LOCAL_RANK, JOB_RANK
from otelgpu.model.resource import HOSTS, NAMESPACE, POD_NAME
from otelgpu.otlp_json.reader import METRICS, SkippedAt, Skips
from otelgpu.topology.exposition import labels_and_value
from otelgpu.topology.owners import RACKS
from otelgpu.topology.queue_pairs import BROKEN_STATES

MOST_SAMPLES: Final = 1 << 18
_METRICS: Final = {
    metric_name(each.name, each.unit, each.instrument).encode(): each.name
    for each in (
        *(gpus.STATUS, LOCATION, gpus.NVLINKS, gpus.PROCESS_MEMORY, gpus.PROCESS_DEVICE),
        *(counters.UP, counters.BANDWIDTH, qp.QUEUE_PAIR_STATUS),
    )
}
_LINE: Final = re.compile(rb"\n(%s)([^\w:][^\n]*)" % b"|".join(_METRICS))
_OF_RESOURCES: Final = (
    *(*HOSTS, *RACKS, "k8s.cluster.name", POD_NAME, NAMESPACE, "service.name", "process.pid"),
    *(JOB_ID, JOB_RANK, JOB_LOCAL_RANK),
)
_OF_POINTS: Final = (
    *(TYPE, ID, NAME, PARENT, PCI_PATH, NUMA_NODE, gpus.STATE, gpus.MODEL, gpus.PEER, gpus.CUDA_INDEX),
    *(
        ports.DEVICE_DRIVER,
        ports.LINK_LAYER,
        ports.INTERFACE,
        qp.DEVICE,
        qp.PORT,
        qp.NUMBER,
        qp.TYPE,
        qp.STATE,
    ),
    *(qp.GID, qp.PEER_GID, qp.PEER_NUMBER, qp.PEER_POD, qp.COMMUNICATOR),
)
_SCOPE: Final = "otel_scope_name"
_Labels = tuple[tuple[str, str], ...]


class Exposed(msgspec.Struct):
    """``lines``: one for each resource. ``ownerless``: samples that name no host. ``beyond``: those past the bound."""

    lines: list[bytes]
    ownerless: int = 0
    beyond: int = 0


def exposed_devices(text: bytes, skips: Skips, source: str, at_ns: int, rack: str = "") -> Exposed:
    """The newest points of all series, as of ``at_ns``. What cannot be read is counted in ``skips``.

    ``rack``: the resource attribute that names a node's rack, or "" for the usual ones.
    """
    of_resources = {label_name(key): key for key in (*_OF_RESOURCES, rack) if key}
    of_points = {label_name(key): key for key in _OF_POINTS}
    hosts = frozenset(map(label_name, HOSTS))
    found: dict[_Labels, list[tuple[bool, str, dict[str, Any]]]] = {}
    exposed, taken = Exposed([]), 0
    for line in _LINE.finditer(b"\n" + text):
        if taken == MOST_SAMPLES:
            exposed.beyond += 1
            continue
        taken += 1
        try:
            labels, value = labels_and_value(line[2].decode())
            if not isfinite(value):
                raise ValueError(f"{value} is no level")
        except ValueError as error:
            skips.add(METRICS, SkippedAt(source, 0, str(error)[:200]))
            continue
        if not any(map(labels.get, hosts)):
            exposed.ownerless += 1
            continue
        owner = tuple((key, labels[name]) for name, key in of_resources.items() if labels.get(name))
        described = {key: labels[name] for name, key in of_points.items() if labels.get(name)}
        point = {"attributes": _attributes(described), "timeUnixNano": at_ns, "asDouble": value}
        metric = {"name": _METRICS[line[1]], "sum": {"aggregationTemporality": 2, "dataPoints": [point]}}
        is_worst = described.get(qp.STATE) in BROKEN_STATES
        found.setdefault(owner, []).append((is_worst, labels.get(_SCOPE, ""), metric))
    exposed.lines = [_line(dict(owner), metrics) for owner, metrics in found.items()]
    return exposed


def _line(owner: Mapping[str, str], metrics: Sequence[tuple[bool, str, dict[str, Any]]]) -> bytes:
    scopes = [
        {"scope": {"name": scope}, "metrics": [metric]}
        for _, scope, metric in sorted(metrics, key=lambda each: each[0])
    ]
    resource = {"attributes": _attributes(owner)}
    return msgspec.json.encode({"resourceMetrics": [{"resource": resource, "scopeMetrics": scopes}]})


def _attributes(described: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in described.items()]
