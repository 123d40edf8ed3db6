"""A training job of three ranks on one host, as records: collectives, their waits, and the RDMA beneath them.

Ranks 0 to 2 train for :data:`STEPS` steps, a loop that adds up gradients in each. Ranks 0 and 1 split a communicator
off, on which a group is made; rank 0 sends to rank 2. Then what is unlike that: a call that is captured, one that
fails, one on a communicator that nobody can read, an error that the library found by itself. Ranks 0 and 1 are also
connected by a reliable queue pair each, which carries what the counts say; rank 1's ends with an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from otelgpu.model.fabric import HardwareError, PortReadings, PortSeen, QueuePairReadings
from otelgpu.model.inputs import (
    Batch,
    ClockAnchor,
    FunctionNamed,
    Input,
    LossCounted,
    ProcessGone,
    ProcessSeen,
    Tick,
)
from otelgpu.model.resource import resource
from tests.unit.families.records import MS, UNIX_OFFSET_NS, Host, Sent, btf, joined, record

STEPS: Final = 7
FAMILIES: Final = ("cuda", "nccl", "verbs")
WORLD, PAIR = 0xAB1E_5EED_0000_0001, 0xAB1E_5EED_0000_0002  # hashes
WORLD_AT, PAIR_AT, UNREAD_AT = 0x7F10_0000, 0x7F20_0000, 0x7F30_0000
COMPUTE, SIDE = 0x51, 0x52  # streams
FLOAT32, BFLOAT16, SUM = 7, 9, 0
NO_TYPE = NO_REDUCTION = 255
FUNCTION, CAPTURED = 1, 3  # enum nccl_sequence
RESET, INIT, READY_TO_RECEIVE, READY_TO_SEND, ERROR = 0, 1, 2, 3, 6  # enum ibv_qp_state
WRITE, RECEIVE = 1, 5  # enum verbs_operation
SUCCESS, FLUSHED = 0, 5  # enum ibv_wc_status


@dataclass
class Rank(Host):
    """A rank's process: its calls of NCCL, CUDA and verbs."""

    rank: int = 0
    launched: Counter[tuple[int, str]] = field(default_factory=Counter)  # by communicator and function
    grouped: list[tuple[int, str]] | None = None
    groups: int = 0

    @property
    def tid(self) -> int:
        return self.tgid + 10

    # -- NCCL -------------------------------------------------------------------------------------

    def call(self, kind: str, api: str, at: int = 0, *, took_ns: int = MS // 10, **fields: Any) -> None:
        """One call; ``at``: the communicator's address, whose hash follows from that."""
        given = {
            **{"communicator": at, "hash": _HASHES.get(at, 0), "rank": self.rank if at in _HASHES else -1},
            **{"peer": -1, "datatype": NO_TYPE, "reduction": NO_REDUCTION, "device": self.rank},
            **{"api": btf("nccl").enumerators("nccl_api")[f"API_{api}"]},
        }
        self.tell("nccl_call", kind, self._head(self.tid, took_ns), **given | fields)

    def collective(
        self, api: str, at: int = WORLD_AT, *, count: int = 1 << 20, captured: bool = False, **fields: Any
    ) -> None:
        given: dict[str, Any] = {"count": count, "datatype": FLOAT32, "stream": SIDE}
        if at in _HASHES and api not in ("ncclSend", "ncclRecv"):
            given |= {"sequence": self.launched[at, api], "sequence_source": FUNCTION}
        if captured:
            given |= {"sequence_source": CAPTURED}
        elif self.grouped is not None:
            self.grouped.append((at, api))
            given |= {"group": self.groups}
        else:
            self.launched[at, api] += not fields.get("status")
        pair = api in ("ncclSend", "ncclRecv")
        self.call("NCCL_POINT_TO_POINT" if pair else "NCCL_COLLECTIVE", api, at, **given | fields)

    def begin_group(self) -> None:
        self.groups, self.grouped = self.groups + 1, []

    def end_group(self) -> None:
        assert self.grouped is not None
        self.launched.update(self.grouped)
        (at,) = {at for at, _ in self.grouped}
        self.call("NCCL_GROUP", "ncclGroupEnd", at, group=self.groups, extra=len(self.grouped))
        self.grouped = None

    def make(self, api: str, at: int, ranks: int, *, parent: int = 0) -> None:
        self.call("NCCL_COMMUNICATOR_CALL", api, at, took_ns=30 * MS, extra=ranks)
        self.know(api, at, ranks=ranks, parent=parent, created=1)

    def know(self, api: str, at: int, **fields: Any) -> None:
        """What is known of a communicator."""
        given = {"communicator": at, "hash": _HASHES[at], "rank": self.rank, "device": self.rank}
        number = btf("nccl").enumerators("nccl_api")[f"API_{api}"]
        self.tell(
            "nccl_communicator", "NCCL_COMMUNICATOR", self._head(self.tid, 0), api=number, **given | fields
        )

    def tell(self, struct: str, kind: str, head: dict[str, Any], **fields: Any) -> None:
        row = np.zeros(1, dtype=btf("nccl").dtype(struct))
        batch = Batch(family="nccl", kind=struct, records=row)
        for name, value in (head | {"kind": btf("nccl").enumerators("nccl_kind")[kind]}).items():
            batch.heads[name] = value
        for name, value in fields.items():
            row[name] = value
        self._submit(batch)

    # -- verbs ------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return 17 + self.rank

    @property
    def device(self) -> bytes:
        return b"mlx5_%d" % self.rank

    def verbs(self, kind: str, api: str = "", **fields: Any) -> None:
        if api:
            fields["api"] = btf("verbs").enumerators("verbs_api")[f"API_{api}"]
            fields["device"] = self.device
        self._submit(record("verbs", f"verbs_{kind}", self._head(self.tid, MS // 2), **fields))

    def pair(self, api: str, state: int, **fields: Any) -> None:
        given = {"queue_pair": 0x9000 + self.rank, "number": self.number, "type": 2, "state": state}
        self.verbs("queue_pair", api, **(given | fields))

    def connect(self, other: Rank) -> None:
        """To the other's queue pair, at the address of its port."""
        self.pair("ibv_create_qp", RESET)
        self.pair("ibv_modify_qp", INIT, port=1)
        to = {"peer_number": other.number, "peer_gid": np.frombuffer(_gid(other.rank), "u1"), "has_route": 1}
        self.pair("ibv_modify_qp", READY_TO_RECEIVE, port=1, local_gid_index=3, path_mtu=5, **to)
        timing = {"timeout": 14, "retries": 7, "rnr_retries": 7}
        self.pair("ibv_modify_qp", READY_TO_SEND, port=1, local_gid_index=3, path_mtu=5, **to, **timing)

    def count(self, *, writes: int, receives: int, **statuses: int) -> None:
        """What the queue pair has done since it was made; each write is of 1 MiB."""
        batch = record("verbs", "verbs_counts", self._head(self.tid, 0))
        key, counted = batch.records["key"], batch.records["counted"]
        batch.heads["duration_ns"] = batch.heads["time_ns"] - 1_000 * MS
        key["queue_pair"], key["tgid"], key["number"] = 0x9000 + self.rank, self.tgid, self.number
        counted["work_requests"][0, [WRITE, RECEIVE]] = writes, receives
        counted["bytes"][0, [WRITE, RECEIVE]] = writes << 20, receives * 4096
        counted["posts"], counted["signalled"] = writes + receives, writes
        done = statuses.get("success", 0), statuses.get("flushed", 0)
        counted["statuses"][0, [SUCCESS, FLUSHED]] = done
        counted["completions"], counted["completed_bytes"] = sum(done), receives * 4096
        counted["latencies"][0, 16], counted["latency_sum_ns"] = writes, writes * 100_000
        counted["observed_post_ns"] = counted["observed_poll_ns"] = batch.heads["duration_ns"]
        self._submit(batch)


_HASHES: Final = {WORLD_AT: WORLD, PAIR_AT: PAIR}


def _gid(rank: int) -> bytes:
    return bytes.fromhex("fe80000000000000") + bytes(7) + bytes((rank + 1,))


def job() -> list[Input]:
    """What the agent of the host was told."""
    ranks = [Rank(tgid=500 + rank, rank=rank, now_ns=1_000 * MS + rank * MS // 4) for rank in range(3)]
    for rank in ranks:
        rank.make("ncclCommInitRank", WORLD_AT, ranks=3)
    _connect(ranks[0], ranks[1])
    for number in range(STEPS):
        _step(ranks, late_ns=(220 if number == STEPS - 1 else 3) * MS)
    for rank in ranks[:2]:
        rank.make("ncclCommSplit", PAIR_AT, ranks=2, parent=WORLD_AT)
        rank.begin_group()
        rank.collective("ncclAllGather", PAIR_AT, datatype=BFLOAT16)
        rank.collective("ncclReduceScatter", PAIR_AT, datatype=BFLOAT16, reduction=SUM)
        rank.end_group()
    for rank, api, peer in ((ranks[0], "ncclSend", 2), (ranks[2], "ncclRecv", 0)):
        rank.begin_group()
        rank.collective(api, peer=peer, count=4096)
        rank.end_group()
    for rank in ranks:
        rank.synchronize(object=SIDE, tid=rank.tid, took_ns=4 * MS)
        rank.collective("ncclAllReduce", reduction=SUM, captured=True, stream=COMPUTE)
        rank.collective("ncclBroadcast", peer=0, count=512, stream=SIDE)
    ranks[2].collective("ncclAllReduce", UNREAD_AT, reduction=SUM)
    ranks[1].collective("ncclAllReduce", reduction=SUM, status=6)
    ranks[1].know("ncclCommGetAsyncError", WORLD_AT, ranks=3, async_error=6)
    ranks[1].pair("ibv_modify_qp", ERROR)
    ranks[1].verbs("event", "ibv_get_async_event", object=0x9001, event=1, number=18)
    ranks[0].count(writes=96, receives=8, success=104)
    ranks[1].count(writes=96, receives=8, success=100, flushed=4)
    for rank in ranks:
        rank.call("NCCL_COMMUNICATOR_CALL", "ncclCommDestroy", WORLD_AT)
        rank.know("ncclCommDestroy", WORLD_AT, ranks=3, ended=1)
    ranks[0].pair("ibv_destroy_qp", READY_TO_SEND, destroyed=1)
    return list(_told(ranks))


def _connect(*pair: Rank) -> None:
    for rank, other in (pair, pair[::-1]):
        given = {"region": 0xA000, "address": 0x7E00_0000, "bytes": 1 << 30, "dmabuf": 1}
        rank.verbs("region", "ibv_reg_dmabuf_mr", **given)
        rank.connect(other)
    for rank in pair:
        rank.count(writes=32, receives=8, success=30)
    sent: dict[str, Any] = {
        "queue_pair": 0x9000,
        "number": 17,
        "id": 0xBEEF,
        "bytes": 1 << 20,
        "operation": WRITE,
    }
    pair[0].verbs("transfer", **sent)


def _step(ranks: list[Rank], late_ns: int) -> None:
    """Upload, forward and backward, the sum of the gradients, the optimizer; the loss is read.

    Each rank is later than the one before by ``late_ns``, for which the others wait.
    """
    begin_ns = max(rank.now_ns for rank in ranks) + 500 * MS
    for rank in ranks:
        rank.now_ns = begin_ns + rank.rank * late_ns
        rank.copy(1 << 20, tid=rank.tid, stream=COMPUTE)
        rank.launch(0x1000, times=2, tid=rank.tid, stream=COMPUTE)
        rank.collective("ncclAllReduce", reduction=SUM)
        waited_ns = 5 * MS + (ranks[-1].rank - rank.rank) * late_ns
        rank.synchronize(object=SIDE, tid=rank.tid, took_ns=waited_ns)
        rank.launch(0x2000, times=10, tid=rank.tid, stream=COMPUTE)
        rank.copy(4, tid=rank.tid, detail=2, stream=COMPUTE)
        rank.synchronize(object=COMPUTE, tid=rank.tid, took_ns=2 * MS)


def _told(ranks: list[Rank]) -> Iterator[Input]:
    """In the order of submission, a tick every 200 ms, and what the sensors read."""
    yield ClockAnchor(monotonic_ns=5, unix_ns=5 + UNIX_OFFSET_NS)
    for rank in ranks:
        described = resource({"service.name": "training", "process.pid": rank.tgid, "rank": rank.rank})
        yield ProcessSeen(tgid=rank.tgid, time_ns=0, resource=described)
        for address, name in ((0x1000, "forward(float*)"), (0x2000, "adam(float*)")):
            yield FunctionNamed(tgid=rank.tgid, address=address, name=name, known=True)
    for number in (0, 1):
        yield _port(number)
        yield _reading(number, 1_001 * MS, 0)
    sent = sorted((sent for rank in ranks for sent in rank.sent), key=lambda sent: sent.submitted_ns)
    next_ns, waiting = 1_200 * MS, list[Sent]()
    for each in sent:
        while each.submitted_ns >= next_ns:
            yield from joined([one.batch for one in waiting])
            waiting.clear()
            yield Tick(time_ns=next_ns)
            next_ns += 200 * MS
        waiting.append(each)
    yield from joined([one.batch for one in waiting])
    end_ns = sent[-1].submitted_ns + MS
    yield QueuePairReadings(
        time_ns=end_ns, device="mlx5_0", port=1, number=17, tgid=500, values={"rdma_write": 96}
    )
    for number in (0, 1):
        yield _reading(number, end_ns, 1 << 20)
    yield LossCounted(family="verbs", reason="ring_full", count=2)
    yield Tick(time_ns=end_ns)
    lost = "GPU has fallen off the bus."
    yield HardwareError(time_ns=end_ns, kind="xid", code=79, pci_bus_id="0000:cb:00", tgid=501, message=lost)
    for rank in ranks:
        yield ProcessGone(tgid=rank.tgid, time_ns=end_ns + MS)
    yield Tick(time_ns=end_ns + 10_000 * MS)


def _port(number: int) -> PortSeen:
    return PortSeen(
        time_ns=1,
        device=f"mlx5_{number}",
        port=1,
        state="ACTIVE",
        link_layer="Ethernet",
        rate_bits_per_s=200 * 10**9,
        driver="mlx5_core",
        gids={3: f"fe80::{number + 1}"},
    )


def _reading(number: int, time_ns: int, moved: int) -> PortReadings:
    values = {
        "port_xmit_data": 1000 + moved // 4,
        "port_rcv_data": moved // 4,
        "out_of_sequence": moved >> 18,
    }
    return PortReadings(time_ns=time_ns, device=f"mlx5_{number}", port=1, values=values)
