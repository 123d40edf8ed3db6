"""Where the data goes to fails in every way: all of it is accounted for, and the observed service does not notice.

A live agent observes a service under load and reports two exporters: the one that fails, and a file, which has all that
there was to report. What the agent says at its end of both must make up twice what is in the file. What it costs
meanwhile is its CPU time and memory, as far as an agent in no trouble has them; requests are compared with those of the
same session before anything failed, as other tests go on beside these.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from otelgpu.export.base import Signal
from otelgpu.export.otlp.exporter import OtlpExporter
from otelgpu.export.otlp.sender import DEFAULT_QUEUE_BYTES
from otelgpu.export.otlp.settings import OtlpSettings
from otelgpu.session import FLUSH_SECONDS
from tests.backends.collector import Collector, running_collector
from tests.contract.otlp_servers import (
    HttpAnswer,
    Tls,
    grpc_fail,
    grpc_partial,
    grpc_server,
    http_server,
)
from tests.kernel.observing import OTELGPU, said_at_start
from tests.rig import LlmServer, build_fakes, start_llm_server
from tests.rig.certificates import make_expired_certificate
from tests.rig.cpu_time import cpu_s
from tests.rig.faulty_proxy import Fault, faulty_proxy
from tests.rig.llm_load import LlmLoad
from tests.rig.metrics import metrics_reported
from tests.rig.priority import FIRST
from tests.rig.spans import spans_of_lines
from tests.unit.export.builders import spans

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to observe the service"),
    pytest.mark.long,
]

WELL_S, ILL_S = 0.7, 1.2
PAUSE_S = 0.03  # between requests: the file has to be read, too
FLUSH_S = 1.0
END_S = 4.0  # beside that: detaching, the last collection, and a machine that is shared
SLOWEST_S = 2.0
"""Of a request: who is kept waiting by an agent waits for its time-outs, which are longer."""
IMPATIENT: Final = f"""
from otelgpu.kernel.quiet_imports import import_quietly
import_quietly()
from otelgpu import agent
from otelgpu.cli.main import main
agent.FLUSH_SECONDS = {FLUSH_S}
main()
"""
"""otelgpu, which takes some seconds to deliver what is left, with less time: most tests here use all of it."""
MANY = 10_000
ACCOUNT = re.compile(r"^exported (\d+) spans, (\d+) data points to ", re.MULTILINE)
LOST = re.compile(r"^lost     ((?:spans|points)_lost_\w+) (\d+): ", re.MULTILINE)


@pytest.fixture(scope="module")
def service() -> Iterator[LlmServer]:
    build_fakes()
    with start_llm_server() as server:
        yield server


@dataclass(kw_only=True)
class Run:
    """What became of a session. ``produced``, ``accepted``: spans, data points; of the failing exporter.

    ``before_s``, ``seconds``: how long requests took before anything failed, and from then on. ``cpu_s``: the
    agent's CPU time from then on, until it is to end.
    """

    produced: tuple[int, int]
    accepted: tuple[int, int]
    lost: dict[str, int]
    before_s: list[float]
    seconds: list[float]
    cpu_s: float
    warnings: list[str]
    end_s: float
    flush_s: float
    rss_kib: int
    failures: list[str] = field(default_factory=list)

    def check(self) -> None:
        """What holds whatever fails."""
        for items, produced, accepted in zip(("spans", "points"), self.produced, self.accepted, strict=True):
            lost = sum(count for reason, count in self.lost.items() if reason.startswith(items))
            assert accepted + lost == produced, self
        assert self.produced[0] > 20, self
        assert self.failures == [], self
        assert self.end_s < self.flush_s + END_S, self


def agent_under_load(
    service: LlmServer,
    file: Path,
    endpoint: str,
    protocol: str,
    *,
    ill: Callable[[], object],
    patient: bool = False,
    **more: str,
) -> Run:
    """Observe, let ``ill`` happen meanwhile, end; ``more``: OTEL_EXPORTER_OTLP_* by the ends of their names.

    The agent goes before all else: the time of its end is its own, and if it were busy the service would have to wait.

    ``patient``: as users have it, not :data:`IMPATIENT`.
    """
    variables = {"ENDPOINT": endpoint, "PROTOCOL": protocol, **more}
    environment = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    environment["OTELGPU_METRIC_INTERVAL_MS"] = "500"
    program = [OTELGPU] if patient else [sys.executable, "-c", IMPATIENT]
    command = [*FIRST, *program, "attach", "--export=otlp", f"--export=file:{file}", f"-p{service.pid}"]
    with (
        LlmLoad(service, pause_s=PAUSE_S) as load,
        subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE, text=True) as agent,
    ):
        try:
            said = said_at_start(agent)
            time.sleep(WELL_S)
            healthy, cpu_before_s = len(load.seconds), cpu_s(agent.pid)
            ill()
            time.sleep(ILL_S)
            before_s, seconds = load.seconds[:healthy], load.seconds[healthy:]
            used_s = cpu_s(agent.pid) - cpu_before_s
            (rss,) = re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{agent.pid}/status").read_text())
            began = time.monotonic()
            agent.send_signal(signal.SIGTERM)
            said += agent.communicate(timeout=60)[1]
            ended = time.monotonic()
        finally:
            agent.kill()
    assert agent.returncode == 0, said
    assert "Traceback" not in said, said
    account = ACCOUNT.search(said)
    assert account is not None, said
    produced = in_file(file)
    return Run(
        produced=produced,
        accepted=(int(account[1]) - produced[0], int(account[2]) - produced[1]),
        lost=lost_in(said),
        before_s=before_s,
        seconds=seconds,
        cpu_s=used_s,
        warnings=[line for line in said.splitlines() if "WARNING" in line and "OTLP" in line],
        end_s=ended - began,
        flush_s=FLUSH_SECONDS if patient else FLUSH_S,
        rss_kib=int(rss),
        failures=load.failures,
    )


def lost_in(said: str) -> dict[str, int]:
    """What the end of a session says was not delivered, by reason."""
    return {name: int(count) for name, count in LOST.findall(said)}


def in_file(path: Path) -> tuple[int, int]:
    """Spans and data points."""
    count = sum(1 for _ in spans_of_lines(path.read_text()))
    return count, sum(len(reported.points) for reported in metrics_reported(path))


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """A Collector for all tests that do not look at what it has."""
    with running_collector(tmp_path_factory.mktemp("sink"), "nop") as running:
        yield running


@pytest.fixture(scope="module")
def well(service: LlmServer, sink: Collector, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same with nothing that fails, to compare with."""
    file = tmp_path_factory.mktemp("well") / "all.jsonl"
    run = agent_under_load(service, file, sink.addresses["grpc"], "grpc", ill=lambda: None)
    run.check()
    assert (run.lost, run.accepted, run.warnings) == ({}, run.produced, [])
    return run


