"""RDMA netlink: answers as the kernel writes them, answers that lie, and kernels that have none."""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.rdma.poll import netlink as nl
from otelgpu.families.rdma.poll.netlink import LIST_EVERY_NS, RETRY_NS, QueuePairWatch
from otelgpu.model.fabric import FabricInput, QueuePairReadings
from tests.rig.examples import examples

NOW = 5_000_000_000
HEADER = Path("/usr/include/rdma/rdma_netlink.h")
DEVICES = ("mlx5_0",)


# What the kernel writes, by its own header and none of the module under test's: include/uapi/linux/netlink.h and
# include/uapi/rdma/rdma_netlink.h of Linux 6.12, where these numbers are promised never to change.
NLMSG_ERROR, NLMSG_DONE, NLM_F_MULTI, NLA_F_NESTED = 2, 3, 2, 1 << 15
RDMA_NL_NLDEV = 5


class Command(IntEnum):
    """``RDMA_NLDEV_CMD_…``."""

    GET = 1
    RES_QP_GET = 10
    STAT_GET = 17


class Attr(IntEnum):
    """``RDMA_NLDEV_ATTR_…``."""

    DEV_INDEX = 1
    DEV_NAME = 2
    PORT_INDEX = 3
    RES_QP = 19
    RES_QP_ENTRY = 20
    RES_LQPN = 21
    RES_TYPE = 26
    RES_STATE = 27
    RES_PID = 28
    STAT_RES = 75
    STAT_COUNTER = 77
    STAT_COUNTER_ENTRY = 78
    STAT_HWCOUNTERS = 80
    STAT_HWCOUNTER_ENTRY = 81
    STAT_HWCOUNTER_ENTRY_NAME = 82
    STAT_HWCOUNTER_ENTRY_VALUE = 83


def put(kind: int, payload: bytes) -> bytes:
    """A ``struct nlattr``: its length without the padding, its type, and the payload padded to four bytes."""
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def nested(kind: int, *parts: bytes) -> bytes:
    """As the kernel's ``nla_nest_start``; what it has of resources is older than the flag, and made by ``put``."""
    return put(kind | NLA_F_NESTED, b"".join(parts))


def u32(kind: int, value: int) -> bytes:
    return put(kind, struct.pack("=I", value))


def message(kind: int, sequence: int, payload: bytes) -> bytes:
    """A ``struct nlmsghdr`` and what follows it."""
    head = struct.pack("=IHHII", 16 + len(payload), kind, NLM_F_MULTI, sequence, 0)
    return head + payload + bytes(-len(payload) % 4)


def device(index: int, name: str) -> bytes:
    return u32(Attr.DEV_INDEX, index) + put(Attr.DEV_NAME, name.encode() + b"\0")


def queue_pair(number: int, pid: int = 0, port: int = 1) -> bytes:
    parts = [u32(Attr.PORT_INDEX, port), u32(Attr.RES_LQPN, number)]
    parts += [put(Attr.RES_TYPE, b"\2"), put(Attr.RES_STATE, b"\3")]  # rc, RTS: one byte each
    if pid:
        parts.append(u32(Attr.RES_PID, pid))
    return put(Attr.RES_QP_ENTRY, b"".join(parts))


def queue_pairs(*entries: bytes) -> bytes:
    return u32(Attr.DEV_INDEX, 0) + put(Attr.RES_QP, b"".join(entries))


def counter(numbers: Sequence[int], values: Mapping[str, int], port: int = 1) -> bytes:
    bound = nested(Attr.RES_QP, *(nested(Attr.RES_QP_ENTRY, u32(Attr.RES_LQPN, n)) for n in numbers))
    counts = (
        nested(
            Attr.STAT_HWCOUNTER_ENTRY,
            put(Attr.STAT_HWCOUNTER_ENTRY_NAME, name.encode() + b"\0"),
            put(Attr.STAT_HWCOUNTER_ENTRY_VALUE, struct.pack("=Q", value)),
        )
        for name, value in values.items()
    )
    entry = (u32(Attr.PORT_INDEX, port), bound, nested(Attr.STAT_HWCOUNTERS, *counts))
    return put(Attr.STAT_COUNTER, put(Attr.STAT_COUNTER_ENTRY, b"".join(entry)))


