"""The real binding against the fake library: what is read, what is absent, and what fails how."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otelgpu.families.gpu.devices.poll.nvml import REASONS, LostError, Nvml, UnavailableError
from otelgpu.families.gpu.devices.poll.questions import CALLS, FIELDS, GPM
from otelgpu.model.devices import NO_INDEX, DeviceReadings, ProcessReading, Quantity
from tests.unit.families.gpu.devices.nvml_script import EVERYTHING, SIZE, UUID, Script

FIRST, SECOND = UUID.format(0), UUID.format(1)
COUNTERS = {
    Quantity.ECC_CORRECTED: 11,
    Quantity.ECC_UNCORRECTED: 2,
    Quantity.NVLINK_CRC_FLIT_ERRORS: 3,
    Quantity.NVLINK_CRC_DATA_ERRORS: 4,
    Quantity.NVLINK_REPLAYS: 5,
    Quantity.NVLINK_RECOVERIES: 6,
    Quantity.PCIE_REPLAYS: 7,
    Quantity.THROTTLED_POWER_NS: 1_000,
    Quantity.THROTTLED_THERMAL_NS: 2_000,
    Quantity.THROTTLED_SYNC_BOOST_NS: 3_000,
    Quantity.THROTTLED_BOARD_LIMIT_NS: 4_000,
    Quantity.THROTTLED_RELIABILITY_NS: 5_000,
    Quantity.ENERGY_MILLIJOULES: 123_456_789,
    Quantity.NVLINK_TRANSMITTED_KIB: 800,
    Quantity.NVLINK_RECEIVED_KIB: 900,
    Quantity.PCIE_TRANSMITTED_BYTES: 2**40,
    Quantity.PCIE_RECEIVED_BYTES: 2**41,
}
LEVELS = {
    Quantity.UTILIZATION_PERCENT: 87,
    Quantity.MEMORY_CONTROLLER_PERCENT: 31,
    Quantity.ENCODER_UTILIZATION_PERCENT: 4,
    Quantity.DECODER_UTILIZATION_PERCENT: 5,
    Quantity.MEMORY_TOTAL_BYTES: SIZE,
    Quantity.MEMORY_USED_BYTES: 60_000_000_000,
    Quantity.POWER_MILLIWATTS: 345_678,
    Quantity.POWER_LIMIT_MILLIWATTS: 700_000,
    Quantity.TEMPERATURE_CELSIUS: 61,
    Quantity.MEMORY_TEMPERATURE_CELSIUS: 70,
    Quantity.SLOWDOWN_TEMPERATURE_CELSIUS: 87,
    Quantity.SHUTDOWN_TEMPERATURE_CELSIUS: 92,
    Quantity.GRAPHICS_CLOCK_MHZ: 1_980,
    Quantity.SM_CLOCK_MHZ: 1_981,
    Quantity.MEMORY_CLOCK_MHZ: 3_201,
    Quantity.VIDEO_CLOCK_MHZ: 1_545,
    Quantity.THROTTLE_REASONS: 0x24,
}


class Session:
    """An open NVML whose devices are listed."""

    def __init__(self, *, own_pid_namespace: bool = False) -> None:
        self.counters: Counter[str] = Counter()
        self.nvml = Nvml(self.counters, own_pid_namespace=own_pid_namespace)
        self.devices = self.nvml.list_devices(1)

    def read(self, uuid: str = FIRST) -> DeviceReadings:
        return self.nvml.read(uuid, 2)


@contextmanager
def opened(*, own_pid_namespace: bool = False) -> Iterator[Session]:
    session = Session(own_pid_namespace=own_pid_namespace)
    yield session
    session.nvml.close()
    assert session.counters.keys() <= REASONS.keys()


def test_every_quantity_is_read(script: Script) -> None:
    script.gpu(0, **EVERYTHING)
    with opened() as session:
        assert session.read() == DeviceReadings(time_ns=2, uuid=FIRST, values=COUNTERS | LEVELS)
        assert +session.counters == {}


def test_every_quantity_has_a_question() -> None:
    asked = {quantity for call in CALLS for quantity in call.quantities} | FIELDS.keys() | GPM.keys()
    assert asked == set(Quantity)


def test_a_gpu_is_described(script: Script) -> None:
    script.gpu(0, serial="1653124", vbios="96.00.A5").gpu(1, name="NVIDIA L4")
    with opened() as session:
        first, second = session.devices
    assert (first.uuid, first.index, first.minor, first.model) == (FIRST, 0, 0, "NVIDIA H200")
    assert (first.driver_version, first.firmware_version, first.serial_number) == (
        "570.86.10",
        "96.00.A5",
        "1653124",
    )
    assert first.pci_bus_id == "00000000:3B:00.0"
    assert (second.uuid, second.index, second.model, second.serial_number) == (SECOND, 1, "NVIDIA L4", "")


@pytest.mark.parametrize("key", sorted(EVERYTHING))
def test_what_a_gpu_does_not_have_is_absent_and_nothing_else(script: Script, key: str) -> None:
    script.gpu(0, **{name: value for name, value in EVERYTHING.items() if name != key})
    with opened() as session:
        values = session.read().values
        assert 0 not in values.values()
        absent = (COUNTERS | LEVELS).keys() - values.keys()
        # Two functions answer two quantities each.
        assert len(absent) == {"memory_reserved": 0, "memory_total": 2, "memory_used": 2}.get(
            key, 2 if key in ("utilization", "memory_utilization") else 1
        )
        assert +session.counters == {}


def test_a_gpu_that_has_nothing_reads_nothing(script: Script) -> None:
    script.gpu(0)
    with opened() as session:
        assert session.read().values == {}
        assert +session.counters == {}


def test_what_is_not_supported_is_not_asked_again_until_devices_are_listed_again(script: Script) -> None:
    script.gpu(0)
    with opened() as session:
        session.read()
        script.gpu(0, temperature=50, field__94=1)
        assert session.read().values == {}
        session.nvml.list_devices(3)
        assert session.read().values == {Quantity.TEMPERATURE_CELSIUS: 50, Quantity.PCIE_REPLAYS: 1}


def test_a_failed_read_is_counted_and_tried_again(script: Script) -> None:
    script.gpu(0, temperature=50).line("fail nvmlDeviceGetTemperature 999")
    with opened() as session:
        assert session.read().values == {}
        assert +session.counters == {"read_failed": 1}
        script.restart().gpu(0, temperature=51)
        assert session.read().values == {Quantity.TEMPERATURE_CELSIUS: 51}


def test_power_is_that_of_the_older_function_where_there_is_no_field(script: Script) -> None:
    script.gpu(0, power_average=120_000)
    with opened() as session:
        assert session.read().values == {Quantity.POWER_MILLIWATTS: 120_000}
        assert session.read().values == {Quantity.POWER_MILLIWATTS: 120_000}


def test_the_older_function_does_not_fake_for_a_field_that_failed(script: Script) -> None:
    script.gpu(0, power_average=120_000, field__186=99_000).line("fail nvmlDeviceGetFieldValues 999")
    with opened() as session:
        assert Quantity.POWER_MILLIWATTS not in session.read().values


def test_narrow_pcie_counters_give_way_to_the_rate(script: Script) -> None:
    script.gpu(0, field__197="5u", field__198="6u", pcie_tx_rate=70, pcie_rx_rate=80)
    with opened() as session:
        assert session.read().values == {
            Quantity.PCIE_TRANSMITTED_KB_PER_S: 70,
            Quantity.PCIE_RECEIVED_KB_PER_S: 80,
        }


def test_reserved_memory_counts_as_used_only_where_they_are_not_reported_apart(script: Script) -> None:
    script.gpu(0, memory_total=100, memory_used=30, memory_reserved=4)
    with opened() as session:
        assert session.read().values[Quantity.MEMORY_USED_BYTES] == 30
        script.line("fail nvmlDeviceGetMemoryInfo_v2 13")
        assert session.read().values[Quantity.MEMORY_USED_BYTES] == 34


def test_an_utilisation_above_100_percent_is_left_out(script: Script) -> None:
    script.gpu(0, utilization=101, memory_utilization=100).line("process 0 9 1 200 0 0 5")
    with opened() as session:
        readings = session.read()
        assert readings.values == {Quantity.MEMORY_CONTROLLER_PERCENT: 100}
        assert readings.processes[0].utilization_percent == 0
        assert +session.counters == {"implausible": 2}


@pytest.mark.parametrize("value", [2**63 - 1, 2**64 - 1])
def test_what_stands_for_not_available_is_left_out(script: Script, value: int) -> None:
    script.gpu(0, field__83=value, temperature=50)
    with opened() as session:
        assert session.read().values == {Quantity.TEMPERATURE_CELSIUS: 50}
        assert +session.counters == {"implausible": 1}


# -- processes ---------------------------------------------------------------------------------------------


def process(tgid: int, memory: int | None, sm: int | None, device: str = FIRST) -> ProcessReading:
    other = None if sm is None else 0
    return ProcessReading(
        tgid=tgid,
        device=device,
        memory_bytes=memory,
        utilization_percent=sm,
        encoder_percent=other,
        decoder_percent=other,
    )


def test_processes_have_memory_and_utilisation_since_the_last_reading(script: Script) -> None:
    script.gpu(0).line("process 0 70 1000 55 0 0 10", "process 0 71 2000 0 0 0 10")
    with opened() as session:
        assert session.read().processes == (process(70, 1000, 55), process(71, 2000, 0))
        assert session.read().processes == (process(70, 1000, 0), process(71, 2000, 0))  # no newer sample
        session.nvml.list_devices(3)
        assert session.read().processes[0].utilization_percent == 0  # what was seen stays seen
        script.line("process 0 72 3000 9 0 0 11")
        assert session.read().processes[2] == process(72, 3000, 9)


def test_memory_that_is_not_reported_of_a_process_is_absent(script: Script) -> None:
    script.gpu(0).line(f"process 0 70 {2**64 - 1} 5 0 0 10")
    with opened() as session:
        assert session.read().processes == (process(70, None, 5),)


def test_of_processes_nothing_is_reported_in_a_pid_namespace_of_ones_own(script: Script) -> None:
    script.gpu(0).line("process 0 70 1000 55 0 0 10")
    with opened(own_pid_namespace=True) as session:
        assert session.read().processes == ()


def test_a_missing_permission_for_processes_is_counted_once(script: Script) -> None:
    script.gpu(0, temperature=50).line("fail nvmlDeviceGetComputeRunningProcesses_v3 4")
    with opened() as session:
        for _ in range(3):
            assert session.read().values == {Quantity.TEMPERATURE_CELSIUS: 50}
        assert +session.counters == {"no_permission": 1}


# -- MIG ---------------------------------------------------------------------------------------------------


def test_mig_devices_follow_their_gpu_and_have_memory_and_processes_of_their_own(script: Script) -> None:
    script.gpu(0, mig=1, mig_slots=4, temperature=40)
    script.mig(0, 0, name="NVIDIA H200 MIG 1g.18gb", memory_total=18, memory_used=7).mig(0, 2)
    script.line("process 0 70 1000 0 0 0 10 9 0", "process 0 71 2000 0 0 0 10")
    with opened() as session:
        gpu, first, third = session.devices
        assert (gpu.mig, gpu.parent) == (True, "")
        assert (first.parent, first.index, first.minor, first.mig) == (FIRST, NO_INDEX, NO_INDEX, False)
        assert first.model == "NVIDIA H200 MIG 1g.18gb"
        assert session.read(first.uuid).values == {
            Quantity.MEMORY_TOTAL_BYTES: 18,
            Quantity.MEMORY_USED_BYTES: 7,
        }
        readings = session.read()
        assert readings.values == {Quantity.TEMPERATURE_CELSIUS: 40}
        assert readings.processes == (process(70, 1000, None, third.uuid), process(71, 2000, None))


# -- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [15, 16])
def test_a_lost_gpu_is_reported_from_the_others(script: Script, code: int) -> None:
    script.gpu(0, temperature=50).gpu(1, temperature=51).line(f"fail * {code} 1")
    with opened() as session:
        assert [device.uuid for device in session.devices] == [FIRST]
        assert session.nvml.lost == 1
        script.restart().gpu(0, temperature=50).gpu(1, temperature=51)
        session.nvml.list_devices(3)
        script.line(f"fail * {code} 1")
        assert session.read(FIRST).values == {Quantity.TEMPERATURE_CELSIUS: 50}
        with pytest.raises(LostError, match=SECOND):
            session.read(SECOND)


def test_a_driver_that_was_unloaded_ends_the_session(script: Script) -> None:
    script.gpu(0, temperature=50)
    with opened() as session:
        script.remove()
        with pytest.raises(UnavailableError) as raised:
            session.read()
        assert raised.value.reason == "driver_not_loaded"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (4, "no_permission"),
        (9, "driver_not_loaded"),
        (18, "driver_changed"),
        (999, "unavailable"),
        (77, "unavailable"),
    ],
)
def test_why_nvml_does_not_open_is_reported(script: Script, code: int, reason: str) -> None:
    script.line(f"fail nvmlInitWithFlags {code}")
    with pytest.raises(UnavailableError) as raised:
        Session()
    assert raised.value.reason == reason
    assert raised.value.message


def test_a_gpu_without_a_readable_uuid_is_left_out(script: Script) -> None:
    script.gpu(0).gpu(1).line("fail nvmlDeviceGetUUID 999 0")
    with opened() as session:
        assert [device.uuid for device in session.devices] == [SECOND]
        assert +session.counters == {"device_unreadable": 1}


PROBE = "from otelgpu.families.gpu.devices.poll.poller import why_unavailable; print(why_unavailable())"


def why_in(environ: dict[str, str], before: str = "") -> str:
    """What a process that has loaded nothing yet says."""
    command = [sys.executable, "-c", before + PROBE]
    return subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, check=True
    ).stdout


def test_the_library_is_found_as_the_dynamic_linker_finds_it(library: Path, script: Script) -> None:
    found = {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML": str(script.path)}
    assert why_in(found) == "the NVIDIA driver knows no GPU\n"
    script.gpu(0)
    assert why_in(found) == "None\n"
    script.remove()
    assert why_in(found) == "the NVIDIA driver is not loaded\nmodprobe nvidia\n"


def test_a_missing_library_is_said(library: Path, tmp_path: Path) -> None:
    without = "import ctypes; real = ctypes.CDLL\ndef none(name): raise OSError(name)\nctypes.CDLL = none\n"
    assert "no libnvidia-ml.so.1" in why_in({}, without)


def test_a_missing_binding_is_said() -> None:
    assert "pip install" in why_in({}, "import sys; sys.modules['pynvml'] = None\n")


def linked(*links: tuple[int, str]) -> dict[str, int | str]:
    """Facts of NVLinks 0, 1, …: what kind of device is at the other end of each, and where; kind −1: not active."""
    found: dict[str, int | str] = {}
    for number, (kind, address) in enumerate(links):
        found |= {f"nvlink__{number}": int(kind >= 0), f"nvlink__{number}__type": max(kind, 0)}
        found |= {f"nvlink__{number}__pci": address} if address else {}
    return found


def test_nvlinks_are_counted_by_what_is_at_their_other_end(script: Script) -> None:
    script.gpu(
        0,
        **linked(
            (2, ""), (0, "00000000:3C:00.0"), (-1, ""), (0, "00000000:3C:00.0"), (0, "00000000:99:00.0")
        ),
    )
    script.gpu(1)
    with opened() as session:
        assert session.devices[0].nvlinks == {"switch": 1, SECOND: 2, "0000:99:00.0": 1}
        assert session.devices[1].nvlinks == {}
        assert +session.counters == {}


def test_an_nvlink_that_cannot_be_asked_ends_the_list(script: Script) -> None:
    script.gpu(0, **linked((2, ""), (0, "")))  # which does not say where it leads to
    with opened() as session:
        assert session.devices[0].nvlinks == {"switch": 1}


def test_a_gpu_is_where_sysfs_has_it(script: Script, tmp_path: Path) -> None:
    where = tmp_path / "pci0000:3a" / "0000:3a:00.0" / "0000:3b:00.0"
    where.mkdir(parents=True)
    (where / "numa_node").write_text("1\n")
    (tmp_path / "0000:3b:00.0").symlink_to(where)
    script.gpu(0).gpu(1)
    nvml = Nvml(Counter(), own_pid_namespace=True, pci=tmp_path)
    first, second = nvml.list_devices(1)
    nvml.close()
    assert (first.pci_path, first.numa_node) == ("pci0000:3a/0000:3a:00.0/0000:3b:00.0", 1)
    assert (second.pci_path, second.numa_node) == ("", -1)


def test_who_asks_beside_another_thread_is_told_of_all_devices(script: Script) -> None:
    """As an agent's poller and a command's own do; each time what is answered has just changed."""
    script.gpu(0, **EVERYTHING).gpu(1, **EVERYTHING)
    rounds, found = 200, list[list[str]]()
    together = threading.Barrier(2, action=lambda: script.line("# changed"))

    def ask() -> None:
        with opened() as session:
            for _ in range(rounds):
                together.wait(60)
                found.append([device.uuid for device in session.nvml.list_devices(1)])

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert found == [[FIRST, SECOND]] * 2 * rounds


def test_who_asks_while_another_hangs_is_answered(script: Script) -> None:
    script.gpu(0, **EVERYTHING).line("delay nvmlDeviceGetTemperature 600000")
    with opened() as session:
        hung = threading.Thread(target=session.read, daemon=True)
        hung.start()
        found = list[str]()
        time.sleep(0.05)
        other = threading.Thread(
            target=lambda: found.extend(device.uuid for device in session.nvml.list_devices(1)), daemon=True
        )
        other.start()
        other.join(30)
        assert found == [FIRST]
        assert hung.is_alive()
