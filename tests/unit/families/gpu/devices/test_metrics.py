"""Device facts as metrics: names of the conventions, exact counts, nothing stale, nothing made up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.semconv._incubating.attributes import hw_attributes, network_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics

from otelgpu.engine.metric import Instrument
from otelgpu.engine.metrics import Metrics
from otelgpu.families.gpu.devices import metrics as devices
from otelgpu.families.gpu.devices.metrics import DeviceMetrics
from otelgpu.model.devices import (
    NO_INDEX,
    DeviceGone,
    DeviceReadings,
    DeviceSeen,
    ProcessDevices,
    ProcessReading,
    Quantity,
)
from otelgpu.model.resource import Resource, resource
from tests.unit.model.builders import LLM

OWN = resource({"service.name": "otelgpu"})
UUID = "GPU-5fd4f087-86f3-4b5c-ab5c-cf9e1a2b3c40"
IDENTITY = {"hw.id": UUID, "hw.name": "gpu0", "hw.type": "gpu", "hw.model": "H200", "hw.vendor": "NVIDIA"}
SENSOR = {key: value for key, value in IDENTITY.items() if key != "hw.type"}


def seen(**fields: Any) -> DeviceSeen:
    return DeviceSeen(**{"time_ns": 1, "uuid": UUID, "index": 0, "minor": 0, "model": "H200"} | fields)


def readings(values: dict[Quantity, int], *processes: ProcessReading, uuid: str = UUID) -> DeviceReadings:
    return DeviceReadings(time_ns=1, uuid=uuid, values=values, processes=processes)


class Reported:
    """What stands in the metrics after some inputs."""

    def __init__(self, *inputs: Any, processes: dict[int, Resource] | None = None) -> None:
        self.metrics = Metrics(0)
        self.devices = DeviceMetrics(self.metrics, OWN, (processes or {}).get)
        self.take(*inputs)

    def take(self, *inputs: Any) -> Reported:
        for item in inputs:
            self.devices.take(item)
        return self

    def points(self, name: str, owner: Resource = OWN) -> list[tuple[dict[str, Any], float]]:
        """(attributes, value) of a metric's data points."""
        data, _ = self.metrics.read(10)
        found = []
        for part in data.resource_metrics:
            name_of = {key.key: key.value.string_value for key in part.resource.attributes}["service.name"]
            for metric in (m for scope in part.scope_metrics for m in scope.metrics):
                if metric.name == name and name_of == owner.get("service.name"):
                    kind = metric.WhichOneof("data")
                    for point in getattr(metric, kind).data_points if kind else ():
                        labels = {a.key: a.value.string_value for a in point.attributes}
                        found.append((labels, getattr(point, point.WhichOneof("value"))))
        return found


def differing(points: list[tuple[dict[str, Any], float]], key: str) -> dict[str, float]:
    """Value by one attribute; the others are those of the device."""
    for labels, _ in points:
        assert {k: v for k, v in labels.items() if k in IDENTITY}.items() <= IDENTITY.items()
    return {labels[key]: value for labels, value in points}


class Meter:
    """Takes what a convention says of an instrument."""

    def _take(self, name: str, description: str, unit: str, callbacks: Any = None) -> tuple[str, str, str]:
        return name, unit, description

    create_counter = create_up_down_counter = create_observable_gauge = _take


INSTRUMENTS = {
    Instrument.COUNTER: "Counter",
    Instrument.UP_DOWN_COUNTER: "UpDownCounter",
    Instrument.GAUGE: "ObservableGauge",
}