class Kernel:
    """Answers questions by command: payloads, an errno, or raw bytes."""

    def __init__(self, answers: Mapping[int, Sequence[bytes] | int | bytes]) -> None:
        self.answers = dict(answers)
        self.asked: list[int] = []
        self.questions: list[bytes] = []  # what follows each question's header
        self.closed = 0
        self._waiting: list[bytes] = []

    def send(self, data: bytes, /) -> int:
        length, kind, flags, sequence, _ = struct.unpack_from("=IHHII", data)
        assert (length, kind >> 10, flags) == (len(data), RDMA_NL_NLDEV, 0x301)  # NLM_F_REQUEST | NLM_F_DUMP
        self.asked.append(kind & 1023)
        self.questions.append(data[16:])
        answer = self.answers.get(kind & 1023, ())
        if isinstance(answer, int):
            error = struct.pack("=i", -answer) + data[:16]
            self._waiting = [message(NLMSG_ERROR, sequence, error)]
        elif isinstance(answer, bytes):
            self._waiting = [answer]
        else:
            stale = message(kind, sequence - 1, b"\1\2\3")  # of a question before
            self._waiting = [stale + b"".join(message(kind, sequence, payload) for payload in answer)]
            self._waiting.append(message(NLMSG_DONE, sequence, struct.pack("=i", 0)))
        return len(data)

    def recv(self, size: int, /) -> bytes:
        if not self._waiting:
            raise TimeoutError
        return self._waiting.pop(0)

    def close(self) -> None:
        self.closed += 1


def poll(watch: QueuePairWatch, now_ns: int = NOW) -> list[QueuePairReadings]:
    found: list[FabricInput] = watch.poll(now_ns, DEVICES)
    return [item for item in found if isinstance(item, QueuePairReadings)]


def opening(kernel: Kernel) -> Callable[[], Any]:
    return lambda: kernel


def test_the_numbers_are_those_of_the_kernels_header() -> None:
    if not HEADER.exists():
        pytest.skip(f"no {HEADER}: install linux-libc-dev")
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)

    def enumerators(name: str) -> dict[str, int]:
        body = re.search(rf"enum {name} \{{(.*?)\}}", text, re.DOTALL)
        assert body is not None
        found: dict[str, int] = {}
        value = -1
        for word in (part.strip() for part in body[1].split(",") if part.strip()):
            key, _, given_value = (piece.strip() for piece in word.partition("="))
            value = (
                (int(given_value) if given_value.isdigit() else found[given_value])
                if given_value
                else value + 1
            )
            found[key] = value
        return found

    commands, known = enumerators("rdma_nldev_command"), enumerators("rdma_nldev_attr")
    assert {one.name: commands[f"RDMA_NLDEV_CMD_{one.name}"] for one in Command} == {
        one.name: one.value for one in Command
    }
    assert {one.name: known[f"RDMA_NLDEV_ATTR_{one.name}"] for one in Attr} == {
        one.name: one.value for one in Attr
    }


def test_an_answer_of_linux_6_1_is_understood() -> None:
    # As it came, of rdma_rxe: the kernel's own queue pair 1, made by ib_core.
    data = bytes.fromhex(
        "600000000a14020021000000aa00000008000100010000000900020072786542000000003c00130038001400"
        "080003000100000008001500010000000c001d0069625f636f726500080018000000000005001a0001000000"
        "05001b0003000000"
    )
    ((kind, sequence, payload),) = nl.messages(data)
    assert (kind >> 10, kind & 1023, sequence) == (RDMA_NL_NLDEV, Command.RES_QP_GET, 0x21)
    assert list(nl.parse_queue_pairs(payload)) == [nl.QueuePair(number=1, port=1, pid=0)]


def test_a_queue_pair_is_reported_once_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "status").write_text("Name:\tnccl\nTgid:\t70\nPid:\t77\n")
    kernel = Kernel(
        {
            Command.GET: [device(0, "mlx5_0") + device(0, "mlx5_0"), device(1, "other")],
            Command.RES_QP_GET: [
                queue_pairs(queue_pair(1), queue_pair(300, pid=77)),
                queue_pairs(queue_pair(301, 99)),
            ],
            Command.STAT_GET: errno.EOPNOTSUPP,
        }
    )
    watch = QueuePairWatch(opening(kernel), tmp_path)
    found = poll(watch)
    assert [(pair.number, pair.tgid, pair.port, dict(pair.values)) for pair in found] == [
        (1, 0, 1, {}),
        (300, 70, 1, {}),
        (301, 99, 1, {}),
    ]
    assert {pair.device for pair in found} == {"mlx5_0"}
    assert poll(watch, NOW + LIST_EVERY_NS) == []
    assert +watch.counters == {}
    index, of_queue_pairs = u32(Attr.DEV_INDEX, 0), u32(Attr.STAT_RES, Attr.RES_QP)
    assert kernel.questions == [b"", index, index + of_queue_pairs, b"", index]
    # A driver that counts nothing per queue pair is not asked again.
    assert kernel.asked == [
        Command.GET,
        Command.RES_QP_GET,
        Command.STAT_GET,
        Command.GET,
        Command.RES_QP_GET,
    ]


