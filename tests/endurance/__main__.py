"""``python -m tests.endurance [--minutes N] [--rate N] [--profiles KINDS]``: does an agent grow under churn?

The agent observes a cgroup in which processes come and go (:mod:`tests.endurance.churn`) and sends all it sees by
OTLP. The exit code is 1 when a quantity rises more than its bound (:mod:`tests.endurance.growth`), or something was
lost that is not the churn's own. Needs root; the samples stay in ``build/endurance``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.sink import Sink, running_sink
from tests.endurance.growth import WARM_UP, judge
from tests.rig.cgroup import in_cgroup, own_cgroup

FOLDER = Path(__file__).parents[2] / "build" / "endurance"
SHOWN = 12
START_S = 120  # with the instrument in the process, on a machine that does other things as well


class Discarding(Sink):
    """Counts what comes, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.count = 0

    def take(self, time_ns: int, path: str, body: bytes) -> None:
        with self.arrived:
            self.bytes += len(body)
            self.count += 1


def endure(
    seconds: float, rate: float, samples: Path, *, profiles: str = ""
) -> tuple[list[dict[str, Any]], str]:
    """The samples, and what agent and churn said at their ends. Raises `AssertionError` when one of them failed.

    ``profiles``: the kinds of continuous profiles that are taken, as in ``OTELGPU_PROFILES``.
    """
    samples.parent.mkdir(parents=True, exist_ok=True)
    samples.unlink(missing_ok=True)
    log = samples.with_suffix(".log")
    interval_s = min(max(seconds / 120, 0.5), 30)
    sink = Discarding()
    with own_cgroup() as cgroup, running_sink(sink):
        observed = [sys.executable, "-m", "tests.endurance.observed", str(samples), str(interval_s)]
        options = ["agent", "--cgroup", str(cgroup), "--export", f"otlp:{sink.url}"]
        environment = os.environ | {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTELGPU_METRIC_INTERVAL_MS": "20000",  # longer than a process is remembered after its end
            "OTELGPU_PROFILES": profiles,
        }
        with log.open("wb") as errors:
            agent = subprocess.Popen([*observed, *options], env=environment, stderr=errors)
        try:
            until = time.monotonic() + START_S
            while "observing" not in log.read_text():
                assert agent.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.05)
            done = _churn(cgroup, seconds, rate, agent)
        finally:
            agent.terminate()
            agent.wait(timeout=60)
    said = log.read_text()
    assert agent.returncode == 0, said
    reported = f"{said}churn: {done}received: {sink.count} requests, {sink.bytes >> 10} KiB\n"
    return [json.loads(line) for line in samples.read_text().splitlines()], reported


def _churn(cgroup: Path, seconds: float, rate: float, agent: subprocess.Popen[bytes]) -> str:
    """Let processes come and go in the cgroup; what was done."""
    churn = subprocess.Popen(
        [*in_cgroup(cgroup), sys.executable, "-m", "tests.endurance.churn", f"--rate={rate}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.5)
            assert churn.poll() is None and agent.poll() is None, "ended before its time"
    finally:
        churn.terminate()
        done, _ = churn.communicate(timeout=60)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120, help="how long (120)")
    parser.add_argument("--rate", type=float, default=10, help="processes a second (10)")
    parser.add_argument("--samples", type=Path, default=FOLDER / "samples.jsonl", help="where they are kept")
    parser.add_argument(
        "--profiles", default="", help="continuous profiles of these kinds: cpu,offcpu (none)"
    )
    options = parser.parse_args()
    samples, reported = endure(60 * options.minutes, options.rate, options.samples, profiles=options.profiles)
    print(reported)
    verdicts = judge(samples)
    print(f"{len(samples)} samples, the first {WARM_UP:.0%} left out")
    print(f"{'':70} {'median':>10} {'rise':>9} {'may rise':>9} {'last':>10}")
    for each in verdicts:
        if each.grows or each in verdicts[:SHOWN] or ":" not in each.name:
            row = f"{each.median:10,.0f} {each.rise:9,.0f} {each.bound:9,.0f} {each.last:10,.0f}"
            print(f"{each.name:70} {row}{'  GROWS' if each.grows else ''}")
    sys.exit(any(each.grows for each in verdicts))


if __name__ == "__main__":
    main()
