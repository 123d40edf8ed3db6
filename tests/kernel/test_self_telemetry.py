"""A working agent as its operator sees it: health, its own metrics, reloads under load, and a quiet log."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kernel.observing import OTELGPU, held_programs, probed, read_metrics, read_spans, wait_until
from tests.rig import own_suffix, start_cuda_client
from tests.rig.cuda_client import CudaClient
from tests.rig.health import Health, Samples, total
from tests.rig.ports import free_port
from tests.rig.spans import cuda_calls

pytestmark = pytest.mark.long

CALLS = 9_973  # prime

CLIENT = f"cuda_client{own_suffix()}"


class Agent(Health):
    """`otelgpu agent` with a configuration file and a health endpoint."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(free_port())
        self.file = folder / "otelgpu.yaml"
        self.settings = {
            "families": ["cuda"],
            "executables": [CLIENT],
            "export": [f"file:{folder / 'out.jsonl'}"],
            "device_interval_ms": 0,
            "fabric_interval_ms": 0,
            **settings,
        }
        self.settings["health_address"] = f":{self.port}"
        self.write()
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [OTELGPU, "agent", "--quiet", "--config", str(self.file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: self.lines or self.process.poll() is not None, "the start", limit_s=30)
        assert "observing" in self.lines[0], self.lines

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def write(self, **settings: Any) -> None:
        self.settings |= settings
        self.file.write_text(yaml.safe_dump(self.settings))

    def reload(self, **settings: Any) -> None:
        """Change the settings, and wait until that is said."""
        self.write(**settings)
        self.hang_up("read again")

    def hang_up(self, word: str) -> str:
        said = len(self.lines)
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any(word in line for line in self.lines[said:]), f"a line with {word!r}")
        return self.lines[-1]

    @contextmanager
    def client(self, **options: Any) -> Iterator[CudaClient]:
        """A client that waits before its first call, until it is observed."""
        with start_cuda_client(suffix=own_suffix(), **options) as client:
            wait_until(lambda: self.libraries_of(client.pid), "the client is observed", 30)
            yield client

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0, self.lines
        self._reader.join(5)


@contextmanager
def agent(folder: Path, **settings: Any) -> Iterator[Agent]:
    found = Agent(folder, **settings)
    try:
        yield found
        found.stop()
    finally:
        found.process.kill()
        found.process.wait()


def records(samples: Samples) -> float:
    """Of calls; those that report names of kernels are others."""
    return total(samples, "otelgpu_records_total", otelgpu_record="cuda_call")


