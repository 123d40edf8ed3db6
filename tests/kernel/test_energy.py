"""Energy of requests on the live kernel: an engine under `otelgpu run`, and an NVML whose counter a test turns.

The counter moves as that of a GPU would: 70 W idle, 400 W while there are requests. Its first and last value are
known, so that what is reported of it must sum up to their difference.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kernel.observing import OTELGPU, Span, read_metrics, read_spans
from tests.kernel.test_engine_steps import OPTIONS, send
from tests.rig import build_fakes, start_engine_server
from tests.rig.fakes import BUILD
from tests.unit.families.gpu.devices.nvml_script import Script

FIRST_MJ: Final = 1_000_000
IDLE_W, BUSY_W = 70, 400
TURN_S: Final = 0.02
REQUESTS: Final = 23
ENERGY: Final = "otelgpu.gen_ai.request.energy"
QUIET_S: Final = 2.5


class Gpu:
    """One whose counter goes on by itself, as a process of its own would have it, until it is frozen."""

    def __init__(self, folder: Path) -> None:
        self.watts = IDLE_W
        self.millijoules = FIRST_MJ
        self.path = folder / "nvml.txt"
        self._frozen = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Until then it uses nothing."""
        self._thread.start()

    def _write(self) -> None:
        """Replaced as a whole: who reads it half written would see no GPU."""
        fresh = Script(self.path.with_suffix(".fresh")).gpu(0, field__83=self.millijoules)
        fresh.path.replace(self.path)

    def _run(self) -> None:
        before = time.monotonic()
        while not self._frozen.wait(TURN_S):
            now = time.monotonic()
            self.millijoules += round(self.watts * (now - before) * 1000)
            before = now
            self._write()

    def freeze(self) -> int:
        """No more from here on; how much was used in all, in millijoules."""
        self._frozen.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.millijoules - FIRST_MJ


@contextmanager
def running(folder: Path) -> Iterator[Gpu]:
    gpu = Gpu(folder)
    try:
        yield gpu
    finally:
        gpu.freeze()


class Reported:
    """A session: quiet, requests, quiet again."""

    def __init__(self, folder: Path) -> None:
        traces = folder / "traces.jsonl"
        build_fakes()
        environment = {
            "LD_LIBRARY_PATH": str(BUILD),
            "FAKE_NVML": str(folder / "nvml.txt"),
            "OTELGPU_DEVICE_INTERVAL_MS": "1000",
            "OTELGPU_PRICE_PER_KWH": "0.30",
            "OTELGPU_CURRENCY": "EUR",
        }
        observed = (OTELGPU, "run", f"--export=file:{traces}", "--")
        with (
            running(folder) as gpu,
            start_engine_server(*OPTIONS, prefix=observed, env=environment, start_timeout_s=120) as server,
        ):
            gpu.start()
            time.sleep(QUIET_S)
            gpu.watts = BUSY_W
            send(server, REQUESTS)
            gpu.watts = IDLE_W
            time.sleep(QUIET_S)
            self.joules = gpu.freeze() / 1000
        self.spans: list[Span] = [
            span for span in read_spans(traces) if span["kind"] == 2 and span["name"].startswith("chat")
        ]
        self.metrics: dict[str, list[dict[str, Any]]] = read_metrics(traces)

    def energy(self, key: str) -> list[float]:
        return [span["attributes"][key] for span in self.spans]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    return Reported(tmp_path_factory.mktemp("energy"))


def by_use(reported: Reported) -> Counter[str]:
    found: Counter[str] = Counter()
    for point in reported.metrics["otelgpu.gpu.energy"]:
        found[point["attributes"]["otelgpu.gpu.energy.use"]] += point["asDouble"]
    return found


def test_every_generation_says_what_was_used_for_it_by_the_steps_that_it_was_in(reported: Reported) -> None:
    assert len(reported.spans) == REQUESTS
    # The counter stands still while the thread that turns it gets no CPU.
    assert sum(joules > 0 for joules in reported.energy(ENERGY)) >= 2 * REQUESTS / 3
    methods = Counter(span["attributes"][f"{ENERGY}.method"] for span in reported.spans)
    # Prompts go through in parts, of which no message tells: steps of those are shared by who was under way.
    assert methods["steps"] >= REQUESTS / 3
    assert set(methods) <= {"steps", "concurrency"}
    assert {span["attributes"][f"{ENERGY}.idle_power"] for span in reported.spans} == {"measured"}


def test_requests_idle_and_nobodys_sum_up_to_the_counter(reported: Reported) -> None:
    used = by_use(reported)
    assert used["requests"] == pytest.approx(sum(reported.energy(ENERGY)))
    assert sum(used.values()) == pytest.approx(reported.joules, abs=1e-6)
    (counted,) = reported.metrics["hw.energy"]
    assert int(counted["asInt"]) == int(reported.joules)
    assert used["idle"] > IDLE_W * QUIET_S  # before and after


def test_a_request_costs_what_the_price_says(reported: Reported) -> None:
    for span in reported.spans:
        said = span["attributes"]
        assert said["otelgpu.gen_ai.request.cost"] == pytest.approx(said[ENERGY] / 3.6e6 * 0.30)
        assert said["otelgpu.cost.currency"] == "EUR"
