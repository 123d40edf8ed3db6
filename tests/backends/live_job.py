"""A job of ranks, each under an agent of its own, all of them sending to one Collector whose file is diagnosed.

In: how many ranks, how long their steps are, from which step on one is late. Out: the event of the verdict as it came
to the Collector. ``python -m tests.backends.live_job --ranks 8`` measures how long that took; it needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from examples.training.__main__ import environment
from tests.backends.collector import Collector, running_collector
from tests.backends.engine_session import OTELGPU
from tests.backends.programs import POLL_S, Destination
from tests.rig import RigError, build_fakes
from tests.rig.spans import spans_of_lines

VERDICT: Final = "otelgpu.verdict"
KERNELS: Final = 24
"""Of a step of the example: the fake device runs one after the other."""
_WAIT_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """``late_rank`` takes half a step longer to load its data from step ``late_from`` on, until it is told."""

    ranks: int
    step_s: float
    late_from: int
    steps: int
    every_s: float
    late_rank: int = 1

    @property
    def late_s(self) -> float:
        return self.step_s / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """``slow_ns``: when the first slow step began. ``came_ns``: when the event was in the Collector's file.

    ``under_way``: the job was, then.
    """

    event: dict[str, Any]
    slow_ns: int
    came_ns: int
    under_way: bool


def watch(job: LiveJob, folder: Path) -> Told:
    """Run all of it, until a verdict on the late rank is at the Collector. Raises `RigError` where none comes.

    A machine that is busy makes other ranks late too, and that is told of them; here it is passed over.
    """
    build_fakes()
    lines = folder / "ranks.jsonl"
    to_lines = Destination(
        signal="traces",
        exporter="file/lines",
        settings={"path": str(lines), "format": "json", "append": True, "flush_interval": "100ms"},
    )
    with (
        running_collector(folder, to=[to_lines]) as collector,
        _followed(job, lines, collector, folder),
        _ranks(job, collector, folder) as ranks,
    ):
        deadline, judged = time.monotonic() + _WAIT_S, 0
        while time.monotonic() < deadline:
            for event in _events(collector)[judged:]:
                judged += 1
                slow_ns = _first_slow_ns(job, lines)
                if slow_ns is not None and _is_on(event, job, slow_ns):
                    came_ns, under_way = time.time_ns(), all(rank.poll() is None for rank in ranks)
                    return Told(event=event, slow_ns=slow_ns, came_ns=came_ns, under_way=under_way)
            time.sleep(POLL_S)
    raise RigError(f"no verdict came: {(folder / 'follow.log').read_text()[-2000:]}")


def _is_on(event: dict[str, Any], job: LiveJob, slow_ns: int) -> bool:
    end_s = event["otelgpu.verdict.start"] + event["otelgpu.verdict.duration"]
    return str(job.late_rank) in event["otelgpu.verdict.ranks"] and end_s * 1e9 > slow_ns


@contextlib.contextmanager
def _ranks(job: LiveJob, collector: Collector, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Each on a node of its own, as far as its agent can tell."""
    kernel_us = round(job.step_s / KERNELS * 1e6)
    command = [str(OTELGPU), "run", "--quiet", f"--export=otlp:{collector.addresses['http/protobuf']}", "--"]
    command += [
        sys.executable,
        "-m",
        "examples.training.rank",
        f"--ranks={job.ranks}",
        f"--steps={job.steps}",
    ]
    command += [f"--store={folder / 'unique-id'}", f"--late-from={job.late_from}"]
    processes = []
    with contextlib.ExitStack() as stack:
        for rank in range(job.ranks):
            late_ms = job.late_s * 1e3 if rank == job.late_rank else 0
            process = subprocess.Popen(
                [*command, f"--rank={rank}", f"--late-ms={late_ms}"],
                env=environment(folder)
                | {"RANK": str(rank), "WORLD_SIZE": str(job.ranks), "LOCAL_RANK": "0"}
                | {"FAKE_CUDART_KERNEL_US": str(kernel_us), "OTEL_SERVICE_NAME": "training"}
                | {"OTEL_RESOURCE_ATTRIBUTES": f"host.name=node-{rank}"},
                stdout=subprocess.DEVNULL,
                stderr=(folder / f"rank-{rank}.log").open("wb"),
            )
            stack.callback(_end, process)
            processes.append(process)
        yield processes


@contextlib.contextmanager
def _followed(job: LiveJob, lines: Path, collector: Collector, folder: Path) -> Iterator[None]:
    command = [str(OTELGPU), "diagnose", "ranks", str(lines), "--follow", f"--every={job.every_s}s", "--json"]
    with (folder / "follow.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=os.environ
            | {
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.addresses["http/protobuf"],
                "OTEL_BLRP_SCHEDULE_DELAY": "100",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _events(collector: Collector) -> list[dict[str, Any]]:
    records = [
        record
        for resource in collector.logs().resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    return [_described(record) for record in records if record.event_name == VERDICT]


def _described(record: LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = {"text": record.body.string_value}
    for each in record.attributes:
        value = each.value
        if value.HasField("array_value"):
            found[each.key] = [item.string_value for item in value.array_value.values]
        else:
            found[each.key] = getattr(value, value.WhichOneof("value") or "", None)
    return found


def _first_slow_ns(job: LiveJob, lines: Path) -> int | None:
    """Of the late rank's steps, by their spans: its own clock is the only one that is needed."""
    whole, _, _ = lines.read_text().rpartition("\n")  # the Collector is still writing
    slow = [
        span["start"]
        for span in spans_of_lines(whole)
        if span["attributes"].get("otelgpu.step.data_loader_stall.duration", 0) > job.late_s
        and span["resource"].get("otelgpu.job.rank") == job.late_rank
    ]
    return min(slow, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=1000)
    parser.add_argument("--late-from", type=int, default=30)
    parser.add_argument("--every-s", type=float, default=10)
    options = parser.parse_args()
    job = LiveJob(
        ranks=options.ranks,
        step_s=options.step_ms / 1e3,
        late_from=options.late_from,
        steps=options.late_from + 200,
        every_s=options.every_s,
    )
    with tempfile.TemporaryDirectory(prefix="live-") as folder:
        told = watch(job, Path(folder))
    print(json.dumps(told.event, indent=1))
    print(f"{(told.came_ns - told.slow_ns) / 1e9:.1f} s after the first slow step began")


if __name__ == "__main__":
    main()