def test_counters_are_of_the_one_queue_pair_that_is_bound(tmp_path: Path) -> None:
    kernel = Kernel(
        {
            Command.GET: [device(4, "mlx5_0")],
            Command.RES_QP_GET: [queue_pairs(queue_pair(300, pid=70))],
            Command.STAT_GET: [
                counter([300], {"rx_write_requests": 2**63, "packet_seq_err": 5}),
                counter([301, 302], {"packet_seq_err": 9}),
                counter([], {"packet_seq_err": 9}),
            ],
        }
    )
    watch = QueuePairWatch(opening(kernel), tmp_path)
    reported = [pair for pair in poll(watch) if pair.values]
    assert reported == [
        QueuePairReadings(
            time_ns=NOW,
            device="mlx5_0",
            port=1,
            number=300,
            tgid=70,
            values={"rx_write_requests": 2**63, "packet_seq_err": 5},
        )
    ]
    assert +watch.counters == {"queue_pair_counter_shared": 1}


def test_without_a_device_nothing_is_asked() -> None:
    def refuse() -> Any:
        raise AssertionError("opening it would load modules")

    assert QueuePairWatch(refuse).poll(NOW, ()) == []


def test_a_kernel_without_it_is_counted_once() -> None:
    opens: list[None] = []

    def refuse() -> Any:
        opens.append(None)
        raise OSError(errno.EPROTONOSUPPORT, "")

    watch = QueuePairWatch(refuse)
    for time_ns in (NOW, NOW + 1, NOW + RETRY_NS, NOW + 2 * RETRY_NS):
        assert poll(watch, time_ns) == []
    assert (len(opens), +watch.counters) == (3, {"netlink_missing": 1})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (errno.EPERM, "netlink_failed"),
        (b"", "netlink_malformed"),
        (b"\1", "netlink_malformed"),
        (struct.pack("=IHHII", 4, 5121, 2, 1, 0), "netlink_malformed"),
        (struct.pack("=IHHII", 2**31, 5121, 2, 1, 0), "netlink_malformed"),
        (message(5121, 1, struct.pack("=HH", 2, 1)), "netlink_malformed"),
        (message(5121, 1, struct.pack("=HH", 90, 1)), "netlink_malformed"),
        (message(5121, 1, put(1, b"\1\2\3") + put(2, b"x\0")), "netlink_malformed"),
        (message(5121, 1, put(1, b"\xff" * 8) + put(2, b"x\0")), "netlink_malformed"),
        (message(2, 1, struct.pack("=i", -(2**31))), "netlink_failed"),
        (message(2, 1, b""), "netlink_malformed"),
        (message(7, 1, b"x"), "netlink_failed"),  # and then nothing, until the time is over
    ],
    ids=str,
)
def test_an_answer_that_is_wrong_is_counted_and_asked_for_again(answer: bytes | int, reason: str) -> None:
    kernel = Kernel({Command.GET: answer})
    watch = QueuePairWatch(opening(kernel))
    assert poll(watch) == []
    assert +watch.counters == {reason: 1}
    assert kernel.closed == 1
    kernel.answers = {Command.GET: [device(0, "mlx5_0")], Command.RES_QP_GET: [queue_pairs(queue_pair(1))]}
    assert poll(watch, NOW + 1) == []
    assert len(poll(watch, NOW + RETRY_NS)) == 1


def test_queue_pairs_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nl, "QUEUE_PAIRS", 3)
    pairs = queue_pairs(*(queue_pair(number) for number in range(5)))
    watch = QueuePairWatch(opening(Kernel({Command.GET: [device(0, "mlx5_0")], Command.RES_QP_GET: [pairs]})))
    assert len(poll(watch)) == 3
    assert +watch.counters == {"queue_pairs_ignored": 2}


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nl, "_MOST", 100)
    many = [queue_pairs(*(queue_pair(number) for number in range(5)))]
    kernel = Kernel({Command.GET: [device(0, "mlx5_0")], Command.RES_QP_GET: many})
    watch = QueuePairWatch(opening(kernel))
    poll(watch)
    assert (watch.counters["netlink_too_long"], watch.counters["netlink_failed"]) == (1, 1)
    assert kernel.closed


_VALID = counter([300, 301], {"a": 1, "b": 2}) + queue_pairs(queue_pair(3, 4)) + device(1, "mlx5_0")


@given(
    st.one_of(
        st.binary(max_size=200),
        st.tuples(st.integers(0, len(_VALID) - 1), st.binary(min_size=1, max_size=4)).map(
            lambda change: _VALID[: change[0]] + change[1] + _VALID[change[0] + len(change[1]) :]
        ),
    )
)
@examples(120)
def test_whatever_the_kernel_answers_only_one_error_comes_of_it(data: bytes) -> None:
    for parse in (nl.messages, nl.attributes, nl.parse_queue_pairs, nl.parse_counters):
        try:
            list(parse(data))
        except nl.MalformedError:
            continue
    try:
        nl.parse_device(data)
    except nl.MalformedError:
        return


def test_this_kernel_answers_or_says_that_it_cannot(tmp_path: Path) -> None:
    watch = QueuePairWatch()
    watch.poll(NOW, ("no such device",))
    watch.close()
    assert (+watch.counters).keys() <= {"netlink_missing", "netlink_refused"}
