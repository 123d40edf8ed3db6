"""Errors of GPUs, NVSwitches and RDMA ports → ``hw.errors``, and spans that stand where they happened.

In: :mod:`otelgpu.model.fabric`, and which GPUs there are. Out: calls of
:class:`~otelgpu.engine.metrics.Metrics`, and :class:`~otelgpu.model.spans.SpanColumns`. Pure.

An error is a span without duration and with status ``error``: a child of the span that the process worked under at
that time where there is one, so that it stands in that trace at its time; else a trace of its own with the process's
resource, or the agent's where no process is known. (A span event would need its span to be open still; an Xid comes
when it comes, and the trace that it belongs to may be exported already.)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from msgspec import Struct

from otelgpu.engine import names
from otelgpu.engine.hardware_names import ERRORS, ID, NAME, TYPE
from otelgpu.engine.hardware_names import SCOPE as DEVICE_SCOPE
from otelgpu.engine.metrics import Metrics
from otelgpu.families.rdma.ports import ACTIVE, port_labels
from otelgpu.families.rdma.xids import ACTIONS, UNKNOWN, XIDS, meaning
from otelgpu.model.context import NO_SPAN, SAMPLED, Context
from otelgpu.model.devices import DeviceSeen
from otelgpu.model.fabric import FabricInput, HardwareError, PortGone, PortSeen
from otelgpu.model.ids import span_ids, trace_ids
from otelgpu.model.losses import Reasons
from otelgpu.model.process_numbers import process_id
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns, SpanKind, StatusCode, Text, attributes_of_rows

SCOPE: Final = "otelgpu.hardware"

CODE: Final = "otelgpu.hw.error.code"
ERROR_NAME: Final = "otelgpu.hw.error.name"
CLASS: Final = "otelgpu.hw.error.class"
ACTION: Final = "otelgpu.hw.error.action"
HINT: Final = "otelgpu.hw.error.hint"
MESSAGE: Final = "otelgpu.hw.error.message"
PCI: Final = "otelgpu.hw.pci_bus_id"
PROCESS_ID: Final = "process.pid"
PROCESS_NAME: Final = "process.executable.name"
PORT_STATE: Final = "rdma.port.state"
PORT_STATE_BEFORE: Final = "rdma.port.state.before"
RATE: Final = "rdma.port.rate"
RATE_BEFORE: Final = "rdma.port.rate.before"

PENDING: Final = 4096
"""Errors that wait to be reported as spans; a card that falls to pieces logs hundreds a second."""

REASONS: Final = Reasons(
    "fabric",
    {
        "xid_unknown": "an Xid that NVIDIA's catalogue, as known here, does not name",
        "errors_not_reported": f"a hardware error beyond {PENDING} since the last tick: counted in `hw.errors`, "
        f"without a span",
    },
)
"""What one count of (``fabric``, reason) means."""

_SEED: Final = 0x786964  # apart from the ids that others make of the same seed
_FATAL: Final = ("Fatal", "Non-fatal")  # the words of an SXid

Context_of = Callable[[int, int], Context | None]


class _Reported(Struct, frozen=True):
    time_ns: int
    name: str
    message: str
    tgid: int
    attributes: dict[str, Any]
    failed: bool = True


class HardwareErrors:
    """Feeds ``metrics`` under ``own``, the agent's resource.

    ``resource_of`` answers a tgid, None for a process that is not observed. ``context_of`` answers (tgid, time) with
    the span that the process worked under then, None where it is not known or there is more than one.
    ``seed`` makes ids reproducible.
    """

    def __init__(
        self,
        metrics: Metrics,
        own: Resource,
        resource_of: Callable[[int], Resource | None],
        *,
        seed: int,
        context_of: Context_of | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._metrics = metrics
        self._own = own
        self._resource_of = resource_of
        self._context_of = context_of
        self._seed = seed ^ _SEED
        self._number = 0
        self._gpus: dict[tuple[int, int, int], DeviceSeen] = {}
        self._ports: dict[tuple[str, int], PortSeen] = {}
        self._pending: deque[_Reported] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether errors wait to be reported."""
        return bool(self._pending)

    def take(self, item: FabricInput | DeviceSeen) -> None:
        """Take one input; those that report of no error and of no device are not for here."""
        match item:
            case DeviceSeen() if item.pci_bus_id and not item.parent:
                address = pci_address(item.pci_bus_id)
                if address is not None:
                    self._gpus[address] = item
            case HardwareError():
                self._log_line(item)
            case PortSeen():
                self._port(item)
            case PortGone():
                self._ports.pop((item.device, item.port), None)

    def report(self, now_ns: int, offset_ns: int, *, final: bool) -> list[SpanColumns]:
        """Spans of the errors up to ``now_ns``; with ``final``, of all."""
        reported = []
        while self._pending and (final or self._pending[0].time_ns <= now_ns):
            reported.append(self._pending.popleft())
        by_resource: dict[Resource, list[_Reported]] = {}
        for error in reported:
            owner = (self._resource_of(error.tgid) if error.tgid else None) or self._own
            by_resource.setdefault(owner, []).append(error)
        return [self._spans(owner, errors, offset_ns) for owner, errors in by_resource.items()]

    def _log_line(self, error: HardwareError) -> None:
        if error.kind == "xid":
            known = meaning(error.code)
            self.counters["xid_unknown"] += error.code not in XIDS
            name, kind, action = known.name, known.kind, known.action
            title, component = f"Xid {error.code}", "gpu"
        else:
            word = error.message.partition(",")[0]
            name, kind, action = UNKNOWN, word.lower() if word in _FATAL else UNKNOWN, UNKNOWN
            title, component = f"SXid {error.code}", "network"
        address = pci_address(error.pci_bus_id)
        gpu = self._gpus.get(address) if address is not None and error.kind == "xid" else None
        identity: dict[str, str | int] = {
            ID: gpu.uuid if gpu is not None else error.pci_bus_id,
            TYPE: component,
        }
        if gpu is not None and gpu.index >= 0:
            identity[NAME] = f"gpu{gpu.index}"
        identity[names.ERROR_TYPE] = f"{error.kind}-{error.code}"
        self._metrics.add(ERRORS, DEVICE_SCOPE, self._own, identity, 1)
        attributes: dict[str, Any] = {
            **identity,
            CODE: error.code,
            ERROR_NAME: name,
            CLASS: kind,
            ACTION: action,
            HINT: ACTIONS[action],
            PCI: error.pci_bus_id,
        }
        if error.message:
            attributes[MESSAGE] = error.message
        if error.tgid:
            attributes[PROCESS_ID] = process_id(error.tgid)
        if error.process:
            attributes[PROCESS_NAME] = error.process
        harmless = action == "IGNORE"
        self._keep(_Reported(error.time_ns, title, name, error.tgid, attributes, not harmless))

    def _port(self, seen: PortSeen) -> None:
        key = seen.device, seen.port
        before, self._ports[key] = self._ports.get(key), seen
        if before is None:
            return
        identity = {k: v for k, v in port_labels(seen).items() if k != names.ERROR_TYPE}
        fell = before.state == ACTIVE != seen.state
        slower = 0 < seen.rate_bits_per_s < before.rate_bits_per_s and seen.state == ACTIVE
        for error, happened in (("port_down", fell), ("port_rate_downgrade", slower)):
            if happened:
                labels = {**identity, names.ERROR_TYPE: error}
                self._metrics.add(ERRORS, DEVICE_SCOPE, self._own, labels, 1)
        where = f"{seen.device}/{seen.port}"
        if before.state != seen.state:
            reported: dict[str, Any] = {**identity, PORT_STATE: seen.state, PORT_STATE_BEFORE: before.state}
            if fell:
                reported[names.ERROR_TYPE] = "port_down"
            self._keep(_Reported(seen.time_ns, f"RDMA port {seen.state}", where, 0, reported, fell))
        if slower:
            rates = {RATE: seen.rate_bits_per_s, RATE_BEFORE: before.rate_bits_per_s}
            reported = {**identity, **rates, names.ERROR_TYPE: "port_rate_downgrade"}
            self._keep(_Reported(seen.time_ns, "RDMA port slower", where, 0, reported))

    def _keep(self, reported: _Reported) -> None:
        if len(self._pending) >= PENDING:
            self.counters["errors_not_reported"] += 1
            return
        self._pending.append(reported)

    def _spans(self, owner: Resource, errors: list[_Reported], offset_ns: int) -> SpanColumns:
        count = len(errors)
        numbers = np.arange(self._number, self._number + count, dtype=np.uint64)
        self._number += count
        times = np.array([error.time_ns for error in errors], dtype=np.uint64)
        traces = trace_ids(self._seed, numbers, times)
        parents = np.zeros((count, 8), dtype=np.uint8)
        flags = np.full(count, SAMPLED, dtype=np.uint32)
        for row, error in enumerate(errors):
            context = self._context(error)
            if context is not None:
                traces[row] = np.frombuffer(context.trace_id, dtype=np.uint8)
                parents[row] = np.frombuffer(context.span_id, dtype=np.uint8)
                flags[row] = context.flags
        unix = np.maximum(times.astype(np.int64) + offset_ns, 0).astype(np.uint64)
        status = [StatusCode.ERROR if error.failed else StatusCode.UNSET for error in errors]
        return SpanColumns(
            resource=owner,
            scope=SCOPE,
            kind=SpanKind.INTERNAL,
            trace_id=traces,
            span_id=span_ids(self._seed, numbers, times, np.zeros(count, dtype=np.uint64)),
            parent_span_id=parents,
            trace_state=None,
            flags=flags,
            start_unix_ns=unix,
            end_unix_ns=unix,
            name=Text.of([error.name for error in errors]),
            status=np.array(status, dtype=np.uint8),
            status_message=Text.of([error.message if error.failed else "" for error in errors]),
            attributes=attributes_of_rows([error.attributes for error in errors]),
        )

    def _context(self, error: _Reported) -> Context | None:
        if not error.tgid or self._context_of is None:
            return None
        context = self._context_of(error.tgid, error.time_ns)
        return context if context is not None and context.span_id != NO_SPAN and context.sampled else None


def pci_address(text: str) -> tuple[int, int, int] | None:
    """(domain, bus, device) of ``0000:cb:00``, ``0000:cb:00.0`` and NVML's ``00000000:CB:00.0``."""
    parts = text.partition(".")[0].split(":")
    try:
        domain, bus, device = (int(part, 16) for part in parts)
    except ValueError:
        return None
    return domain, bus, device
