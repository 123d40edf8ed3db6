"""Trees like /sys/class/infiniband, of the shapes that drivers give them.

Names of files and forms of values: drivers/infiniband/core/sysfs.c; for mlx5 hw/mlx5/counters.c, for rxe
sw/rxe/rxe_hw_counters.c of Linux 6.1 and 7.x (which adds bytes, and ``counters`` by its PMA), for efa
hw/efa/efa_verbs.c. The three counts of loss of rxe are those of a guest after a pingpong with 1 % loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One port's files."""

    device: str
    counters: Mapping[str, str] = field(default_factory=dict)
    hw_counters: Mapping[str, str] = field(default_factory=dict)
    state: str = "4: ACTIVE"
    link_layer: str = "Ethernet"
    rate: str = "100 Gb/sec (4X EDR)"
    firmware: str = ""
    driver: str = ""
    address: str = ""  # on the PCI bus
    parent: str = ""
    gids: tuple[str, ...] = ()
    interface: str = ""
    lid: str = "0x0"


_STANDARD = {
    "port_rcv_data": "1000",
    "port_xmit_data": "2000",
    "port_rcv_packets": "11",
    "port_xmit_packets": "22",
    "port_xmit_wait": "0",
    "symbol_error": "0",
    "link_downed": "0",
}

MLX5 = Shape(
    device="mlx5_0",
    counters=_STANDARD | {"VL15_dropped": "0", "port_rcv_errors": "0"},
    hw_counters={
        "lifespan": "10",
        "packet_seq_err": "3",
        "out_of_sequence": "4",
        "local_ack_timeout_err": "0",
        "rnr_nak_retry_err": "0",
        "np_cnp_sent": "7",
        "np_ecn_marked_roce_packets": "9",
        "rx_write_requests": "100",
        "req_transport_retries_exceeded": "0",
    },
    firmware="22.31.1014",
    driver="mlx5_core",
    address="0000:81:00.0",
    gids=("fe80:0000:0000:0000:0e42:a1ff:fe4b:06ac", ZERO_GID, "0000:0000:0000:0000:0000:ffff:c0a8:0001"),
    interface="enp129s0f0np0",
)
RXE_6_1 = Shape(
    device="rxe0",
    hw_counters={
        "sent_pkts": "39000",
        "rcvd_pkts": "38800",
        "duplicate_request": "0",
        "out_of_seq_request": "204",
        "rcvd_rnr_err": "0",
        "send_rnr_err": "0",
        "rcvd_seq_err": "202",
        "ack_deferred": "0",
        "retry_exceeded_err": "0",
        "retry_rnr_exceeded_err": "0",
        "completer_retry_err": "204",
        "send_err": "0",
        "link_downed": "0",
        "rdma_sends": "300",
        "rdma_recvs": "300",
        "lifespan": "10",
    },
    rate="10 Gb/sec (4X SDR)",
    parent="veth0",
    gids=("fe80:0000:0000:0000:0000:00ff:fe00:0001", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
)
RXE_7 = Shape(
    device="rxe0",
    counters=_STANDARD,
    hw_counters=dict(RXE_6_1.hw_counters) | {"sent_bytes": "41000000", "rcvd_bytes": "40900000"},
    rate=RXE_6_1.rate,
    parent="veth0",
    gids=RXE_6_1.gids,
)
INFINIBAND = Shape(
    device="mlx5_1",
    counters=_STANDARD,
    link_layer="InfiniBand",
    rate="400 Gb/sec (4X NDR)",
    lid="0x1a",
    gids=("fe80:0000:0000:0000:0e42:a1ff:fe4b:06ad",),
)
EFA = Shape(
    device="rdmap0s6",
    hw_counters={"tx_bytes": "5", "rx_bytes": "6", "tx_pkts": "7", "rx_pkts": "8", "rx_drops": "1"},
    link_layer="Unspecified",
    firmware="0.0.0.0",
    driver="efa",
    address="0000:00:06.0",
    gids=("fe80:0000:0000:0000:0460:1eff:fe6a:5c2d",),
)
SHAPES = {"mlx5": MLX5, "rxe 6.1": RXE_6_1, "rxe 7": RXE_7, "efa": EFA, "infiniband": INFINIBAND}


def build(root: Path, shape: Shape, port: int = 1) -> Path:
    """Write a shape below ``root``, the class folder; the folder of its port."""
    device = root / shape.device
    folder = device / "ports" / str(port)
    (folder / "gids").mkdir(parents=True)
    (folder / "gid_attrs" / "ndevs").mkdir(parents=True)
    for name in ("state", "link_layer", "rate", "lid"):
        (folder / name).write_text(getattr(shape, name) + "\n")
    for index, gid in enumerate(shape.gids):
        (folder / "gids" / str(index)).write_text(gid + "\n")
        if shape.interface:
            (folder / "gid_attrs" / "ndevs" / str(index)).write_text(shape.interface + "\n")
    for part in ("counters", "hw_counters"):
        values: Mapping[str, str] = getattr(shape, part)
        if values:
            (folder / part).mkdir()
        for name, value in values.items():
            (folder / part / name).write_text(value + "\n")
    if shape.firmware:
        (device / "fw_ver").write_text(shape.firmware + "\n")
    if shape.parent:
        (device / "parent").write_text(shape.parent + "\n")
    if shape.address:
        hardware = root.parent / "devices" / shape.address
        driver = root.parent / "drivers" / shape.driver
        hardware.mkdir(parents=True, exist_ok=True)
        driver.mkdir(parents=True, exist_ok=True)
        (hardware / "driver").symlink_to(driver)
        (device / "device").symlink_to(hardware)
    return folder