def of_client(client: CudaClient, reported: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Its spans or data points among those of others."""
    return [each for each in reported if each["resource"].get("process.pid") == client.pid]


@dataclass(frozen=True, kw_only=True)
class Worked:
    """An agent that observed one client and was ended. ``samples``, ``answers``: while the client was there.

    ``made``: the client's calls; ``is_forgotten``: nothing was reported of it some time after its end.
    """

    folder: Path
    answers: list[tuple[int, str]]
    made: int
    samples: Samples
    is_forgotten: bool
    lines: list[str]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Worked:
    folder = tmp_path_factory.mktemp("worked")
    with agent(folder, metric_interval_ms=100) as observer:
        with observer.client(calls=CALLS, linger_ms=500) as client:
            answers = [observer.get("/healthz"), observer.get("/readyz")]
            made = sum(probed(client.finish().calls).values())
            time.sleep(1.1)  # what was scraped may be a second old
            samples = observer.scrape()
        with suppress(AssertionError):
            wait_until(lambda: not observer.libraries_of(client.pid), "its libraries are forgotten")
        is_forgotten = not observer.libraries_of(client.pid)
    return Worked(
        folder=folder,
        answers=answers,
        made=made,
        samples=samples,
        is_forgotten=is_forgotten,
        lines=observer.lines,
    )


def test_health_and_metrics_of_a_working_agent(worked: Worked) -> None:
    assert worked.answers == [(200, "ok"), (200, "ok")]
    samples = worked.samples
    assert records(samples) >= worked.made >= CALLS
    assert 0 < total(samples, "otelgpu_ring_high_water_bytes", otelgpu_family="cuda") <= 8 << 20
    assert total(samples, "otelgpu_ring_limit_bytes", otelgpu_family="cuda") == 8 << 20
    assert total(samples, "otelgpu_tracked", otelgpu_tracked_type="process") >= 1
    assert total(samples, "process_cpu_time_seconds_total") > 0
    assert total(samples, "otelgpu_drain_duration_seconds_count") > 0


def test_a_process_that_has_ended_is_reported_no_more(worked: Worked) -> None:
    assert worked.is_forgotten


def test_the_same_is_exported_with_everything_else(worked: Worked) -> None:
    metrics = read_metrics(worked.folder / "out.jsonl")
    own = {name for name, points in metrics.items() if points[0]["resource"]["service.name"] == "otelgpu"}
    assert {"otelgpu.records", "otelgpu.ring.high_water", "process.cpu.time", "process.uptime"} <= own
    exported = metrics["otel.sdk.exporter.span.exported"]
    spans = len(read_spans(worked.folder / "out.jsonl"))
    assert [int(point["asInt"]) for point in exported] == [spans]


def test_in_normal_operation_there_is_one_line(worked: Worked) -> None:
    """In a second, with ten exports."""
    (line,) = worked.lines
    assert re.fullmatch(
        r"otelgpu: observing every matching process; results go to \S+; Ctrl-C ends it",
        line,
    )


def test_reloads_under_load_lose_no_record_and_detach_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "out.jsonl", tmp_path / "second.jsonl"
    load = {"calls": CALLS, "threads": 2, "sleep_us": 300, "functions": ("cudaLaunchKernel", "cudaMalloc")}
    with (
        agent(tmp_path, detail="all", metric_interval_ms=150) as observer,
        observer.client(**load) as client,
    ):
        programs = held_programs(observer.process.pid)
        finished: list[Any] = []
        work = threading.Thread(target=lambda: finished.append(client.finish()))
        work.start()
        reloads = 0
        while work.is_alive():
            reloads += 1
            observer.reload(
                detail=("all", "ops")[reloads % 2],
                interval_ms=(100, 200)[reloads % 2],
                export=[f"file:{(first, second)[reloads % 2]}"],
            )
            time.sleep(0.1)
        assert held_programs(observer.process.pid) >= programs
        samples = observer.scrape()
    last = (first, second)[reloads % 2]
    metrics = read_metrics(last)
    made = sum(probed(finished[0].calls).values())
    spans = {path: read_spans(path) for path in (first, second)}
    reported = sum(sum(cuda_calls(of_client(client, spans[path])).values()) for path in spans)
    counters = [metrics[name] for name in metrics if name.endswith(".calls")]
    counted = sum(int(point["asInt"]) for points in counters for point in of_client(client, points))
    print(f"\n{reloads} reloads; {made} calls, {reported} in spans, {counted} in metrics")
    assert reloads >= 5
    assert reported == counted == made
    assert all(path.stat().st_size for path in spans)
    outcome = {"otelgpu_reload_outcome": "applied"}
    assert total(samples, "otelgpu_config_reloads_total", **outcome) >= reloads - 1  # a second old
    exported = sum(int(point["asInt"]) for point in metrics["otel.sdk.exporter.span.exported"])
    assert exported == len(spans[first]) + len(spans[second])


def test_a_mistake_in_the_file_keeps_everything_as_it_was(tmp_path: Path) -> None:
    with agent(tmp_path) as observer:
        observer.write(nonsense=1)
        said = observer.hang_up("nothing has changed")
        assert f"{observer.file}:" in said
        with observer.client(calls=23) as client:
            client.finish()
        reloads = {"otelgpu_reload_outcome": "refused"}
        assert total(observer.scrape(), "otelgpu_config_reloads_total", **reloads) == 1
    assert cuda_calls(read_spans(tmp_path / "out.jsonl"))


def test_a_running_process_comes_into_scope_and_leaves_it(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with agent(tmp_path, executables=["nothing"], detail="all") as observer:
        with start_cuda_client(calls=23, suffix=own_suffix()) as client:
            observer.reload(executables=[CLIENT.replace("client", "cl*")])
            client.finish()
            seen = client
        with observer.client(calls=23) as client:
            observer.reload(executables=["nothing"])
            client.finish()
            unseen = client
    spans = read_spans(out)
    assert cuda_calls(of_client(seen, spans))["cudaLaunchKernel"] == 23
    assert not of_client(unseen, spans)


def test_without_a_file_a_hangup_is_reported_and_ignored(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [OTELGPU, "agent", "--families=cuda", f"--executable={CLIENT}", f"--export=file:{tmp_path / 'o'}"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert "observing" in process.stderr.readline()
    process.send_signal(signal.SIGHUP)
    assert "no --config to read again" in process.stderr.readline()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_destination_that_is_down_is_reported_once(tmp_path: Path, form: str) -> None:
    settings = {
        "export": [f"otlp:http://127.0.0.1:{free_port()}"],
        "metric_interval_ms": 100,
        "log_format": form,
    }
    with agent(tmp_path, **settings) as observer:
        with observer.client(calls=23) as client:
            client.finish()
        wait_until(lambda: len(observer.lines) >= 3, "traces and metrics are said", limit_s=20)
        wait_until(
            lambda: total(observer.scrape(), "otelgpu_exporter_retries_total") >= 4, "retries", limit_s=20
        )
        wait_until(lambda: total(observer.scrape(), "otel_sdk_exporter_span_inflight"), "spans that wait")
        lines = list(observer.lines)
        assert total(observer.scrape(), "otelgpu_exporter_failing_seconds") > 0
        assert observer.get("/healthz") == (200, "ok")
    assert len(lines) == 3, lines  # the start, traces, metrics
    if form == "json":
        assert {json.loads(line)["level"] for line in lines} == {"info", "warning"}