def serves_as_before(well: Run, ill: Run) -> None:
    """Of a shared machine: its scheduler's whims are a multiple, an agent that stands in the way is seconds."""
    before, now = np.median(ill.before_s), np.median(ill.seconds)
    assert now < 4.0 * before + 0.05, (before, now)
    assert max(ill.seconds) < SLOWEST_S
    assert ill.cpu_s < 2.0 * well.cpu_s + 0.3, (well.cpu_s, ill.cpu_s)
    assert ill.rss_kib < well.rss_kib + 32 * 1024


Protocol = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])


@Protocol
def test_a_collector_that_is_killed_and_started_again(
    service: LlmServer, well: Run, collector: Collector, tmp_path: Path, protocol: str
) -> None:
    def restart() -> None:
        os.kill(collector.pid, signal.SIGKILL)
        collector.stop()
        time.sleep(0.7)
        collector.start()

    run = agent_under_load(
        service, tmp_path / "all", collector.addresses[protocol], protocol, ill=restart, patient=True
    )
    run.check()
    assert run.lost == {}
    serves_as_before(well, run)
    collector.stop()
    assert len({span.span_id for span in all_spans(collector.traces())}) >= 0.9 * run.produced[0]


def all_spans(data: TracesData) -> list[Span]:
    return [span for part in data.resource_spans for scope in part.scope_spans for span in scope.spans]


