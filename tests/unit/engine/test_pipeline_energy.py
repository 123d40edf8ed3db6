"""Energy through the whole session: readings and records in, what requests used on their spans and in metrics out."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from otelgpu.engine.pipeline import Pipeline
from otelgpu.model.devices import DeviceReadings, EnergyRead, ProcessReading
from otelgpu.model.inputs import Input, Tick
from otelgpu.model.settings import SignalSettings
from tests.unit.engine.test_pipeline import named, one, pipeline, played
from tests.unit.families.records import MS, Host, completion

UUID = "GPU-1"
ENERGY = "otelgpu.gen_ai.request.energy"
SETTLED_MS = 2_000


def read(at_ns: int, millijoules: int) -> EnergyRead:
    return EnergyRead(time_ns=at_ns, uuid=UUID, millijoules=millijoules)


def listed(at_ns: int, tgid: int = 100) -> DeviceReadings:
    return DeviceReadings(
        time_ns=at_ns, uuid=UUID, values={}, processes=(ProcessReading(tgid=tgid, device=UUID),)
    )


@pytest.fixture
def host() -> Host:
    made = Host()
    made.accept()
    return made


def session_of(host: Host, *, millijoules: int) -> list[Input]:
    """What the host did between two readings, and time for all of it to be known."""
    began = host.sent[0].submitted_ns - 100 * MS
    *inputs, last = host.inputs()
    known = Tick(time_ns=host.now_ns + SETTLED_MS * MS)
    end = host.now_ns + 50 * MS
    later = Tick(time_ns=known.time_ns + 200 * MS)
    return [
        *(read(began, 5_000), listed(began)),
        *(*inputs, last, read(end, 5_000 + millijoules), known, later),
    ]


def points(session: Pipeline, name: str) -> dict[str, float]:
    """Sum of a metric by the last of its attributes in alphabetical order."""
    found: dict[str, float] = defaultdict(float)
    data, _ = session.read_metrics()
    for metric in (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics):
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points if metric.name == name else ():
            label = max(point.attributes, key=lambda each: each.key, default=None)
            value = point.sum if kind == "histogram" else point.as_double
            found[label.value.string_value if label is not None else ""] += value
    return found


def test_a_request_is_charged_what_was_used_for_it(host: Host) -> None:
    host.serve()
    rows, session = played(session_of(host, millijoules=30_000))
    request = one(rows, "chat tiny")
    assert request.get(ENERGY) == pytest.approx(30.0)
    assert request.get(f"{ENERGY}.method") == "calls"
    assert request.get(f"{ENERGY}.idle_power") == "unknown"
    assert request.get("otelgpu.energy.source") == "counter"
    assert request.get("otelgpu.gen_ai.request.gpu_time") == pytest.approx(
        (request.end_ns - request.start_ns) / 1e9
    )
    assert request.get("otelgpu.gen_ai.request.cost") is None
    assert points(session, "otelgpu.gpu.energy") == {"requests": pytest.approx(30.0)}
    assert points(session, ENERGY) == {"tiny-1": pytest.approx(30.0)}


def test_the_span_waits_for_the_reading_after_its_end(host: Host) -> None:
    host.serve()
    inputs = session_of(host, millijoules=30_000)
    *before, second, _, _ = inputs
    assert isinstance(second, EnergyRead)
    session = pipeline()
    rows = [row for item in before for row in session.feed(item)]
    assert not rows
    assert session.awaits_readings


def test_without_a_gpu_nothing_waits_and_nothing_is_said(host: Host) -> None:
    host.serve()
    session = pipeline()
    rows, _ = played(host.inputs(), session)
    assert one(rows, "chat tiny").get(ENERGY) is None
    assert not session.awaits_readings


def test_two_requests_at_once_share_by_their_calls(host: Host) -> None:
    host.accept(2, tid=102)
    host.ask()
    host.ask(connection=2, tid=102)
    host.synchronize(tid=101, took_ns=30 * MS)
    host.synchronize(tid=102, took_ns=10 * MS)
    answer = completion(prompt_tokens=4, completion_tokens=20, total_tokens=24)
    host.write(answer)
    host.write(answer, connection=2, tid=102)
    rows, session = played(session_of(host, millijoules=40_000))
    used = sorted(row.get(ENERGY) for row in named(rows, "chat tiny"))
    assert used == pytest.approx([10.0, 30.0])
    assert points(session, "otelgpu.gen_ai.request.energy_per_1000_tokens") == {
        "tiny-1": pytest.approx(40.0 * 1000 / 20)
    }


def test_prices_make_a_cost(host: Host) -> None:
    host.serve()
    settings = SignalSettings(price_per_kwh=0.36, price_per_gpu_hour=3.6, currency="EUR")
    rows, session = played(session_of(host, millijoules=30_000), settings=settings)
    request = one(rows, "chat tiny")
    seconds: Any = request.get("otelgpu.gen_ai.request.gpu_time")
    assert request.get("otelgpu.gen_ai.request.cost") == pytest.approx(30.0 * 1e-7 + seconds * 1e-3)
    assert request.get("otelgpu.cost.currency") == "EUR"
    cost = pytest.approx(30.0 * 1e-7 + seconds * 1e-3)
    assert points(session, "otelgpu.gen_ai.request.cost") == {"EUR": cost}
    assert request.get("otelgpu.gen_ai.request.carbon") is None


def test_a_carbon_intensity_makes_emissions(host: Host) -> None:
    host.serve()
    rows, session = played(
        session_of(host, millijoules=30_000), settings=SignalSettings(carbon_grams_per_kwh=360.0)
    )
    request = one(rows, "chat tiny")
    grams = pytest.approx(30.0 / 3.6e6 * 360.0)
    assert request.get("otelgpu.gen_ai.request.carbon") == grams
    assert points(session, "otelgpu.gen_ai.request.carbon") == {"tiny-1": grams}
    assert request.get("otelgpu.gen_ai.request.cost") is None


def test_what_is_no_generation_is_nobodys(host: Host) -> None:
    host.read(b"POST /train HTTP/1.1\r\nhost: llm\r\ncontent-length: 0\r\n\r\n")
    host.launch(times=3)
    host.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    rows, session = played(session_of(host, millijoules=30_000))
    assert one(rows, "POST /train").get(ENERGY) is None
    assert points(session, "otelgpu.gpu.energy") == {"unattributed": pytest.approx(30.0)}


def test_a_session_that_ends_tells_all_that_it_knows(host: Host) -> None:
    host.serve()
    *known, _, _ = session_of(host, millijoules=30_000)
    rows, session = played(known)
    assert one(rows, "chat tiny").get(ENERGY) == pytest.approx(30.0)
    assert points(session, "otelgpu.gpu.energy") == {"requests": pytest.approx(30.0)}


def test_an_idle_gpu_is_a_series_of_its_own(host: Host) -> None:
    session = pipeline()
    played([read(1, 0), Tick(time_ns=2), read(10**10, 700_000), Tick(time_ns=10**10 + 1)], session)
    assert points(session, "otelgpu.gpu.energy") == {"idle": pytest.approx(700.0)}
    assert not session.awaits_readings
