"""How far PCI devices are apart, as ``nvidia-smi topo -m`` has it."""

from __future__ import annotations

import pytest

from otelgpu.topology.affinity import affinity

ROOT = "pci0000:17/0000:17:01.0"
SWITCH = f"{ROOT}/0000:18:00.0"  # its upstream port
GPU = f"{SWITCH}/0000:19:00.0/0000:1a:00.0"
OTHER_ROOT = "pci0000:60/0000:60:01.0/0000:61:00.0"


@pytest.mark.parametrize(
    ("other", "numa_node", "path"),
    [
        (f"{SWITCH}/0000:19:01.0/0000:1b:00.0", 0, "PIX"),
        (f"{SWITCH}/0000:19:01.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0", 0, "PXB"),
        ("pci0000:17/0000:17:02.0/0000:30:00.0", 0, "PHB"),
        (OTHER_ROOT, 0, "NODE"),
        (OTHER_ROOT, 1, "SYS"),
        (OTHER_ROOT, -1, ""),
        ("", 0, ""),
    ],
)
def test_a_path_is_the_nearest_that_both_have(other: str, numa_node: int, path: str) -> None:
    assert affinity(GPU, 0, other, numa_node) == path
    assert affinity(other, numa_node, GPU, 0) == path


def test_two_ports_of_one_card_are_behind_one_bridge() -> None:
    assert affinity(f"{ROOT}/0000:18:00.0", 0, f"{ROOT}/0000:18:00.1", 0) == "PIX"


def test_a_machine_with_one_numa_node_says_none() -> None:
    assert affinity(GPU, -1, OTHER_ROOT, -1) == "NODE"