@pytest.mark.parametrize(
    ("protocol", "fault"),
    [
        ("http/protobuf", Fault.SLOW),
        ("grpc", Fault.BLACK_HOLE),
        ("http/protobuf", Fault.BLACK_HOLE),
        ("grpc", Fault.RESET),
        ("grpc", Fault.GARBAGE),
        ("http/protobuf", Fault.GARBAGE),
    ],
)
def test_a_way_that_turns_bad(
    service: LlmServer, well: Run, sink: Collector, tmp_path: Path, protocol: str, fault: Fault
) -> None:
    port = int(sink.addresses[protocol].rpartition(":")[2])
    with faulty_proxy(port) as proxy:

        def turn_bad() -> None:
            proxy.fault = fault

        endpoint = f"http://127.0.0.1:{proxy.port}"
        run = agent_under_load(service, tmp_path / "all", endpoint, protocol, ill=turn_bad)
    run.check()
    serves_as_before(well, run)
    assert run.accepted[0] > 0
    # Garbage in place of HTTP/2 is an error of kind INTERNAL or UNKNOWN to gRPC, which is not to be tried again.
    reasons = {"shutdown", "refused"} if (protocol, fault) == ("grpc", Fault.GARBAGE) else {"shutdown"}
    assert set(run.lost) <= {f"{items}_lost_{reason}" for items in ("spans", "points") for reason in reasons}
    assert sum(run.lost.values()) > 0
    assert 1 <= len(run.warnings) <= 6, (
        run.warnings
    )  # for either signal: two kinds of trouble, and what is lost


Server = Callable[[], AbstractContextManager[Any]]
# One of each kind, by either protocol: tests/contract/test_otlp_export.py has every status.
REFUSING: dict[str, tuple[str, Server, str]] = {
    "429": (
        "http/protobuf",
        lambda: http_server(*[HttpAnswer(429, (("Retry-After", "30"),))] * MANY),
        "shutdown",
    ),
    "401": ("http/protobuf", lambda: http_server(*[HttpAnswer(401)] * MANY), "refused"),
    "UNAVAILABLE": (
        "grpc",
        lambda: grpc_server(*[grpc_fail(grpc.StatusCode.UNAVAILABLE)] * MANY),
        "shutdown",
    ),
    "PERMISSION_DENIED": (
        "grpc",
        lambda: grpc_server(*[grpc_fail(grpc.StatusCode.PERMISSION_DENIED)] * MANY),
        "refused",
    ),
    "partial success": ("grpc", lambda: grpc_server(*[grpc_partial(1, "too old")] * MANY), "rejected"),
}


@pytest.mark.parametrize("answer", REFUSING)
def test_a_server_that_refuses(service: LlmServer, well: Run, tmp_path: Path, answer: str) -> None:
    protocol, serve, reason = REFUSING[answer]
    with serve() as server:
        run = agent_under_load(service, tmp_path / "all", server.address, protocol, ill=lambda: None)
    run.check()
    serves_as_before(well, run)
    assert set(run.lost) == {f"{items}_lost_{reason}" for items in ("spans", "points")}
    assert 2 <= len(run.warnings) <= 4, run.warnings


UNREACHABLE: Sequence[tuple[str, str]] = (
    ("a name that nobody has", "http://collector.invalid:4317"),
    ("a port that nobody listens at", "http://127.0.0.1:9"),
    ("plain text where TLS is spoken", "https://127.0.0.1:{}"),
)


@Protocol
@pytest.mark.parametrize(("what", "endpoint"), UNREACHABLE)
def test_a_server_that_cannot_be_reached(
    service: LlmServer,
    well: Run,
    sink: Collector,
    tmp_path: Path,
    protocol: str,
    what: str,
    endpoint: str,
) -> None:
    endpoint = endpoint.format(sink.addresses[protocol].rpartition(":")[2])
    run = agent_under_load(service, tmp_path / "all", endpoint, protocol, ill=lambda: None)
    run.check()
    serves_as_before(well, run)
    assert run.accepted == (0, 0)
    assert set(run.lost) == {"spans_lost_shutdown", "points_lost_shutdown"}
    in_clear = [warning for warning in run.warnings if "is not encrypted" in warning]
    assert len(in_clear) == ("collector.invalid" in endpoint)
    assert 2 <= len(run.warnings) - len(in_clear) <= 4, run.warnings


SERVERS: Final[dict[str, Callable[..., AbstractContextManager[Any]]]] = {
    "grpc": grpc_server,
    "http/protobuf": http_server,
}


