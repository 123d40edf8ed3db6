"""Where sysfs has a PCI device, and what stands there that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from otelgpu.kernel.pci_devices import PciLocation, location_at, location_of, sysfs_address

CHAIN = "pci0000:17/0000:17:01.0/0000:18:00.0"


def device(root: Path, chain: str, numa_node: str | None) -> Path:
    folder = root / "devices" / chain
    folder.mkdir(parents=True)
    if numa_node is not None:
        (folder / "numa_node").write_text(numa_node)
    link = root / Path(chain).name
    link.symlink_to(folder)
    return link


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:3b:00.1", "10000:3b:00.1"),
        ("../../etc", ""),
        ("", ""),
    ],
)
def test_an_address_is_the_kernels(given: str, found: str) -> None:
    assert sysfs_address(given) == found


def test_a_path_begins_with_its_host_bridge(tmp_path: Path) -> None:
    device(tmp_path, CHAIN, "1\n")
    assert location_of("0000:18:00.0", tmp_path) == PciLocation(CHAIN, 1)


@pytest.mark.parametrize(
    ("text", "numa_node"), [("-1\n", -1), ("x", -1), ("", -1), ("9" * 40, -1), (None, -1)]
)
def test_a_numa_node_that_is_none_is_not_known(tmp_path: Path, text: str | None, numa_node: int) -> None:
    assert location_at(device(tmp_path, CHAIN, text)).numa_node == numa_node


def test_what_is_not_below_a_host_bridge_has_no_path(tmp_path: Path) -> None:
    assert location_at(device(tmp_path, "virtual/net/veth0", "0")) == PciLocation("", 0)
    assert location_of("0000:ff:00.0", tmp_path) == PciLocation()
    assert location_of("../devices", tmp_path) == PciLocation()
