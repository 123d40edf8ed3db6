"""What went over loopback, by the kernel's own time stamps: packets of one TCP port in, HTTP exchanges out.

A packet socket sees each packet on loopback twice. Those to the port are taken as they arrive (PACKET_HOST), those
from it as they leave (PACKET_OUTGOING), so that the times are those of the server's end. Times are CLOCK_REALTIME in
ns (SO_TIMESTAMPNS). Needs CAP_NET_RAW. Formats: packet(7), socket(7), RFC 791, RFC 9293; the filter's is
linux/filter.h's.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Self

SO_ATTACH_FILTER: Final = 26
SO_RCVBUFFORCE: Final = 33
SO_TIMESTAMPNS: Final = 35
SOL_PACKET: Final = 263
PACKET_STATISTICS: Final = 6
PACKET_HOST: Final = 0
PACKET_OUTGOING: Final = 4
ETH_P_ALL: Final = 3
BUFFER_BYTES: Final = 64 << 20
LARGEST_PACKET: Final = 65_536
WAIT_S: Final = 0.05


@dataclass(slots=True)
class PacketExchange:
    """A request and its response on one connection: when the first byte came, and what left when."""

    arrived_ns: int
    request: bytes
    packets: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def response(self) -> bytes:
        """All that left."""
        return b"".join(data for _, data in self.packets)

    def left_ns(self, offset: int) -> int:
        """When the packet left that carries the response's byte at `offset`; negative: counted from its end."""
        left = offset % len(self.response)
        for time_ns, data in self.packets:
            left -= len(data)
            if left < 0:
                return time_ns
        raise IndexError(offset)


class PacketLog:
    """Collects, in a thread of its own, from the start to the end of the block."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        _attach_filter(self._socket, port)
        self._socket.bind(("lo", ETH_P_ALL))
        self._socket.settimeout(WAIT_S)
        self._packets: list[tuple[int, bytes]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._collect)
        self.lost = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        _, self.lost = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self._socket.close()

    def _collect(self) -> None:
        while True:
            try:
                data, control, _, _ = self._socket.recvmsg(LARGEST_PACKET, socket.CMSG_SPACE(16))
            except TimeoutError:
                if self._done.is_set():
                    return
                continue
            seconds, ns = struct.unpack("qq", control[0][2])
            self._packets.append((seconds * 1_000_000_000 + ns, data))

    def exchanges(self) -> Iterator[PacketExchange]:
        """What the connections carried; nothing may be pipelined on them, and none found half-way."""
        open_now: dict[int, PacketExchange] = {}  # by the client's port
        expected: dict[tuple[int, bool], int] = {}
        for time_ns, packet in sorted(self._packets, key=lambda one: one[0]):
            source, target, sequence, payload = _segment(packet)
            if not payload:
                continue
            request = target == self._port
            client = source if request else target
            behind = (expected.get((client, request), sequence) - sequence) & 0xFFFFFFFF
            if 0 < behind < 1 << 31:
                payload = payload[behind:]  # sent before
                if not payload:
                    continue
                sequence += behind
            expected[client, request] = (sequence + len(payload)) & 0xFFFFFFFF
            exchange = open_now.get(client)
            if not request:
                assert exchange is not None, "a response to nothing"
                exchange.packets.append((time_ns, payload))
            elif exchange is None or exchange.packets:
                if exchange is not None:
                    yield exchange
                open_now[client] = PacketExchange(time_ns, payload)
            else:
                exchange.request += payload
        yield from open_now.values()


def _segment(packet: bytes) -> tuple[int, int, int, bytes]:
    """Source port, target port, sequence number and payload of an IPv4 packet that holds TCP."""
    begin = (packet[0] & 15) * 4
    source, target, sequence = struct.unpack_from("!HHI", packet, begin)
    (total,) = struct.unpack_from("!H", packet, 2)
    return source, target, sequence, packet[begin + (packet[begin + 12] >> 4) * 4 : total]


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _attach_filter(receiver: socket.socket, port: int) -> None:
    """Let through TCP to the port that arrives, and TCP from it that leaves."""
    load_type = 0xFFFFF000 + 4  # SKF_AD_OFF + SKF_AD_PKTTYPE
    instructions = (
        (0x30, 0, 0, 9),  # ldb [9]: the protocol
        (0x15, 0, 9, socket.IPPROTO_TCP),  # jeq, else drop
        (0xB1, 0, 0, 0),  # ldxb 4*([0]&0xf): the header's length
        (0x20, 0, 0, load_type),  # ld
        (0x15, 0, 2, PACKET_OUTGOING),  # jeq, else look whether it arrives
        (0x48, 0, 0, 0),  # ldh [x + 0]: the source port
        (0x05, 0, 0, 2),  # ja to the comparison
        (0x15, 0, 3, PACKET_HOST),  # jeq, else drop
        (0x48, 0, 0, 2),  # ldh [x + 2]: the target port
        (0x15, 0, 1, port),  # jeq, else drop
        (0x06, 0, 0, 0xFFFFFFFF),  # ret: all of it
        (0x06, 0, 0, 0),  # drop
    )
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, bytes(_Program(len(instructions), code)))