@Protocol
def test_a_server_whose_certificate_has_expired(
    service: LlmServer, well: Run, tmp_path: Path, protocol: str
) -> None:
    make_expired_certificate(tmp_path)
    certificate, key = (str(tmp_path / name) for name in ("certificate.pem", "key.pem"))
    tls = Tls(certificate, certificate, key, client_certificate="", client_key="")
    with SERVERS[protocol](tls=tls) as server:
        run = agent_under_load(
            service, tmp_path / "all", server.address, protocol, ill=lambda: None, CERTIFICATE=certificate
        )
    run.check()
    serves_as_before(well, run)
    assert run.accepted == (0, 0)
    assert set(run.lost) == {"spans_lost_shutdown", "points_lost_shutdown"}
    assert 2 <= len(run.warnings) <= 4, run.warnings
    assert "certificate" in run.warnings[0].lower()


def rss_kib() -> int:
    (found,) = re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found)


def test_a_backlog_of_minutes_takes_no_more_than_its_queue(sink: Collector) -> None:
    """Four queues full of spans at a server that never answers: each one that does not fit is counted."""
    bulk = spans(50_000)
    with faulty_proxy(int(sink.addresses["grpc"].rpartition(":")[2])) as proxy:
        proxy.fault = Fault.BLACK_HOLE
        variables = {"ENDPOINT": f"http://127.0.0.1:{proxy.port}", "PROTOCOL": "grpc"}
        environment = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
        exporter = OtlpExporter(
            *(OtlpSettings.from_environment(environment, s) for s in (Signal.TRACES, Signal.METRICS))
        )
        exporter.export_spans([bulk])
        before, given = rss_kib(), len(bulk)
        while exporter.stats()["spans_lost_queue_full"] < 3 * exporter.stats()["spans_queued"]:
            exporter.export_spans([bulk])
            given += len(bulk)
        grown_kib = rss_kib() - before
        exporter.close(0.2)
    stats = exporter.stats()
    print(f"{given} spans given, {stats['spans_lost_queue_full']} not queued, {grown_kib >> 10} MiB more")
    assert grown_kib << 10 < DEFAULT_QUEUE_BYTES + (32 << 20)
    assert stats["spans_lost_queue_full"] + stats["spans_lost_shutdown"] == stats["spans_given"] == given


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the header of a capture, which has the types of all families, and little more."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk(service: LlmServer, well: Run, small_disk: Path, tmp_path: Path) -> None:
    """Of the file and of the capture: whole lines up to where it was full, the rest counted."""
    command = [OTELGPU, "record", f"-o{small_disk / 'capture'}", f"-p{service.pid}", "--detail=all"]
    command += [f"--export=file:{small_disk / 'spans'}", f"--export=file:{tmp_path / 'all'}", "--duration=4"]
    with LlmLoad(service, pause_s=PAUSE_S) as load:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    account = ACCOUNT.search(done.stderr)
    assert account is not None, done.stderr
    lost = lost_in(done.stderr)
    produced, kept = in_file(tmp_path / "all"), in_file(small_disk / "spans")
    assert kept[0] + lost["spans_lost_write_failed"] == produced[0]
    assert int(account[1]) == kept[0] + produced[0]
    assert done.stderr.count("data is dropped until it works again") == 1
    assert done.stderr.count("the capture ends here") == 1
    assert load.failures == []


def test_a_file_that_is_moved_away_or_removed(service: LlmServer, tmp_path: Path) -> None:
    """As `logrotate` does: what is written from then on goes to a new file of the name."""
    file, moved = tmp_path / "spans", tmp_path / "spans.1"
    command = [OTELGPU, "attach", f"--export=file:{file}", f"-p{service.pid}", "--duration=2"]
    with (
        LlmLoad(service, pause_s=PAUSE_S) as load,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as agent,
    ):
        with contextlib.suppress(FileNotFoundError):
            while not file.exists() or not file.stat().st_size:
                time.sleep(0.05)
        file.rename(moved)
        said = agent.communicate(timeout=60)[1]
    account = ACCOUNT.search(said)
    assert account is not None, said
    before, after = in_file(moved), in_file(file)
    assert before[0] > 0 and after[0] > 0
    assert (before[0] + after[0], before[1] + after[1]) == (int(account[1]), int(account[2]))
    assert load.failures == []
