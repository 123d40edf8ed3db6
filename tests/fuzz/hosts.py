"""Fuzz targets of what hosts and libraries say: the kernel log, RDMA netlink, memory and debugging information."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otelgpu.elf.dwarf import struct_members
from otelgpu.elf.image import ElfImage
from otelgpu.families.nccl.discover.layouts import (
    MAGIC,
    CommunicatorLayout,
    calibrate,
    layout_of_members,
    magics_at,
    version_in,
)
from otelgpu.families.rdma.poll.kernel_log import MESSAGE, KernelLogWatch
from otelgpu.families.rdma.poll.netlink import QueuePairWatch, attribute
from otelgpu.model.fabric import HardwareError, QueuePairReadings

_NOW_NS: Final = 5_000_000_000

# -- the kernel log --------------------------------------------------------------------------------------


def kernel_log(data: bytes) -> None:
    """Each line is a record; what was logged is reported once, bounded and printable, and not in the future."""
    records = data.split(b"\0")
    waiting = iter(records)
    watch = KernelLogWatch(lambda: 0, lambda _descriptor, size: next(waiting, b"")[:size])
    found = watch.poll(_NOW_NS)
    assert len(found) + sum(watch.counters.values()) <= len(records)
    for error in found:
        assert isinstance(error, HardwareError)
        assert 0 <= error.time_ns <= _NOW_NS
        assert len(error.message) <= MESSAGE and len(error.process) <= 64
        assert (error.message + error.process + error.pci_bus_id).isprintable()


KERNEL_LOG_SEEDS: Final = (
    b"3,339,5140900,-;NVRM: Xid (PCI:0000:cb:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    b"3,1,1,-;NVRM: Xid (0000:03:00): 14, Channel 00000001\0"
    + b"6,2,2,-;usb 1-1: new device\n SUBSYSTEM=usb",
    b"4,9,9,c;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore\0"
    b"4,10,10,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 1 Engine instance 46\0"
    b"12,11,11,-;NVRM: Xid (PCI:0000:cb:00): 79, forged",
    b"3,1,1,-;NVRM: Xid (PCI:0000:cb:00): 31, pid='<unknown>', name=<unknown>, Ch 00000010\x1b[2J "
    + b"00000010 " * 40,
)

# -- RDMA netlink ----------------------------------------------------------------------------------------


class _Channel:
    """Answers each question with the next datagram, its sequence number put right."""

    def __init__(self, datagrams: Sequence[bytes]) -> None:
        self._datagrams = list(datagrams)
        self._sequence = b""

    def send(self, data: bytes, /) -> int:
        self._sequence = data[8:12]
        return len(data)

    def recv(self, size: int, /) -> bytes:
        if not self._datagrams:
            raise TimeoutError
        datagram = self._datagrams.pop(0)
        return datagram.replace(b"SEQ#", self._sequence)[:size]

    def close(self) -> None:
        self._datagrams.clear()


def netlink(data: bytes) -> None:
    """Datagrams, each after two bytes of its length."""
    datagrams, position = [], 0
    while position + 2 <= len(data):
        (size,) = struct.unpack_from("<H", data, position)
        datagrams.append(data[position + 2 : position + 2 + size])
        position += 2 + size
    watch = QueuePairWatch(lambda: _Channel(datagrams), Path("/nonexistent"))
    for now_ns in (_NOW_NS, 100 * _NOW_NS):
        found = watch.poll(now_ns, ("mlx5_0",))
        assert len(found) <= len(data)
        for item in found:
            assert isinstance(item, QueuePairReadings)
            assert item.device == "mlx5_0" and len(item.values) <= 128
    watch.close()


def _message(kind: int, *parts: bytes) -> bytes:
    payload = b"".join(parts)
    return struct.pack("=IHH", 16 + len(payload), kind, 2) + b"SEQ#" + bytes(4) + payload


def _numbered(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def _datagrams(*messages: bytes) -> bytes:
    return b"".join(struct.pack("<H", len(message)) + message for message in messages)


_GET, _LIST, _COUNT = ((5 << 10) | command for command in (1, 10, 17))
_DONE: Final = _message(3, bytes(4))
_PAIR: Final = _numbered(3, 1) + _numbered(21, 17) + _numbered(28, 4711)
_VALUE: Final = attribute(81, attribute(82, b"rx_write\0") + attribute(83, struct.pack("=Q", 9)))
NETLINK_SEEDS: Final = (
    _datagrams(
        _message(_GET, _numbered(1, 0), attribute(2, b"mlx5_0\0")) + _DONE,
        _message(_LIST, attribute(19 | 0x8000, attribute(20, _PAIR) + attribute(20, _PAIR))) + _DONE,
        _message(
            _COUNT,
            attribute(
                77,
                attribute(
                    78,
                    _numbered(3, 1) + attribute(19, attribute(20, _numbered(21, 17))) + attribute(80, _VALUE),
                ),
            ),
        )
        + _DONE,
    ),
    _datagrams(
        _message(_GET, _numbered(1, 0), attribute(2, b"mlx5_0\0")), _DONE, _message(2, struct.pack("=i", -95))
    ),
)

# -- communicators in memory -----------------------------------------------------------------------------

_SECRET, _RANK, _RANKS = 0x5EC4E7, 3, 8


def communicator(data: bytes) -> None:
    """The memory of a communicator: a layout lies within it, and says of it what is known."""
    version_in(data)
    layout = calibrate(data, rank=_RANK, ranks=_RANKS, is_identity=lambda word: word == _SECRET)
    if layout is None:
        return
    rank, ranks = struct.unpack_from("<II", data, layout.rank_at)
    assert (rank, ranks) == (_RANK, _RANKS)
    assert struct.unpack_from("<Q", data, layout.hash_at)[0]
    assert layout.ranks_at == layout.rank_at + 4 and layout.device_at + 4 <= len(data)
    assert 0 <= layout.end_at <= len(data) - 8
    words = [struct.unpack_from("<Q", data, at)[0] for at in magics_at(layout)]
    assert _SECRET in words


def _memory(layout: CommunicatorLayout, distance: int, size: int) -> bytes:
    found = bytearray(size)
    for at, word in (
        (0, MAGIC),
        (layout.end_at, MAGIC),
        (layout.hash_at - distance, _SECRET),
        (layout.hash_at, 0xFACE),
    ):
        struct.pack_into("<Q", found, at, word)
    struct.pack_into("<III", found, layout.rank_at, _RANK, _RANKS, 1)
    return bytes(found)


_SMALL: Final = CommunicatorLayout(hash_at=64, rank_at=72, ranks_at=76, device_at=80, end_at=240)
COMMUNICATOR_SEEDS: Final = (
    _memory(_SMALL, 8, 256),
    _memory(_SMALL, 16, 256),
    _memory(_SMALL, 8, 256) * 2,
    b"x\0NCCL version 2.27.5+cuda12.9\0",
)

# -- debugging information -------------------------------------------------------------------------------

_SECTIONS: Final = (".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str")
_LENGTHS: Final = struct.Struct("<HHH")  # of the first three sections
_NAME: Final = "ncclComm"


def debug_info(data: bytes) -> None:
    """Four sections behind the lengths of three."""
    if len(data) < _LENGTHS.size:
        return
    ends = [_LENGTHS.size]
    for length in _LENGTHS.unpack_from(data):
        ends.append(ends[-1] + length)
    sections = [data[start:end] for start, end in zip(ends, [*ends[1:], len(data)], strict=True)]
    members = struct_members(*sections, _NAME)
    if members is None:
        return
    assert members and all(name for name in members)
    offsets = {name: (member.offset, member.elements) for name, member in members.items()}
    for version in (None, "2.21.5", "2.27.5"):
        layout_of_members(offsets, version)


_SOURCE: Final = b"""
struct ncclOther { int a[3]; };
struct ncclComm {
  unsigned long startMagic; struct ncclOther *other; unsigned long commHash;
  int rank, nRanks, cudaDev; unsigned long seqNumber[5]; unsigned long endMagic;
} made;
"""


def debug_info_seeds() -> tuple[bytes, ...]:
    """By the compiler that is there: in the forms of versions 4 and 5."""
    found = []
    if shutil.which("gcc"):
        for version in ("4", "5"):
            with tempfile.TemporaryDirectory() as folder:
                library = Path(folder, "lib.so")
                command = ["gcc", f"-gdwarf-{version}", "-O0", "-shared", "-fPIC", "-xc", "-", "-o", library]
                subprocess.run(command, input=_SOURCE, check=True)
                image = ElfImage(library.read_bytes())
                contents = [
                    bytes(part.content) if (part := image.section(name)) else b"" for name in _SECTIONS
                ]
            assert struct_members(*contents, _NAME)
            found.append(_LENGTHS.pack(*map(len, contents[:3])) + b"".join(contents))
    return (*found, _LENGTHS.pack(4, 0, 9) + bytes(4) + _NAME.encode() + b"\0")
