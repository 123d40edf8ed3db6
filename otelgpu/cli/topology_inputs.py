"""What a command line names → the graph: lines of OTLP, tables and verdicts on them, live Collectors; or this host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from otelgpu.cli.collector_access import Access
from otelgpu.cli.guidance import Guidance
from otelgpu.cli.observe import observe_everything
from otelgpu.cli.options import configure
from otelgpu.cli.rank_reports import reports_of_jobs
from otelgpu.cli.topology_collector import is_live, read_collectors
from otelgpu.diagnose.ranks.sentences import sentence
from otelgpu.diagnose.ranks.verdicts import INCONCLUSIVE, SLOW_HOST, RankVerdict
from otelgpu.errors import OtelgpuError
from otelgpu.families.nccl import collective_names as nccl
from otelgpu.families.rdma import hardware_errors as hardware
from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma.poll.ports import PortWatch
from otelgpu.kernel import clock
from otelgpu.model.devices import DeviceReadings, DeviceSeen
from otelgpu.model.resource import AttributeValue
from otelgpu.otlp_json.reader import Reader, Skips
from otelgpu.processes.listing import ProcessFacts, describe, guess_service_name
from otelgpu.sources.pollers import looks
from otelgpu.store.clickhouse.address import address_of
from otelgpu.store.files import BrokenFile, pieces
from otelgpu.store.inputs import found_files, is_remote
from otelgpu.store.line_files import split_lines
from otelgpu.store.queries import Tables, named
from otelgpu.store.readers import otlp
from otelgpu.store.readers.recognition import reader_of
from otelgpu.store.reasons import FILES_UNREADABLE
from otelgpu.topology import devices, services
from otelgpu.topology.building import build
from otelgpu.topology.gathering import REQUESTS, Facts, Gathering
from otelgpu.topology.graph import SLOW, Mark, Topology, communicator_place, node_place, rank_place
from otelgpu.topology.own_host import facts_of

MOST_JOBS: Final = 16
"""Jobs whose verdicts are looked for."""
_QUERIES: Final = "otelgpu.topology"
_LOOKS_MS: Final = 1_000


class Range(Struct, frozen=True, kw_only=True):
    """What of the inputs is looked at. ``rack``: a resource attribute, or "" for the usual ones."""

    begin_s: float | None = None
    end_s: float | None = None
    job: str | None = None
    rack: str = ""


class NoHost(OtelgpuError):
    """The input names none."""


def read(inputs: Sequence[str], span: Range, access: Access | None = None) -> Topology:
    """The graph of the inputs. ``access``: to live Collectors.

    Raises :class:`OtelgpuError` for one that is not there, :class:`NoHost`.
    """
    facts, skips = _facts(span), Skips()
    limits: list[str] = []
    stored = [each for each in inputs if not is_live(each)]
    if is_remote(stored):
        _read_remote(stored[0], span, facts, skips, limits)
    else:
        _read_lines(stored, facts, skips)
    marks = list(_verdicts(stored, span, facts, limits)) if stored else []
    read_collectors(filter(is_live, inputs), facts, skips, limits, access or Access())
    if not facts.owners.nodes and not facts.services.calls():
        raise NoHost(
            "; ".join(["the input names no host", *limits]),
            hint="what can be an input: otelgpu topology --help",
        )
    return build(facts, marks, limits=limits, rejected=skips.counts)


def version_of(inputs: Sequence[str]) -> tuple[tuple[str, int, int], ...] | None:
    """What changes with the files of the inputs: their names, sizes and times. None: that cannot be known."""
    if any(map(is_live, inputs)) or is_remote(inputs):
        return None
    found = []
    for path in found_files(inputs):
        try:
            status = path.stat()
        except OSError:  # it was rotated meanwhile: the next look finds it
            return None
        found.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(found)


def own_host(observe_s: float | None, span: Range) -> Topology:
    """The graph of this host, of what an agent sees in so many seconds; without that by sysfs and NVML alone."""
    return _described_host() if observe_s is None else _observed_host(observe_s, span)


def _described_host(*notes: str) -> Topology:
    """What sysfs and NVML have of it, now. May wait for a driver. ``notes``: limits that are known of it before."""
    found = list(looks())
    seen = [item for each in found for item in each.inputs if isinstance(item, DeviceSeen | DeviceReadings)]
    ports = PortWatch().poll(clock.monotonic_ns())
    users = {reading.tgid for item in seen if isinstance(item, DeviceReadings) for reading in item.processes}
    names = {tgid: _words_of(user) for tgid in users if (user := describe(tgid)) is not None}
    facts = facts_of({"host.name": socket.gethostname()}, seen, ports, names)
    limits = [*notes, *(each.note for each in found if each.note)]
    if not ports:
        limits.append("this host has no RDMA device (/sys/class/infiniband)")
    return build(facts, limits=limits)


def _observed_host(seconds: float, span: Range) -> Topology:
    """What an agent with the user's configuration saw. Its file is in a folder of ours, and goes with it."""
    config = configure({})
    with TemporaryDirectory(prefix="otelgpu-topology-") as folder:
        seen = f"{folder}/seen.jsonl"
        quick = replace(
            config,
            export=(f"file:{seen}",),
            metric_interval_ms=min(config.metric_interval_ms, _LOOKS_MS),  # a counter's growth takes two
            device_interval_ms=min(config.device_interval_ms, _LOOKS_MS),
        )
        said = Guidance(openings=())  # the file is no result
        observe_everything(quick, duration=seconds, capture=None, quiet=True, guidance=said)
        try:
            return read((seen,), span)
        except NoHost:  # nothing on it did anything
            return _described_host(f"no queue pair, communicator or call was seen within {seconds:g} s")