@pytest.mark.parametrize("metric", devices.METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_as_the_conventions_have_it_or_ours(metric: Any) -> None:
    if metric.name.startswith("otelgpu."):
        return
    create = getattr(hw_metrics, f"create_{metric.name.replace('.', '_')}")
    gauge = (None,) if metric.instrument is Instrument.GAUGE else ()
    name, unit, description = create(Meter(), *gauge)
    assert (metric.name, metric.unit, metric.description) == (name, unit, description)
    instrument = create.__annotations__["return"]
    assert getattr(instrument, "__name__", instrument) == INSTRUMENTS[metric.instrument]


def test_attribute_names_and_values_are_those_of_the_conventions() -> None:
    known = {
        value
        for module in (hw_attributes, network_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    rows = [*devices.ROWS.values()]
    ours = {key for row in rows for key in row.labels} | IDENTITY.keys() | {devices.STATE}
    assert {key for key in ours if not key.startswith("otelgpu.")} - known == {"error.type"}
    tasks = {row.labels[devices.TASK] for row in rows if devices.TASK in row.labels}
    assert tasks == {task.value for task in hw_attributes.HwGpuTaskValues}
    limits = {row.labels[devices.LIMIT_TYPE] for row in rows if devices.LIMIT_TYPE in row.labels}
    assert limits <= {limit.value for limit in hw_attributes.HwLimitTypeValues}
    assert set(devices._STATES) <= {state.value for state in hw_attributes.HwStateValues}
    directions = {row.labels[devices.DIRECTION] for row in rows if devices.DIRECTION in row.labels}
    assert directions == {"receive", "transmit"}


def test_every_quantity_has_a_place() -> None:
    assert devices.ROWS.keys() | {Quantity.THROTTLE_REASONS} == set(Quantity)


def test_levels_have_the_units_of_their_metrics() -> None:
    reported = Reported(
        seen(),
        readings(
            {
                Quantity.UTILIZATION_PERCENT: 87,
                Quantity.ENCODER_UTILIZATION_PERCENT: 4,
                Quantity.MEMORY_TOTAL_BYTES: 2**37,
                Quantity.MEMORY_USED_BYTES: 2**35,
                Quantity.POWER_MILLIWATTS: 345_678,
                Quantity.TEMPERATURE_CELSIUS: 61,
                Quantity.MEMORY_TEMPERATURE_CELSIUS: 70,
                Quantity.SLOWDOWN_TEMPERATURE_CELSIUS: 87,
                Quantity.SM_CLOCK_MHZ: 1_980,
                Quantity.PCIE_RECEIVED_KB_PER_S: 7,
            }
        ),
    )
    assert differing(reported.points("hw.gpu.utilization"), "hw.gpu.task") == {
        "general": 0.87,
        "encoder": 0.04,
    }
    assert reported.points("hw.gpu.memory.limit") == [(IDENTITY, 2**37)]
    assert reported.points("hw.gpu.memory.usage") == [(IDENTITY, 2**35)]
    assert reported.points("hw.gpu.memory.utilization") == [(IDENTITY, 0.25)]
    assert reported.points("hw.power") == [(IDENTITY, 345.678)]
    assert reported.points("hw.temperature") == [
        (SENSOR | {"hw.sensor_location": "gpu"}, 61),
        (SENSOR | {"hw.sensor_location": "memory"}, 70),
    ]
    assert reported.points("hw.temperature.limit") == [
        (SENSOR | {"hw.sensor_location": "gpu", "hw.limit_type": "high.degraded"}, 87)
    ]
    assert differing(reported.points("otelgpu.gpu.clock.speed"), "otelgpu.gpu.clock") == {"sm": 1.98e9}
    assert differing(reported.points("otelgpu.gpu.pcie.throughput"), "network.io.direction") == {
        "receive": 7000
    }


def test_what_was_not_read_is_absent() -> None:
    reported = Reported(seen(), readings({Quantity.TEMPERATURE_CELSIUS: 61}))
    data, _ = reported.metrics.read(10)
    names = {m.name for part in data.resource_metrics for scope in part.scope_metrics for m in scope.metrics}
    assert names == {"hw.temperature", "hw.status"}


def test_the_identity_holds_what_is_known() -> None:
    full = seen(driver_version="570.86", firmware_version="96.00", serial_number="1653")
    (point,) = Reported(full, readings({Quantity.POWER_MILLIWATTS: 1})).points("hw.power")
    assert point[0] == IDENTITY | {
        "hw.driver_version": "570.86",
        "hw.firmware_version": "96.00",
        "hw.serial_number": "1653",
    }
    mig = seen(uuid="MIG-1", index=NO_INDEX, parent=UUID, model="")
    (point,) = Reported(mig, readings({Quantity.MEMORY_USED_BYTES: 1}, uuid="MIG-1")).points(
        "hw.gpu.memory.usage"
    )
    assert point[0] == {"hw.id": "MIG-1", "hw.type": "gpu", "hw.vendor": "NVIDIA", "hw.parent": UUID}


def test_counts_begin_with_the_first_reading_at_zero() -> None:
    reported = Reported(seen())
    for value in (40, 40, 43):
        reported.take(readings({Quantity.ECC_CORRECTED: value, Quantity.NVLINK_RECEIVED_KIB: value}))
        assert reported.points("hw.errors") == [(IDENTITY | {"error.type": "corrected"}, value - 40)]
    assert reported.points("hw.gpu.io") == [
        (IDENTITY | {"otelgpu.gpu.link": "nvlink", "network.io.direction": "receive"}, 3 * 1024)
    ]


def test_a_count_that_fell_began_again_at_zero() -> None:
    reported = Reported(seen(), *(readings({Quantity.ECC_UNCORRECTED: value}) for value in (10, 12, 3, 5)))
    assert reported.points("hw.errors") == [(IDENTITY | {"error.type": "uncorrected"}, 2 + 3 + 2)]


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=30), st.integers(0, 10**12))
def test_energy_is_exact_however_small_its_steps(steps: list[int], start: int) -> None:
    reported, total = Reported(seen(), readings({Quantity.ENERGY_MILLIJOULES: start})), start
    for step in steps:
        total += step
        reported.take(readings({Quantity.ENERGY_MILLIJOULES: total}))
    assert reported.points("hw.energy") == [(IDENTITY, total // 1000 - start // 1000)]


def test_time_of_throttling_is_in_seconds() -> None:
    values = (5_000_000_000, 5_100_000_000, 6_700_000_001)
    reported = Reported(seen(), *(readings({Quantity.THROTTLED_POWER_NS: value}) for value in values))
    (point,) = reported.points("otelgpu.gpu.throttle.time")
    assert point == (IDENTITY | {"otelgpu.gpu.throttle.reason": "power"}, 1.700000001)


def test_throttling_is_reported_by_reason_and_degrades_only_when_it_is_no_choice() -> None:
    reported = Reported(seen(), readings({Quantity.THROTTLE_REASONS: 0x4 | 0x1}))
    active = differing(reported.points("otelgpu.gpu.throttle.active"), "otelgpu.gpu.throttle.reason")
    assert {name for name, value in active.items() if value} == {"sw_power_cap"}
    assert len(active) == len(devices.THROTTLE_BITS)
    assert differing(reported.points("hw.status"), "hw.state") == {"ok": 1, "degraded": 0, "failed": 0}
    reported.take(readings({Quantity.THROTTLE_REASONS: 0x40}))
    assert differing(reported.points("hw.status"), "hw.state") == {"ok": 0, "degraded": 1, "failed": 0}


def test_the_throttle_bits_are_those_of_the_binding() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = {
        "sw_power_cap": "SwPowerCap",
        "hw_slowdown": "HwSlowdown",
        "sync_boost": "SyncBoost",
        "sw_thermal_slowdown": "SwThermalSlowdown",
        "hw_thermal_slowdown": "HwThermalSlowdown",
        "hw_power_brake_slowdown": "HwPowerBrakeSlowdown",
        "board_limit": "BoardLimit",
        "reliability": "Reliability",
    }
    assert names.keys() == set(devices.THROTTLE_BITS.values())
    for bit, ours in devices.THROTTLE_BITS.items():
        # Older bindings do not name the last two.
        assert getattr(pynvml, f"nvmlClocksThrottleReason{names[ours]}", bit) == bit
    assert pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown in devices.THROTTLE_BITS


def test_values_that_no_otlp_integer_holds_are_counted_not_reported() -> None:
    huge, process = 2**64 - 1, on_gpu(70, memory_bytes=2**64 - 1)
    reported = Reported(seen(), readings({Quantity.NVLINK_RECEIVED_KIB: 0}), processes={70: LLM})
    reported.take(readings(dict.fromkeys(Quantity, huge), process))
    assert reported.points("hw.gpu.memory.usage") == []
    assert reported.points("otelgpu.gpu.process.memory.usage", LLM) == []
    assert [value for _, value in reported.points("hw.gpu.io") if value] == []
    before = reported.devices.counters["implausible"]
    reported.take(
        readings({Quantity.NVLINK_RECEIVED_KIB: 0}), readings({Quantity.NVLINK_RECEIVED_KIB: 2**62})
    )
    assert reported.devices.counters["implausible"] == before + 1


# -- what is not reported any more -------------------------------------------------------------------------------


def test_a_quantity_that_is_not_read_this_time_is_not_reported_as_it_was() -> None:
    reported = Reported(
        seen(), readings({Quantity.POWER_MILLIWATTS: 5_000, Quantity.TEMPERATURE_CELSIUS: 50})
    )
    reported.take(readings({Quantity.TEMPERATURE_CELSIUS: 51}))
    assert reported.points("hw.power") == []
    assert [value for _, value in reported.points("hw.temperature")] == [51]


def test_of_a_lost_gpu_only_its_failure_is_reported() -> None:
    reported = Reported(seen(), readings({Quantity.POWER_MILLIWATTS: 5_000, Quantity.ECC_CORRECTED: 1}))
    reported.take(DeviceGone(time_ns=2, uuid=UUID, failed=True))
    assert reported.points("hw.power") == []
    assert differing(reported.points("hw.status"), "hw.state") == {"ok": 0, "degraded": 0, "failed": 1}
    reported.take(readings({Quantity.POWER_MILLIWATTS: 6_000}))
    assert reported.points("hw.power") == [(IDENTITY, 6)]
    assert differing(reported.points("hw.status"), "hw.state") == {"ok": 1, "degraded": 0, "failed": 0}


def test_of_a_gpu_that_nobody_can_ask_nothing_is_reported() -> None:
    reported = Reported(seen(), readings({Quantity.POWER_MILLIWATTS: 5_000}))
    reported.take(DeviceGone(time_ns=2, uuid=UUID))
    assert (reported.points("hw.power"), reported.points("hw.status")) == ([], [])


def test_a_new_driver_leaves_no_series_of_the_old_one() -> None:
    reported = Reported(seen(driver_version="1"), readings({Quantity.POWER_MILLIWATTS: 5_000}))
    reported.take(seen(driver_version="2"), readings({Quantity.POWER_MILLIWATTS: 6_000}))
    assert reported.points("hw.power") == [(IDENTITY | {"hw.driver_version": "2"}, 6)]


def test_readings_of_a_device_that_nobody_described_are_counted() -> None:
    reported = Reported(readings({Quantity.POWER_MILLIWATTS: 5_000}))
    assert (reported.points("hw.power"), reported.devices.counters) == ([], {"device_not_seen": 1})


# -- processes ---------------------------------------------------------------------------------------------


def on_gpu(tgid: int, **fields: Any) -> ProcessReading:
    return ProcessReading(**{"tgid": tgid, "device": UUID} | fields)


def test_a_process_reads_under_its_own_resource_and_strangers_not_at_all() -> None:
    first = readings(
        {},
        on_gpu(70, memory_bytes=2**30, utilization_percent=55, encoder_percent=0, decoder_percent=0),
        on_gpu(71, memory_bytes=2**31),
    )
    reported = Reported(seen(), first, processes={70: LLM})
    assert reported.points("otelgpu.gpu.process.memory.usage", LLM) == [(IDENTITY, 2**30)]
    assert differing(reported.points("otelgpu.gpu.process.utilization", LLM), "hw.gpu.task") == {
        "general": 0.55,
        "encoder": 0,
        "decoder": 0,
    }
    assert reported.points("otelgpu.gpu.process.memory.usage") == []
    reported.take(readings({}, on_gpu(71, memory_bytes=1)))
    assert reported.points("otelgpu.gpu.process.memory.usage", LLM) == []  # it left the GPU


def test_what_is_not_reported_of_a_process_is_absent() -> None:
    reported = Reported(seen(), readings({}, on_gpu(70)), processes={70: LLM})
    assert reported.points("otelgpu.gpu.process.memory.usage", LLM) == []
    assert reported.points("otelgpu.gpu.process.utilization", LLM) == []


# -- the devices of a process ---------------------------------------------------------------------------------


def called(reported: Reported) -> list[tuple[str, str, str]]:
    points = reported.points("otelgpu.gpu.process.device", LLM)
    assert {value for _, value in points} <= {1}
    return [(at["hw.id"], at["cuda.device.uuid"], at.get("cuda.device.model", "")) for at, _ in points]


def test_what_a_process_calls_by_an_ordinal_is_joined_to_the_device() -> None:
    mine = ProcessDevices(tgid=70, time_ns=1, uuids=("", UUID, "MIG-unknown"))
    reported = Reported(seen(), mine, readings({}), processes={70: LLM})
    assert called(reported) == [(UUID, UUID.removeprefix("GPU-"), "H200")]


def test_a_device_that_is_gone_is_called_by_nobody() -> None:
    mine = ProcessDevices(tgid=70, time_ns=1, uuids=(UUID,))
    reported = Reported(seen(), mine, readings({}), processes={70: LLM})
    assert called(reported.take(DeviceGone(time_ns=2, uuid=UUID))) == []


def test_a_process_that_ended_calls_nothing() -> None:
    mine = ProcessDevices(tgid=70, time_ns=1, uuids=(UUID,))
    reported = Reported(seen(), mine, readings({}), processes={70: LLM})
    reported.devices.forget_process(70)
    assert called(reported.take(readings({}))) == []


def test_where_a_gpu_is_and_what_its_nvlinks_lead_to_stand() -> None:
    where = {"pci_path": "pci0000:17/0000:17:01.0", "numa_node": 1, "nvlinks": {"switch": 18, "GPU-2": 2}}
    reported = Reported(seen(**where), readings({}))
    ((labels, value),) = reported.points("otelgpu.hw.location")
    assert (labels["otelgpu.hw.pci_path"], labels["hw.id"], value) == ("pci0000:17/0000:17:01.0", UUID, 1)
    assert differing(reported.points("otelgpu.gpu.nvlink.links"), "otelgpu.gpu.peer") == {
        "switch": 18,
        "GPU-2": 2,
    }


def test_of_a_gpu_that_says_neither_nothing_stands() -> None:
    reported = Reported(seen(), readings({}))
    assert reported.points("otelgpu.hw.location") == reported.points("otelgpu.gpu.nvlink.links") == []
