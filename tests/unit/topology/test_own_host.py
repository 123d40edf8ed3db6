"""This host's devices as they were read → the same graph that agents' signals give."""

from __future__ import annotations

from otelgpu.model.devices import DeviceReadings, DeviceSeen, ProcessReading
from otelgpu.model.fabric import PortSeen
from otelgpu.topology.building import build
from otelgpu.topology.own_host import facts_of

BUS = "pci0000:17/0000:17:01.0/0000:18:00.0"


def test_devices_are_joined_with_who_uses_them() -> None:
    gpus = [
        DeviceSeen(
            time_ns=1,
            uuid=f"GPU-{index}",
            index=index,
            minor=index,
            model="H200",
            pci_path=f"{BUS}/0000:19:0{index}.0/0000:2{index}:00.0",
            numa_node=0,
            nvlinks={f"GPU-{1 - index}": 4},
        )
        for index in (1, 0)
    ]
    used = ProcessReading(tgid=42, device="GPU-1", memory_bytes=1 << 30)
    readings = DeviceReadings(time_ns=1, uuid="GPU-1", values={}, processes=(used,))
    port = PortSeen(
        time_ns=1,
        device="mlx5_0",
        port=1,
        state="ACTIVE",
        link_layer="InfiniBand",
        rate_bits_per_s=400_000_000_000,
        pci_path=f"{BUS}/0000:19:08.0/0000:28:00.0",
        numa_node=0,
    )
    own = {"host.name": "me"}
    words = {42: {"service.name": "train", "otelgpu.job.id": "j", "otelgpu.job.rank": 3}}
    (node,) = build(facts_of(own, [*gpus, readings], [port], words)).nodes
    assert node.name == "me"
    assert [(gpu.name, gpu.pci_bus_id, gpu.nvlinks) for gpu in node.gpus] == [
        ("gpu0", "0000:20:00.0", {"GPU-1": 4}),
        ("gpu1", "0000:21:00.0", {"GPU-0": 4}),
    ]
    assert {each.path for each in node.affinities} == {"PIX"}
    assert [(each.service, each.pid, each.rank, each.gpus) for each in node.processes] == [
        ("train", 42, 3, ["GPU-1"])
    ]
    assert [(each.up, each.bytes_per_s) for each in node.nics[0].ports] == [(True, 50e9)]


def test_a_host_without_devices_is_a_node() -> None:
    found = build(facts_of({"host.name": "me"}, [], [], {}))
    assert [node.name for node in found.nodes] == ["me"]
    assert found.marks == []