def _words_of(facts: ProcessFacts) -> Mapping[str, AttributeValue]:
    return {"service.name": facts.service_name or guess_service_name(facts), **dict(facts.job)}


def _facts(span: Range) -> Facts:
    facts = Facts()
    if span.begin_s is not None or span.end_s is not None:
        begin_ns = max(round((span.begin_s or 0.0) * 1e9), 0)
        end_ns = facts.end_ns if span.end_s is None else max(round(span.end_s * 1e9), 0)
        facts = Facts(begin_ns=begin_ns, end_ns=end_ns)
    facts.owners.rack_attribute = span.rack
    return facts


def _read_lines(inputs: Sequence[str], facts: Facts, skips: Skips) -> None:
    gathering = Gathering(facts)
    for path in found_files(inputs):
        if reader_of(path) is not otlp.read:
            continue
        try:
            gathering.take(Reader(path.name, skips), split_lines(pieces(path)))
        except BrokenFile:
            skips.counts[FILES_UNREADABLE] += 1


def _read_remote(url: str, span: Range, facts: Facts, skips: Skips, limits: list[str]) -> None:
    from otelgpu.store.clickhouse.signals import Wanted, lines

    wanted = Wanted(
        scopes=(qp.SCOPE, hardware.SCOPE),
        alike={nccl.SCOPE: (nccl.HASH, nccl.RANK, nccl.RANKS)},
        requests=REQUESTS,
        states=devices.STATES | {qp.QUEUE_PAIR_STATUS.name},
        switches=devices.SWITCHES,
        counters=devices.COUNTERS | services.TAKEN,
    )
    address = address_of(url, os.environ)
    found = lines(address, wanted, span.begin_s, span.end_s, limits)
    Gathering(facts).take(Reader(address.shown, skips), found)


def _verdicts(inputs: Sequence[str], span: Range, facts: Facts, limits: list[str]) -> Iterator[Mark]:
    """Marks of what diagnose ranks says, of each job; who runs where is added to the facts."""
    try:
        for job, report in reports_of_jobs(
            inputs, span.job, span.begin_s, span.end_s, lambda tables: _add_tables(tables, facts), MOST_JOBS
        ):
            for verdict in report.verdicts:
                if verdict.klass != INCONCLUSIVE:
                    yield from _marks(verdict, job, facts)
    except OtelgpuError as error:
        if is_remote(inputs):
            raise
        limits.append(f"no verdicts on ranks: {error.message}")


def _add_tables(tables: Tables, facts: Facts) -> None:
    """Who ran where, and who was in which communicator, as far as no span has said it."""
    query = named(tables.run, _QUERIES)
    ranks = query("ranks")
    for job, rank, host in zip(ranks["job"], ranks["rank"], ranks["host_name"], strict=True):
        facts.add_rank(str(job), int(rank), str(host))
    members = query("members")
    columns = (members[name] for name in ("job", "communicator", "members", "rank", "host_name"))
    for job, name, count, rank, host in zip(*columns, strict=True):
        known = facts.groups.get(str(name))
        node = facts.owners.node(str(host)) if host else None
        if node is not None and (known is None or int(rank) not in known.members):
            facts.add_member(str(name), int(count), int(rank), node, str(job))


def _marks(verdict: RankVerdict, job: str, facts: Facts) -> Iterator[Mark]:
    """A verdict marks its communicator, or its ranks, or where it names none its hosts."""
    places = [communicator_place(verdict.group)] if verdict.group in facts.groups else []
    if not places:
        places = [rank_place(job, rank) for rank in verdict.ranks]
    if verdict.klass == SLOW_HOST or not places:
        places = [node_place(host) for host in verdict.hosts] or places
    for place in dict.fromkeys(places or [""]):
        yield Mark(
            kind=SLOW,
            place=place,
            text=sentence(verdict),
            source=f"diagnose ranks: {verdict.klass}",
            next=verdict.next,
            first_s=verdict.start_unix_s,
            last_s=verdict.end_unix_s,
        )
