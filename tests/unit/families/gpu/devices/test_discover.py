"""CUDA ordinals → GPUs: the rules of CUDA_VISIBLE_DEVICES, and what cannot be known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.gpu.devices.discover import (
    DeviceFollower,
    Visibility,
    confirmed,
    describe_devices,
    ordinals,
    read_visibility,
)
from otelgpu.model.devices import (
    NO_INDEX,
    DeviceGone,
    DeviceReadings,
    DeviceSeen,
    ProcessDevices,
    ProcessReading,
)

A, B, C = (f"GPU-{letter * 8}-86f3-4b5c-ab5c-cf9e1a2b3c4d" for letter in "abc")
MIG_A, MIG_B = "MIG-1111", "MIG-2222"


def gpu(uuid: str, minor: int, model: str = "H200", bus: int | None = None, mig: bool = False) -> DeviceSeen:
    bus_id = f"00000000:{minor if bus is None else bus:02X}:00.0"
    return DeviceSeen(time_ns=1, uuid=uuid, index=minor, minor=minor, model=model, pci_bus_id=bus_id, mig=mig)


def partition(uuid: str, parent: str) -> DeviceSeen:
    return DeviceSeen(time_ns=1, uuid=uuid, index=NO_INDEX, minor=NO_INDEX, model="1g", parent=parent)


ALIKE = [gpu(A, 0), gpu(B, 1), gpu(C, 2)]
MIXED = [gpu(A, 0), gpu(B, 1, "T400"), gpu(C, 2)]
DIVIDED = [gpu(A, 0, mig=True), partition(MIG_A, A), partition(MIG_B, A)]


def visible(
    selection: str | None = None, order: str | None = None, minors: tuple[int, ...] | None = (0, 1, 2)
) -> Visibility:
    return Visibility(minors=None if minors is None else frozenset(minors), selection=selection, order=order)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (None, (A, B, C)),
        ("", ()),
        ("-1", ()),
        ("2,0", (C, A)),
        (" 1 , 2", (B, C)),
        ("1,9,0", (B,)),  # ends at what is not valid
        ("1,-1,0", (B,)),
        ("0,0", ()),  # refused as a whole
        (f"{C},{A}", (C, A)),
        ("GPU-bbbb", (B,)),  # any unambiguous beginning
        ("GPU-", ()),
        ("GPU-dddd,0", ()),
        ("none", ()),
        ("0x1", ()),
        ("99999999999999999999", ()),
        ("²", ()),
    ],
)
def test_the_selection_is_read_as_cuda_reads_it(selection: str | None, expected: tuple[str, ...]) -> None:
    assert ordinals(ALIKE, visible(selection)) == expected


def test_an_ambiguous_beginning_of_a_uuid_is_not_valid() -> None:
    assert ordinals([gpu("GPU-aa1", 0), gpu("GPU-aa2", 1)], visible("GPU-aa")) == ()


def test_the_order_is_that_of_the_bus() -> None:
    swapped = [gpu(A, 0, bus=9), gpu(B, 1, bus=3)]
    assert ordinals(swapped, visible(order="PCI_BUS_ID")) == (B, A)
    assert ordinals(swapped, visible("0", "PCI_BUS_ID")) == (B,)


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST", "nonsense"])
def test_the_fastest_of_unlike_gpus_is_unknown_but_a_uuid_is_not(order: str | None) -> None:
    assert ordinals(MIXED, visible(order=order)) == ("", "", "")
    assert ordinals(MIXED, visible("1,0,7", order)) == ("", "")
    assert ordinals(MIXED, visible(f"{B},0", order)) == (B, "")
    assert ordinals(MIXED, visible(order=order, minors=(1,))) == (B,)
    assert ordinals(MIXED, visible("1,0", "PCI_BUS_ID")) == (B, A)


def test_a_container_counts_the_devices_that_it_sees() -> None:
    assert ordinals(ALIKE, visible(minors=(1, 2))) == (B, C)
    assert ordinals(ALIKE, visible("1", minors=(1, 2))) == (C,)
    assert ordinals(ALIKE, visible(A, minors=(1, 2))) == ()
    assert ordinals(ALIKE, visible("0", minors=None)) == ()


def test_mig_devices_are_known_by_uuid_only() -> None:
    assert ordinals(DIVIDED, visible(f"{MIG_B},{MIG_A}")) == (MIG_B, MIG_A)
    assert ordinals(DIVIDED, visible("MIG-GPU-aaaa/1/0")) == ("",)
    assert ordinals(DIVIDED, visible(A)) == ("",)
    assert ordinals(DIVIDED, visible("0")) == ("",)
    assert ordinals(DIVIDED, visible()) == ("",)


@given(st.text(max_size=60), st.none() | st.text(max_size=20))
def test_any_selection_gives_distinct_known_devices(selection: str, order: str | None) -> None:
    for devices in (ALIKE, MIXED, DIVIDED):
        found = [uuid for uuid in ordinals(devices, visible(selection, order)) if uuid]
        assert len(set(found)) == len(found)
        assert set(found) <= {device.uuid for device in devices}


def test_what_the_driver_contradicts_is_unknown() -> None:
    assert confirmed((A, B, ""), {B, C}) == ("", B, "")


def process(proc: Path, environ: bytes, files: tuple[str, ...]) -> Path:
    folder = proc / "70"
    (folder / "root" / "dev").mkdir(parents=True)
    (folder / "environ").write_bytes(environ)
    for name in files:
        (folder / "root" / "dev" / name).touch()
    return proc


def test_visibility_is_read_from_the_process(tmp_path: Path) -> None:
    environ = b"A=1\0CUDA_VISIBLE_DEVICES=1,\xff\0NONSENSE\0CUDA_DEVICE_ORDER=PCI_BUS_ID\0"
    files = ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "null", "nvidia99999")
    found = read_visibility(70, proc=process(tmp_path, environ, files))
    assert found == Visibility(minors=frozenset({0, 12}), selection="1,\ufffd", order="PCI_BUS_ID")


def test_a_process_is_described_as_far_as_it_is_known(tmp_path: Path) -> None:
    proc = process(tmp_path, b"CUDA_VISIBLE_DEVICES=2,0\0", ("nvidia0", "nvidia1", "nvidia2"))
    assert describe_devices(70, ALIKE, 5, proc=proc) == ProcessDevices(tgid=70, time_ns=5, uuids=(C, A))
    assert describe_devices(70, ALIKE, 5, used={A}, proc=proc) == ProcessDevices(
        tgid=70, time_ns=5, uuids=("", A)
    )
    assert describe_devices(70, ALIKE, 5, used={B}, proc=proc) is None
    assert describe_devices(71, ALIKE, 5, proc=proc) is None


def test_no_device_files_say_nothing(tmp_path: Path) -> None:
    assert read_visibility(70, proc=process(tmp_path, b"", ("dxg",))) == Visibility(
        minors=None, selection=None, order=None
    )


def test_an_unreadable_process_is_unknown(tmp_path: Path) -> None:
    assert read_visibility(71, proc=tmp_path) is None


class TestFollower:
    def follower(self, tmp_path: Path, environ: bytes = b"CUDA_VISIBLE_DEVICES=2,0\0") -> DeviceFollower:
        proc = process(tmp_path, environ, ("nvidia0", "nvidia1", "nvidia2"))
        found = DeviceFollower(proc=proc)
        found.take(ALIKE)
        return found

    def test_a_process_is_reported_once(self, tmp_path: Path) -> None:
        follower = self.follower(tmp_path)
        assert follower.follow({70}, 5) == [ProcessDevices(tgid=70, time_ns=5, uuids=(C, A))]
        assert follower.follow({70}, 6) == []

    def test_what_the_driver_says_later_corrects_it(self, tmp_path: Path) -> None:
        follower = self.follower(tmp_path)
        follower.follow({70}, 5)
        on = ProcessReading(tgid=70, device=A)
        follower.take([DeviceReadings(time_ns=6, uuid=A, values={}, processes=(on,))])
        assert follower.follow({70}, 7) == [ProcessDevices(tgid=70, time_ns=7, uuids=("", A))]

    def test_nothing_is_reported_without_devices(self, tmp_path: Path) -> None:
        follower = self.follower(tmp_path)
        follower.take([DeviceGone(time_ns=6, uuid=device.uuid) for device in ALIKE])
        assert follower.follow({70}, 7) == []

    def test_a_number_that_was_given_out_again_is_reported_again(self, tmp_path: Path) -> None:
        follower = self.follower(tmp_path)
        follower.follow({70}, 5)
        assert follower.follow(set(), 6) == []
        assert len(follower.follow({70}, 7)) == 1

    def test_a_process_of_which_nothing_is_known_is_not_read_again_and_again(self, tmp_path: Path) -> None:
        follower = self.follower(tmp_path)
        assert follower.follow({71}, 5) == []
        (tmp_path / "71").symlink_to(tmp_path / "70")
        assert follower.follow({71}, 6) == []
        follower.take(ALIKE)
        assert [reported.tgid for reported in follower.follow({71}, 7)] == [71]
