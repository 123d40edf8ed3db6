"""Queue pairs as the kernel knows them: whose they are, and what the driver counts of one.

In: RDMA netlink (include/uapi/rdma/rdma_netlink.h; drivers/infiniband/core/nldev.c). Out:
:class:`~otelgpu.model.fabric.QueuePairReadings`. Counters are there where somebody had the driver bind them
(``rdma statistic qp set link … auto type on``); rdma_rxe has none. A counter that several queue pairs share says
nothing of one: it is left out and counted. Every length in a reply is checked before it is believed.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from otelgpu.model.fabric import FabricInput, QueuePairReadings

QUEUE_PAIRS: Final = 16_384
"""Queue pairs of one device that are reported; more are counted."""

LIST_EVERY_NS: Final = 10_000_000_000
"""Between two lists of which queue pairs there are; their counters are read at each poll."""

RETRY_NS: Final = 60_000_000_000

REASONS: Final[Mapping[str, str]] = {
    "netlink_missing": "the kernel has no RDMA netlink: queue pairs are known from the programs' own calls only",
    "netlink_refused": "RDMA netlink was refused; tried again every minute",
    "netlink_failed": "a question to RDMA netlink failed, or was not answered in time",
    "netlink_malformed": "an answer of RDMA netlink that is not what its format says; the rest of it is left out",
    "netlink_too_long": "an answer of RDMA netlink beyond the bytes that are read",
    "queue_pairs_ignored": f"a queue pair beyond the {QUEUE_PAIRS} of one device that are reported",
    "queue_pair_counter_shared": "a driver's counter that several queue pairs share, which is reported of none",
}

# include/uapi/linux/netlink.h
_NETLINK_RDMA: Final = 20
_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port id
_ATTRIBUTE: Final = struct.Struct("=HH")  # nlattr: length, type
_ERROR: Final = struct.Struct("=i")  # the first member of nlmsgerr
_REQUEST_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_TYPE_MASK: Final = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER

# include/uapi/rdma/rdma_netlink.h: RDMA_NL_NLDEV, RDMA_NLDEV_CMD_*, RDMA_NLDEV_ATTR_*
_NLDEV: Final = 5
_CMD_GET: Final = 1
_CMD_RES_QP_GET: Final = 10
_CMD_STAT_GET: Final = 17
_DEV_INDEX: Final = 1
_DEV_NAME: Final = 2
_PORT_INDEX: Final = 3
_RES_QP: Final = 19
_RES_QP_ENTRY: Final = 20
_RES_LQPN: Final = 21
_RES_PID: Final = 28
_STAT_RES: Final = 75
_STAT_COUNTER: Final = 77
_STAT_COUNTER_ENTRY: Final = 78
_STAT_HWCOUNTERS: Final = 80
_STAT_HWCOUNTER_ENTRY: Final = 81
_STAT_HWCOUNTER_ENTRY_NAME: Final = 82
_STAT_HWCOUNTER_ENTRY_VALUE: Final = 83

_DATAGRAM: Final = 1 << 16  # the kernel fills dumps by pages, of 32 KiB at most
_MOST: Final = 16 << 20  # bytes of one answer
_WAIT_S: Final = 1.0
_NAMES: Final = 128  # counters of one queue pair
_NAME: Final = 64

Attributes = Iterator[tuple[int, bytes]]


class MalformedError(Exception):
    """An answer does not have the form that netlink has."""


class Channel(Protocol):
    """A netlink socket."""

    def send(self, data: bytes, /) -> int:
        """Send one datagram."""

    def recv(self, size: int, /) -> bytes:
        """Receive one."""

    def close(self) -> None:
        """Let it go."""


class QueuePair(Struct, frozen=True):
    """A queue pair of a device; ``pid`` is 0 where the kernel owns it, or does not report."""

    number: int
    port: int
    pid: int


class Counted(Struct, frozen=True):
    """What one counter of a device counted, and of which queue pairs."""

    port: int
    numbers: tuple[int, ...]
    values: Mapping[str, int]


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(type, sequence, payload) of each message in a datagram. Raises :class:`MalformedError`."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise MalformedError
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise MalformedError
        yield kind, sequence, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes) -> Attributes:
    """(type, payload) of each attribute. Raises :class:`MalformedError`."""
    at = 0
    while at < len(data):
        if len(data) - at < _ATTRIBUTE.size:
            raise MalformedError
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= length <= len(data) - at:
            raise MalformedError
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(payload), kind) + payload + bytes(-len(payload) % 4)


def request(command: int, sequence: int, *parts: bytes) -> bytes:
    """A question for all that there are."""
    payload = b"".join(parts)
    kind = (_NLDEV << 10) | command
    return _HEADER.pack(_HEADER.size + len(payload), kind, _REQUEST_DUMP, sequence, 0) + payload


def parse_device(payload: bytes) -> tuple[int, str] | None:
    """(index, name) of a message of RDMA_NLDEV_CMD_GET."""
    found = dict(attributes(payload))
    if _DEV_INDEX not in found or _DEV_NAME not in found:
        return None
    index = _number(found[_DEV_INDEX])
    if index >> 32:
        raise MalformedError
    return index, _text(found[_DEV_NAME])


def parse_queue_pairs(payload: bytes) -> Iterator[QueuePair]:
    """The queue pairs of a message of RDMA_NLDEV_CMD_RES_QP_GET."""
    for entry in _entries(payload, _RES_QP, _RES_QP_ENTRY):
        found = dict(attributes(entry))
        if _RES_LQPN in found:
            yield QueuePair(
                number=_number(found[_RES_LQPN]),
                port=_number(found.get(_PORT_INDEX, bytes(4))),
                pid=_number(found.get(_RES_PID, bytes(4))),
            )


def parse_counters(payload: bytes) -> Iterator[Counted]:
    """The counters of a message of RDMA_NLDEV_CMD_STAT_GET for queue pairs."""
    for entry in _entries(payload, _STAT_COUNTER, _STAT_COUNTER_ENTRY):
        found = dict(attributes(entry))
        bound = (dict(attributes(each)) for each in _parts(found.get(_RES_QP, b""), _RES_QP_ENTRY))
        values: dict[str, int] = {}
        for each in _parts(found.get(_STAT_HWCOUNTERS, b""), _STAT_HWCOUNTER_ENTRY):
            one = dict(attributes(each))
            name = _text(one.get(_STAT_HWCOUNTER_ENTRY_NAME, b""))
            if name and len(values) < _NAMES and _STAT_HWCOUNTER_ENTRY_VALUE in one:
                values[name] = _number(one[_STAT_HWCOUNTER_ENTRY_VALUE])
        yield Counted(
            port=_number(found.get(_PORT_INDEX, bytes(4))),
            numbers=tuple(_number(each[_RES_LQPN]) for each in bound if _RES_LQPN in each),
            values=values,
        )


def _entries(payload: bytes, table: int, entry: int) -> Iterator[bytes]:
    for part in _parts(payload, table):
        yield from _parts(part, entry)


def _parts(payload: bytes, wanted: int) -> Iterator[bytes]:
    return (part for kind, part in attributes(payload) if kind == wanted)


def _number(payload: bytes) -> int:
    if len(payload) not in (1, 2, 4, 8):
        raise MalformedError
    return int.from_bytes(payload, _HOST_ORDER)


def _text(payload: bytes) -> str:
    return payload.partition(b"\0")[0][:_NAME].decode(errors="replace")


_HOST_ORDER: Final = "little" if struct.pack("=H", 1) == b"\1\0" else "big"


def open_netlink() -> Channel:
    """A socket of NETLINK_RDMA that waits no longer than a second. Raises :class:`OSError`.

    Asking for one has the kernel load its RDMA modules: ask only where there is a device.
    """
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_RDMA)
    channel.settimeout(_WAIT_S)
    return channel


class QueuePairWatch:
    """What is known of the queue pairs. Every call of :meth:`poll` asks the kernel and may block."""

    def __init__(
        self, open_channel: Callable[[], Channel] = open_netlink, processes: Path = Path("/proc")
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._open = open_channel
        self._processes = processes
        self._channel: Channel | None = None
        self._retry_ns = 0
        self._missing = False
        self._sequence = 0
        self._list_ns = 0
        self._pairs: dict[tuple[str, int], tuple[int, int]] = {}  # (device, number) → (port, tgid)
        self._uncounted: set[str] = set()  # devices whose drivers count nothing per queue pair

    def poll(self, now_ns: int, devices: Iterable[str]) -> list[FabricInput]:
        """Queue pairs that are new or another process', and what is counted of those that are counted.

        ``devices``: names of those that are there; where there is none, nothing is asked.
        """
        wanted = frozenset(devices)
        if not wanted or now_ns < self._retry_ns or not self._connect(now_ns):
            return []
        try:
            indexes = {name: index for index, name in self._devices() if name in wanted}
            found: list[FabricInput] = []
            if now_ns >= self._list_ns:
                self._list_ns = now_ns + LIST_EVERY_NS
                found += self._list(indexes, now_ns)
            self._uncounted &= wanted
            for name, index in indexes.items():
                if name not in self._uncounted:
                    found += self._count(name, index, now_ns)
            return found
        except (OSError, MalformedError) as error:
            malformed = isinstance(error, MalformedError)
            self.counters["netlink_malformed" if malformed else "netlink_failed"] += 1
            self.close()
            self._retry_ns = now_ns + RETRY_NS
            return []

    def close(self) -> None:
        """Idempotent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _connect(self, now_ns: int) -> bool:
        if self._channel is not None:
            return True
        try:
            self._channel = self._open()
        except OSError as error:
            self._retry_ns = now_ns + RETRY_NS
            missing = error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT)
            if not (missing and self._missing):
                self.counters["netlink_missing" if missing else "netlink_refused"] += 1
            self._missing = missing
            return False
        return True

    def _devices(self) -> list[tuple[int, str]]:
        found = (parse_device(payload) for payload in self._ask(_CMD_GET))
        return [device for device in found if device is not None]

    def _list(self, indexes: Mapping[str, int], now_ns: int) -> list[FabricInput]:
        pairs: dict[tuple[str, int], tuple[int, int]] = {}
        for name, index in indexes.items():
            of_device = 0
            for payload in self._ask(_CMD_RES_QP_GET, attribute(_DEV_INDEX, struct.pack("=I", index))):
                for pair in parse_queue_pairs(payload):
                    of_device += 1
                    if of_device > QUEUE_PAIRS:
                        self.counters["queue_pairs_ignored"] += (name, pair.number) not in self._pairs
                        continue
                    pairs[name, pair.number] = pair.port, self._process(pair.pid)
        found: list[FabricInput] = [
            QueuePairReadings(time_ns=now_ns, device=name, port=port, number=number, tgid=tgid, values={})
            for (name, number), (port, tgid) in pairs.items()
            if self._pairs.get((name, number)) != (port, tgid)
        ]
        self._pairs = pairs
        return found

    def _count(self, name: str, index: int, now_ns: int) -> Iterator[FabricInput]:
        question = (
            attribute(_DEV_INDEX, struct.pack("=I", index)),
            attribute(_STAT_RES, struct.pack("=I", _RES_QP)),
        )
        try:
            answers = list(self._ask(_CMD_STAT_GET, *question))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            self._uncounted.add(name)
            return
        for counted in (one for payload in answers for one in parse_counters(payload)):
            if len(counted.numbers) > 1:
                self.counters["queue_pair_counter_shared"] += 1
            elif counted.numbers and counted.values:
                number = counted.numbers[0]
                port, tgid = self._pairs.get((name, number), (counted.port, 0))
                yield QueuePairReadings(
                    time_ns=now_ns,
                    device=name,
                    port=counted.port or port,
                    number=number,
                    tgid=tgid,
                    values=counted.values,
                )

    def _ask(self, command: int, *parts: bytes) -> Iterator[bytes]:
        """Payloads of the answer. Raises :class:`OSError` with the kernel's errno, and :class:`MalformedError`."""
        if self._channel is None:
            raise OSError(errno.ENOTCONN, "the answer before was given up")
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        self._channel.send(request(command, self._sequence, *parts))
        taken = 0
        while taken < _MOST:
            data = self._channel.recv(_DATAGRAM)
            taken += len(data)
            if not data:
                raise MalformedError
            for kind, sequence, payload in messages(data):
                if sequence != self._sequence:
                    continue  # of a question that was given up
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    if len(payload) < _ERROR.size:
                        raise MalformedError
                    (status,) = _ERROR.unpack_from(payload)
                    if status < 0:
                        raise OSError(-status, "refused")
                    return
                if kind == (_NLDEV << 10) | command:
                    yield payload
        self.counters["netlink_too_long"] += 1
        self.close()  # what is left of the answer goes with it

    def _process(self, pid: int) -> int:
        """The process of a thread, for the kernel says which thread made a queue pair."""
        if pid == 0:
            return 0
        try:
            with open(self._processes / str(pid) / "status", "rb") as status:
                for line in status.read(4096).splitlines():
                    if line.startswith(b"Tgid:") and (number := line[5:].strip()).isdigit():
                        return int(number)
        except OSError:
            return pid  # it has ended
        return pid
