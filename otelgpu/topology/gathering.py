"""OTLP lines of any number of hosts → facts by place, of a span of time. Pure.

What lies outside of [begin, end) is passed over, and so is what nobody looks at here. Nothing that a line says can
raise: what cannot be read is counted by its reason (:class:`~otelgpu.otlp_json.reader.Skips`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from otelgpu.engine.hardware_names import ID, TYPE
from otelgpu.engine.hardware_names import SCOPE as DEVICE_SCOPE
from otelgpu.families.nccl import collective_names as nccl
from otelgpu.families.rdma import hardware_errors as hardware
from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma import ports
from otelgpu.otlp_json.messages import Metric, Point, Resource, Span
from otelgpu.otlp_json.reader import (
    METRICS,
    RESOURCES,
    SPANS,
    Reader,
    Unreadable,
    attributes,
    identity,
    time_ns,
)
from otelgpu.topology import devices, services
from otelgpu.topology.devices import Devices
from otelgpu.topology.owners import Owner, Owners, shown, whole
from otelgpu.topology.queue_pairs import QueuePairs
from otelgpu.topology.services import Services

BEYOND: Final = "beyond_what_is_drawn"
"""Resources, devices, queue pairs, members and requests that are not taken, for there are too many."""
MOST_MEMBERS: Final = 1 << 18
MOST_FAULTS: Final = 1 << 14
_LATEST: Final = 1 << 62
_ERROR: Final = 2
_OURS: Final = "otelgpu"
REQUESTS: Final = "otelgpu.http"
"""Scope of the spans of requests that agents make; others are of scopes that are not ours."""
_OF_METRICS: Final = (DEVICE_SCOPE, ports.SCOPE, qp.SCOPE)
_MOST_RESOURCES: Final = 1 << 16


class Fault(Struct, frozen=True, kw_only=True):
    """An Xid or its kind: which device of which host, when, what it says and what to do.

    ``is_network``: ``device`` is an RDMA device's name; else it is a GPU's uuid or PCI address. ``klass``: see
    ``otelgpu.hw.error.class``.
    """

    host: str
    device: str
    is_network: bool
    klass: str
    time_ns: int
    code: int
    name: str
    text: str
    hint: str


class Group(Struct):
    """A communicator: how many ranks it has, and who was seen of them: rank → process, or host where none is known."""

    ranks: int = 0
    job: str = ""
    members: dict[int, int | str] = field(default_factory=dict)


class Facts(Struct):
    """``rank_hosts``: of tables: (job, rank) → host. Unix nanoseconds. ``beyond``: members and faults not taken."""

    begin_ns: int = 0
    end_ns: int = _LATEST
    owners: Owners = field(default_factory=Owners)
    queue_pairs: QueuePairs = field(default_factory=QueuePairs)
    groups: dict[str, Group] = field(default_factory=dict)
    rank_hosts: dict[tuple[str, int], str] = field(default_factory=dict)
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)
    devices: Devices = field(default_factory=lambda: Devices(0))
    services: Services = field(default_factory=lambda: Services(0))
    beyond: int = 0
    members: int = 0

    def __post_init__(self) -> None:
        self.devices.begin_ns = self.services.begin_ns = self.begin_ns

    @property
    def all_beyond(self) -> int:
        """What was not taken in all, for there is too much."""
        parts = (self.owners, self.devices, self.queue_pairs, self.services)
        return self.beyond + sum(part.beyond for part in parts)

    def add_rank(self, job: str, rank: int, host: str) -> None:
        """A row of a table: the rank ran on the host."""
        named = self.owners.node(shown(host)) if host else None
        if named is not None and rank >= 0:
            self.rank_hosts[shown(job), rank] = named

    def add_member(self, name: str, ranks: int, rank: int, member: int | str, job: str = "") -> None:
        """A rank of a communicator was seen, in a process or on a host."""
        name = shown(name)
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= MOST_MEMBERS:
                self.beyond += 1
                return
            group = self.groups[name] = Group()
        group.ranks, group.job = max(group.ranks, ranks), group.job or job
        if rank not in group.members:
            if self.members >= MOST_MEMBERS:
                self.beyond += 1
                return
            self.members += 1
        group.members[rank] = member


class Gathering:
    """Takes the lines of one input after the other into ``facts``."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._known: dict[bytes, Owner | None] = {}

    def take(self, reader: Reader, lines: Iterable[bytes | None]) -> None:
        """Lines, of which None is one too long to be read."""
        for document in reader.documents(lines):
            for of_resource in document.resource_metrics:
                scopes = [each for each in of_resource.scope_metrics if _has_metrics(each.scope.name)]
                owner = self._owner(reader, of_resource.resource) if scopes else None
                if owner is not None:
                    for scope in scopes:
                        for metric in reader.metrics(scope):
                            self._take_metric(reader, owner, metric)
            for resource_spans in document.resource_spans:
                wanted = [each for each in resource_spans.scope_spans if _has_spans(each.scope.name)]
                owner = self._owner(reader, resource_spans.resource) if wanted else None
                if owner is not None:
                    for of_scope in wanted:
                        take = _TAKE.get(of_scope.scope.name, Gathering._request)
                        for span in reader.spans(of_scope):
                            self._take_span(reader, owner, span, take)

    def _owner(self, reader: Reader, resource: Resource) -> Owner | None:
        raw = bytes(resource.attributes)
        if raw not in self._known:
            try:
                owner = self.facts.owners.of(attributes(raw))
            except Unreadable as error:
                reader.skip(RESOURCES, error)
                return None
            if len(self._known) >= _MOST_RESOURCES:
                self._known.clear()
            self._known[raw] = owner
        return self._known[raw]

    def _take_metric(self, reader: Reader, owner: Owner, metric: Metric) -> None:
        points = metric.histogram if metric.name == services.DURATIONS else metric.sum
        for point in points.data_points if points is not None else ():
            try:
                if not self.facts.begin_ns <= time_ns(point.time_unix_nano) < self.facts.end_ns:
                    continue
                if metric.name in devices.TAKEN:
                    self.facts.devices.take(owner, metric, point)
                elif metric.name in services.TAKEN or metric.name == services.DURATIONS:
                    self.facts.services.take_metric(metric, point)
                elif metric.name == qp.QUEUE_PAIR_STATUS.name:
                    self._queue_pair_status(owner, point)
            except ValueError as error:
                reader.skip(METRICS, error)

    def _queue_pair_status(self, owner: Owner, point: Point) -> None:
        if devices.value_of(point):
            at = time_ns(point.time_unix_nano)
            self.facts.queue_pairs.take(owner, attributes(point.attributes), at, at)

    def _take_span(self, reader: Reader, owner: Owner, span: Span, take: _Taker) -> None:
        try:
            begin, end = time_ns(span.start_time_unix_nano), time_ns(span.end_time_unix_nano)
            if end >= self.facts.begin_ns and begin < self.facts.end_ns:
                take(self, owner, span)
        except ValueError as error:
            reader.skip(SPANS, error)

    def _queue_pair(self, owner: Owner, span: Span) -> None:
        if span.name not in (qp.CONNECT, qp.QUEUE_PAIR):
            return
        described = attributes(span.attributes)
        has_both = described.get(qp.IDENTITY) == "ends" and span.name == qp.CONNECT
        self.facts.queue_pairs.take(
            owner,
            described,
            time_ns(span.start_time_unix_nano),
            time_ns(span.end_time_unix_nano),
            trace=identity(span.trace_id, 16).hex() if has_both else "",
            error=(span.status.message or "failed") if span.status.code == _ERROR else "",
            ended=span.name == qp.QUEUE_PAIR and not described.get(qp.OPEN),
        )

    def _call(self, owner: Owner, span: Span) -> None:
        described = attributes(span.attributes)
        name, rank = described.get(nccl.HASH), whole(described.get(nccl.RANK), -1)
        if name and rank >= 0:
            ranks = whole(described.get(nccl.RANKS), 0)
            self.facts.add_member(shown(name), ranks, rank, owner.number, owner.job)

    def _fault(self, owner: Owner, span: Span) -> None:
        described = attributes(span.attributes)
        is_network = described.get(TYPE) == "network"
        device = described.get(qp.DEVICE if is_network else ID) or described.get(hardware.PCI, "")
        key = f"{owner.host} {shown(device)}", shown(span.name)
        if key not in self.facts.faults and len(self.facts.faults) >= MOST_FAULTS:
            self.facts.beyond += 1
            return
        self.facts.faults[key] = Fault(
            host=owner.host,
            device=shown(device),
            is_network=is_network,
            klass=shown(described.get(hardware.CLASS, "")),
            time_ns=time_ns(span.start_time_unix_nano),
            code=whole(described.get(hardware.CODE), 0),
            name=shown(span.name),
            text=shown(described.get(hardware.MESSAGE, "")),
            hint=shown(described.get(hardware.HINT, "")),
        )

    def _request(self, owner: Owner, span: Span) -> None:
        self.facts.services.take_span(owner, span)


_Taker = Callable[[Gathering, Owner, Span], None]
_TAKE: Final[Mapping[str, _Taker]] = {
    qp.SCOPE: Gathering._queue_pair,
    nccl.SCOPE: Gathering._call,
    hardware.SCOPE: Gathering._fault,
}
"""By scope; in all others requests are looked for."""


def _has_metrics(scope: str) -> bool:
    return scope in _OF_METRICS or not scope.startswith(_OURS)


def _has_spans(scope: str) -> bool:
    return scope in _TAKE or scope == REQUESTS or not scope.startswith(_OURS)
