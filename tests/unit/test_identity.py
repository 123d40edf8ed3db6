"""Names that come later than the process, and processes of several pods: what of it is in spans and metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otelgpu.engine.metrics import Metrics
from otelgpu.export.wire import encode_spans
from otelgpu.families.gpu.devices.metrics import PROCESS_MEMORY
from otelgpu.families.rdma.fabric.session import FabricSession
from otelgpu.model.devices import ProcessReading
from otelgpu.model.inputs import Input, ProcessGone, ProcessSeen, Tick
from otelgpu.model.operations import Memory
from otelgpu.model.resource import resource
from otelgpu.processes.kubernetes import OwnPod
from otelgpu.processes.resources import identify, process_resource
from otelgpu.sources.capture import CaptureReader, CaptureWriter, Header
from tests.unit.engine.test_metrics import counter
from tests.unit.engine.test_pipeline import CALLER, TRACE, pipeline, played
from tests.unit.families.gpu.devices.test_metrics import UUID, Reported, readings, seen
from tests.unit.families.rdma.queue_pair_facts import MS as FABRIC_MS
from tests.unit.families.rdma.queue_pair_facts import Caller, port
from tests.unit.families.rdma.test_fabric import OWN
from tests.unit.families.records import MS, UNIX_OFFSET_NS, Host
from tests.unit.model.builders import read_out
from tests.unit.processes.processes_builders import facts

UIDS = ("11111111-2222-4333-8444-555555555555", "66666666-7777-4888-8999-000000000000")
POOR, RICH = (
    resource({"service.name": "llm", "process.pid": 100}),
    resource({"service.name": "llm", "process.pid": 100, "k8s.pod.name": "worker-0"}),
)


def named_later(tgid: int = 100, time_ns: int = 9) -> ProcessSeen:
    return ProcessSeen(tgid=tgid, time_ns=time_ns, resource=RICH, same_program=True)


@pytest.fixture
def host() -> Host:
    made = Host()
    made.accept()
    return made


def test_spans_after_the_names_have_them_and_lose_nothing(host: Host) -> None:
    host.serve()
    first = len(host.sent)
    host.serve()
    batches = [sent.batch for sent in host.sent]
    session = pipeline()
    until = Tick(time_ns=host.sent[first - 1].submitted_ns + MS)
    early: list[Input] = [*host.preamble(), *batches[:first], until]
    before = [row for item in early for row in read_out(session.feed(item))]
    after, _ = played([named_later(), *batches[first:], Tick(time_ns=host.now_ns + MS)], session)
    requests = [row for row in before if row.name == "chat tiny"]
    assert [row.resource for row in requests] == [POOR]
    assert {row.resource for row in after} == {RICH}
    # Kernels' names are still known, for the program is the same.
    assert "cudaLaunchKernel decode(int)" in {row.name for row in after}


def test_a_request_that_is_under_way_is_reported_of_one_resource(host: Host) -> None:
    host.ask()
    host.launch(0x1000)
    middle = len(host.sent)
    host.serve()
    batches = [sent.batch for sent in host.sent]
    rows, _ = played(
        [
            *host.preamble(),
            *batches[:middle],
            named_later(),
            *batches[middle:],
            Tick(time_ns=host.now_ns + MS),
        ]
    )
    assert {row.resource for row in rows} == {RICH}


def test_metrics_go_on_under_the_richer_name(host: Host) -> None:
    host.cuda("cuda_allocation", "cudaMalloc", object=0xA000, bytes=500, memory=Memory.DEVICE, caller=0x3000)
    first = len(host.sent)
    host.cuda("cuda_allocation", "cudaMalloc", object=0xB000, bytes=70, memory=Memory.DEVICE, caller=0x3000)
    batches = [sent.batch for sent in host.sent]
    session = pipeline()
    for item in (*host.preamble(), *batches[:first], Tick(time_ns=host.now_ns - MS)):
        list(session.feed(item))
    session.read_metrics()
    for item in (named_later(), *batches[first:], Tick(time_ns=host.now_ns + MS)):
        list(session.feed(item))
    data, _ = session.read_metrics()
    # What it holds is what it held, for it has not ended.
    assert session.metrics.value("gpu.cuda.memory.usage", RICH) == 570
    owners = [
        {each.key: each.value.string_value for each in part.resource.attributes}
        for part in data.resource_metrics
    ]
    assert [each.get("k8s.pod.name") for each in owners if each["service.name"] == "llm"] == ["worker-0"]
    # Long after, they are still there; they go with the process.
    list(session.feed(Tick(time_ns=host.now_ns + 60_000 * MS)))
    session.read_metrics()
    assert session.metrics.value("gpu.cuda.memory.usage", RICH) == 570
    gone_ns = host.now_ns + 61_000 * MS
    list(session.feed(ProcessGone(tgid=100, time_ns=gone_ns)))
    for wait in (1, 20_000, 40_000):
        list(session.feed(Tick(time_ns=gone_ns + wait * MS)))
    session.read_metrics()
    data, _ = session.read_metrics()
    reported = str(data)
    assert "worker-0" not in reported


def test_a_name_that_comes_after_the_end_of_a_process_leaves_nothing_behind(host: Host) -> None:
    host.launch(0x1000)
    session = pipeline()
    for item in (
        *host.inputs(),
        ProcessGone(tgid=100, time_ns=host.now_ns),
        Tick(time_ns=host.now_ns + 2 * MS),
        named_later(time_ns=host.now_ns + 3 * MS),
        Tick(time_ns=host.now_ns + 60_000 * MS),
    ):
        list(session.feed(item))
    session.read_metrics()
    data, _ = session.read_metrics()
    assert "worker-0" not in str(data) and '"llm"' not in str(data)


def test_who_keeps_an_old_name_or_a_series_adds_to_the_same() -> None:
    metrics = Metrics(0)
    metrics.add(counter(), "s", POOR, {}, 1)
    kept = metrics.growing(counter(), "s", POOR, {})
    metrics.rename(POOR, RICH)
    metrics.add(counter(), "s", POOR, {}, 10)
    metrics.add(counter(), "s", RICH, {}, 100)
    kept.total += 1000
    assert metrics.value("c", RICH) == metrics.value("c", POOR) == metrics.value("c") == 1111
    richer = resource({"service.name": "llm", "x": "y"})
    metrics.rename(RICH, richer)
    metrics.add(counter(), "s", POOR, {}, 10_000)
    assert metrics.value("c", richer) == 11_111
    metrics.rename(None, POOR)  # another program, which is no more than the poor name
    metrics.add(counter(), "s", POOR, {}, 5)
    assert (metrics.value("c", POOR), metrics.value("c", richer)) == (5, 11_111)
    metrics.forget({richer})
    assert metrics.value("c") == 5 and metrics.owner(RICH) == RICH


def test_a_gauge_of_a_device_is_not_lost_when_its_process_gets_its_name() -> None:
    processes = {100: POOR}
    reported = Reported(seen(), processes=processes)
    reading = ProcessReading(tgid=100, device=UUID, memory_bytes=7)
    reported.take(readings({}, reading))
    processes[100] = RICH
    reported.metrics.rename(POOR, RICH)
    reported.take(readings({}, reading))
    assert [value for _, value in reported.points(PROCESS_MEMORY.name, RICH)] == [7]
    reported.take(readings({}))
    assert not reported.points(PROCESS_MEMORY.name, RICH)


def test_the_peers_of_a_connection_are_called_by_the_names_that_came_later() -> None:
    known = {tgid: resource({"service.name": f"rank{tgid}"}) for tgid in (100, 200)}
    session = FabricSession(Metrics(0), known.__getitem__, known.get, OWN, seed=1)
    session.learn(port(address="fe80::1"))
    one, other = Caller(tgid=100, number=17), Caller(tgid=200, number=23, address=0x2000)
    session.take([*one.connect(23, "fe80::1"), *other.connect(17, "fe80::1")])
    known[200] = resource(
        {"service.name": "rank200", "k8s.pod.name": "worker-1", "k8s.namespace.name": "training"}
    )
    reported = str([batch.attributes for batch in session.report(20 * FABRIC_MS, 0, False)])
    assert "'worker-1'" in reported and "'training'" in reported


def test_processes_of_two_pods_are_two_resources_each_with_its_own_identity() -> None:
    hosts = [Host(tgid=tgid) for tgid in (100, 200)]
    inputs: list[Input] = []
    for host, uid in zip(hosts, UIDS, strict=True):
        host.accept(connection=host.tgid, tid=host.tgid + 1)
        host.serve(connection=host.tgid, tid=host.tgid + 1)
        process = facts(tgid=host.tgid, pod_uid=uid, container_id=f"{host.tgid:064x}", placed_by="cgroup")
        described = process_resource(process, {}, {}, identify(process, OwnPod(node="node-1")))
        inputs += host.preamble()
        inputs.append(ProcessSeen(tgid=host.tgid, time_ns=1, resource=described))
        inputs += [sent.batch for sent in host.sent]
    session = pipeline()
    batches = [
        batch
        for item in [*inputs, Tick(time_ns=max(host.now_ns for host in hosts) + MS)]
        for batch in session.feed(item)
    ] + list(session.finish())
    found: dict[str, tuple[int, dict[str, str]]] = {}
    for payload in encode_spans(batches):
        for part in ExportTraceServiceRequest.FromString(payload.body).resource_spans:
            attributes = {each.key: each.value.string_value for each in part.resource.attributes}
            uid = attributes["k8s.pod.uid"]
            spans = sum(len(scope.spans) for scope in part.scope_spans)
            assert uid not in found, "one ResourceSpans for each process"
            found[uid] = spans, attributes
    assert list(found) == list(UIDS)
    for host, uid in zip(hosts, UIDS, strict=True):
        spans, attributes = found[uid]
        assert spans > 5
        assert attributes["k8s.pod.uid"] == uid
        assert attributes["container.id"] == f"{host.tgid:064x}"
        assert attributes["k8s.node.name"] == "node-1"


def test_a_capture_keeps_that_it_is_the_same_program(tmp_path: Path) -> None:
    header = Header(version="1", seed=1, start_unix_ns=UNIX_OFFSET_NS, own={}, btf={})
    with_names = [ProcessSeen(tgid=1, time_ns=2, resource=POOR), named_later()]
    writer = CaptureWriter(tmp_path / "c", header)
    for item in with_names:
        writer.write(item)
    writer.close()
    assert list(CaptureReader(tmp_path / "c")) == with_names


def test_a_span_in_another_tenants_trace_is_still_its_own(host: Host) -> None:
    """Who knows a trace and a span of another may put his requests below it; whose they are he cannot change."""
    host.serve(traceparent=f"00-{TRACE}-{CALLER}-01")
    rows, _ = played(host.inputs())
    (request,) = (row for row in rows if row.name == "chat tiny")
    assert (request.trace_id, request.parent_id) == (TRACE, CALLER)
    assert request.resource == POOR
