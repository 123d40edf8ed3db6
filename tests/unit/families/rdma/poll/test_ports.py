"""Ports as drivers show them, and what happens when files refuse, lie or vanish."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.rdma.poll import ports as rdma_ports
from otelgpu.families.rdma.poll.ports import GIDS_EVERY_NS, PortWatch
from otelgpu.model.fabric import FabricInput, PortGone, PortReadings, PortSeen
from tests.rig.examples import examples
from tests.unit.families.rdma.poll.infiniband import (
    EFA,
    INFINIBAND,
    MLX5,
    RXE_6_1,
    RXE_7,
    SHAPES,
    ZERO_GID,
    Shape,
    build,
)

NOW = 5_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "infiniband"


def counted(watch: PortWatch) -> dict[str, int]:
    return dict(+watch.counters)


def readings(found: list[FabricInput]) -> dict[str, int]:
    (only,) = [item for item in found if isinstance(item, PortReadings)]
    return dict(only.values)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_port_is_reported_once_and_read_each_time(shape: Shape, root: Path) -> None:
    build(root, shape)
    watch = PortWatch(root)
    first = watch.poll(NOW)
    assert [type(item) for item in first] == [PortSeen, PortReadings]
    hw = {k: int(v) for k, v in shape.hw_counters.items() if k != "lifespan"}
    assert readings(first) == {k: int(v) for k, v in shape.counters.items()} | hw
    assert [type(item) for item in watch.poll(NOW + 1)] == [PortReadings]
    assert counted(watch) == {}


def test_what_a_port_is(root: Path) -> None:
    build(root, MLX5)
    assert PortWatch(root).poll(NOW)[0] == PortSeen(
        time_ns=NOW,
        device="mlx5_0",
        port=1,
        state="ACTIVE",
        link_layer="Ethernet",
        rate_bits_per_s=100_000_000_000,
        driver="mlx5_core",
        firmware_version="22.31.1014",
        interface="enp129s0f0np0",
        pci_bus_id="0000:81:00.0",
        gids={0: "fe80::e42:a1ff:fe4b:6ac", 2: "::ffff:192.168.0.1"},
    )


def test_a_software_device_has_no_bus(root: Path) -> None:
    build(root, RXE_6_1)
    seen = PortWatch(root).poll(NOW)[0]
    assert isinstance(seen, PortSeen)
    assert (seen.pci_bus_id, seen.driver, seen.interface, seen.lid) == ("", "", "veth0", 0)


def test_infiniband_has_a_local_identifier(root: Path) -> None:
    build(root, INFINIBAND)
    seen = PortWatch(root).poll(NOW)[0]
    assert isinstance(seen, PortSeen)
    assert (seen.lid, seen.link_layer, seen.rate_bits_per_s) == (26, "InfiniBand", 400_000_000_000)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("2.5 Gb/sec (1X SDR)", 2_500_000_000), ("800 Gb/sec (4X XDR)", 800_000_000_000), ("fast", 0), ("", 0)],
)
def test_a_speed_is_in_bits(text: str, rate: int, root: Path) -> None:
    folder = build(root, MLX5)
    (folder / "rate").write_text(text + "\n")
    seen = PortWatch(root).poll(NOW)[0]
    assert isinstance(seen, PortSeen)
    assert seen.rate_bits_per_s == rate


def test_a_table_with_holes_is_read_and_a_long_empty_one_is_not(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(root, MLX5)
    for index in range(3, 600):
        (folder / "gids" / str(index)).write_text(ZERO_GID + "\n")
    (folder / "gids" / "30").write_text("fe80:0000:0000:0000:0000:0000:0000:0007\n")
    reads: list[Path] = []
    really = rdma_ports._read

    def noting(path: Path) -> str:
        reads.append(path)
        return really(path)

    monkeypatch.setattr(rdma_ports, "_read", noting)
    seen = PortWatch(root).poll(NOW)[0]
    assert isinstance(seen, PortSeen) and seen.gids is not None
    assert list(seen.gids) == [0, 2, 30]
    assert len([path for path in reads if path.parent.name == "gids"]) == 31 + rdma_ports.GIDS_UNSET


def test_where_both_folders_have_a_counter_the_drivers_is_reported(root: Path) -> None:
    folder = build(root, RXE_7)
    (folder / "hw_counters" / "link_downed").write_text("300\n")
    (folder / "counters" / "link_downed").write_text("255\n")
    assert readings(PortWatch(root).poll(NOW))["link_downed"] == 300


def test_a_change_is_reported(root: Path) -> None:
    folder = build(root, MLX5)
    watch = PortWatch(root)
    watch.poll(NOW)
    (folder / "state").write_text("1: DOWN\n")
    (folder / "rate").write_text("25 Gb/sec (1X EDR)\n")
    seen = watch.poll(NOW + 1)[0]
    assert isinstance(seen, PortSeen)
    assert (seen.state, seen.rate_bits_per_s, seen.time_ns) == ("DOWN", 25_000_000_000, NOW + 1)


def test_an_address_that_changes_is_reported_within_half_a_minute(root: Path) -> None:
    folder = build(root, MLX5)
    watch = PortWatch(root)
    watch.poll(NOW)
    (folder / "gids" / "2").write_text("0000:0000:0000:0000:0000:ffff:0a00:0007\n")
    assert [type(item) for item in watch.poll(NOW + 1)] == [PortReadings]
    seen = watch.poll(NOW + GIDS_EVERY_NS)[0]
    assert isinstance(seen, PortSeen) and seen.gids is not None
    assert seen.gids[2] == "::ffff:10.0.0.7"


def test_a_device_that_is_taken_out_is_gone(root: Path) -> None:
    build(root, MLX5)
    build(root, EFA)
    watch = PortWatch(root)
    watch.poll(NOW)
    shutil.rmtree(root / "mlx5_0")
    found = watch.poll(NOW + 1)
    assert [i for i in found if isinstance(i, PortGone)] == [
        PortGone(time_ns=NOW + 1, device="mlx5_0", port=1)
    ]
    assert watch.devices == {"rdmap0s6"}


def test_a_machine_without_rdma_is_quiet(root: Path) -> None:
    watch = PortWatch(root)
    assert watch.poll(NOW) == []
    assert counted(watch) == {}


def test_what_is_no_number_is_left_out_and_not_asked_for_again(root: Path) -> None:
    folder = build(root, MLX5)
    (folder / "counters" / "port_rcv_data").write_text("N/A (no PMA)\n")
    (folder / "hw_counters" / "np_cnp_sent").write_text("-1\n")
    (folder / "hw_counters" / "out_of_sequence").write_text(f"{1 << 64}\n")
    watch = PortWatch(root)
    values = readings(watch.poll(NOW))
    assert {"port_rcv_data", "np_cnp_sent", "out_of_sequence"}.isdisjoint(values)
    watch.poll(NOW + 1)
    assert counted(watch) == {"counter_not_a_number": 3}


def test_a_counter_that_vanishes_is_counted(root: Path) -> None:
    folder = build(root, MLX5)
    watch = PortWatch(root)
    watch.poll(NOW)
    (folder / "hw_counters" / "packet_seq_err").unlink()
    assert "packet_seq_err" not in readings(watch.poll(NOW + 1))
    watch.poll(NOW + 2)
    assert counted(watch) == {"counter_vanished": 1}


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES], ids=os.strerror)
def test_a_counter_that_cannot_be_read_is_counted_and_tried_again(
    number: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(root, MLX5)
    watch = PortWatch(root)
    really = rdma_ports._read

    def refusing(path: Path) -> str:
        if path.name == "np_cnp_sent":
            raise OSError(number, os.strerror(number))
        return really(path)

    monkeypatch.setattr(rdma_ports, "_read", refusing)
    assert "np_cnp_sent" not in readings(watch.poll(NOW))
    monkeypatch.undo()
    assert readings(watch.poll(NOW + 1))["np_cnp_sent"] == 7
    assert counted(watch) == {"counter_unreadable": 1}


def test_a_device_that_goes_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(root, MLX5)
    watch = PortWatch(root)
    watch.poll(NOW)
    really = rdma_ports._read
    reads = []

    def unplugging(path: Path) -> str:
        reads.append(path)
        if len(reads) == 8:
            shutil.rmtree(root / "mlx5_0")
        return really(path)

    monkeypatch.setattr(rdma_ports, "_read", unplugging)
    watch.poll(NOW + 1)
    assert len(reads) >= 8
    assert [type(item) for item in watch.poll(NOW + 2)] == [PortGone]
    assert counted(watch).keys() == {"counter_vanished"}


def test_a_port_without_a_state_is_not_reported(root: Path) -> None:
    folder = build(root, MLX5)
    (folder / "state").unlink()
    watch = PortWatch(root)
    assert watch.poll(NOW) == []
    assert counted(watch) == {"port_vanished": 1}


def test_ports_and_counters_beyond_the_bounds_are_counted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rdma_ports, "PORTS", 1)
    monkeypatch.setattr(rdma_ports, "COUNTERS", 5)
    build(root, MLX5)
    build(root, EFA)
    watch = PortWatch(root)
    for time_ns in (NOW, NOW + 1):
        assert len(readings(watch.poll(time_ns))) == 5
    there = len(MLX5.counters) + len(MLX5.hw_counters) - 1
    assert counted(watch) == {"ports_ignored": 1, "counters_ignored": there - 5}


_FILES: list[Any] = [
    "state",
    "rate",
    "link_layer",
    "gids/0",
    "counters/port_rcv_data",
    "hw_counters/out_of_sequence",
]


@given(data=st.binary(max_size=64), name=st.sampled_from(_FILES))
@examples(25)
def test_whatever_a_file_holds_nothing_is_raised(
    data: bytes, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = build(tmp_path_factory.mktemp("sysfs") / "infiniband", MLX5)
    (folder / name).write_bytes(data)
    for item in PortWatch(folder.parent.parent.parent).poll(NOW):
        if isinstance(item, PortReadings):
            assert all(0 <= value < 1 << 64 for value in item.values.values())


def test_a_port_is_where_its_device_is_on_the_pci_bus(root: Path) -> None:
    build(root, MLX5)
    where = root.parent / "pci0000:17" / "0000:17:01.0" / MLX5.address
    where.mkdir(parents=True)
    (where / "numa_node").write_text("1\n")
    link = root / MLX5.device / "device"
    link.unlink()
    link.symlink_to(where)
    seen = PortWatch(root).poll(NOW)[0]
    assert isinstance(seen, PortSeen)
    assert (seen.pci_path, seen.numa_node) == (f"pci0000:17/0000:17:01.0/{MLX5.address}", 1)
