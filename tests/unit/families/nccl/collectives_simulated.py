"""A simulated NCCL: what its calls leave in records, and which collective each truly was."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.operations import OPERATION, OperationKind, Operations, SequenceSource

NCCL_APIS = {
    1: "ncclAllReduce",
    2: "ncclAllGather",
    3: "ncclSend",
    4: "ncclRecv",
    5: "ncclBroadcast",
    6: "ncclAllReduceConfig",
    7: "ncclBcast",
    8: "ncclReduceScatter",
}
CUDA_APIS = {
    1: "cudaStreamSynchronize",
    2: "cudaDeviceSynchronize",
    3: "cudaStreamBeginCapture",
    4: "cudaStreamEndCapture",
    5: "cudaLaunchKernel",
}
_CODES = {name: code for code, name in NCCL_APIS.items()}
_CUDA_CODES = {name: code for code, name in CUDA_APIS.items()}
_SAME = {"ncclAllReduceConfig": "ncclAllReduce", "ncclBcast": "ncclBroadcast"}


@dataclass
class Rank:
    """One rank of one communicator, in a process with a thread of its own."""

    rank: int
    ranks: int = 4
    hash: int = 0xC0FFEE
    tgid: int = 0
    tid: int = 0
    address: int = 0
    counts: bool = True  # keeps a count by function; else, of all operations
    readable: bool = True
    now_ns: int = 1_000_000
    records: list[tuple[np.void, int | None]] = field(default_factory=list)  # with the true number
    device_calls: list[np.void] = field(default_factory=list)
    launched: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    group: int = 0
    grouped: list[str] | None = None

    def __post_init__(self) -> None:
        self.tgid = self.tgid or 100 + self.rank
        self.tid = self.tid or self.tgid * 10
        self.address = self.address or 0x7F00_0000_0000 + self.rank * 4096

    def seen(self, *, created: bool = True, time_ns: int = 1, **fields: object) -> CommunicatorSeen:
        reported: dict[str, object] = {
            "tgid": self.tgid,
            "time_ns": time_ns,
            "address": self.address,
            "hash": self.hash,
            "rank": self.rank,
            "ranks": self.ranks,
            "created": created,
        }
        return CommunicatorSeen(**(reported | fields))  # type: ignore[arg-type]

    def call(
        self, name: str = "ncclAllReduce", *, status: int = 0, captured: bool = False, **columns: object
    ) -> None:
        """A call, 100 µs after the one before, that takes 10 µs."""
        self.now_ns += 100_000
        function = _SAME.get(name, name)
        pair = name in ("ncclSend", "ncclRecv")
        row = np.zeros(1, dtype=OPERATION)[0]
        row["start_ns"], row["duration_ns"], row["returned"] = self.now_ns, 10_000, 1
        row["tgid"], row["tid"], row["handle"] = self.tgid, self.tid, self.address
        row["kind"] = OperationKind.POINT_TO_POINT if pair else OperationKind.COLLECTIVE
        row["api"], row["status"], row["size_bytes"], row["stream"] = _CODES[name], status, 1 << 20, 7
        row["rank"], row["peer"], row["group"], row["device"] = (
            self.rank,
            -1,
            self.group * bool(self.inside),
            0,
        )
        if self.readable:
            row["communicator_hash"] = self.hash
            row["sequence_source"] = SequenceSource.FUNCTION if self.counts else SequenceSource.OPERATIONS
            row["sequence"] = self.launched[function] if self.counts else self.operations
            if pair and self.counts:
                row["sequence_source"], row["sequence"] = SequenceSource.UNKNOWN, 0
        for column, value in columns.items():
            row[column] = value
        true: int | None = None
        if not status and not captured:
            true = self.launched[function]
            if self.grouped is not None:
                true += self.grouped.count(function)
                self.grouped.append(function)
            else:
                self._launch([function])
        self.records.append((row, true))

    @property
    def inside(self) -> bool:
        return self.grouped is not None

    def _launch(self, functions: list[str]) -> None:
        self.launched.update(functions)
        self.operations += 1

    def begin_group(self) -> None:
        self.group += 1
        self.grouped = []

    def end_group(self) -> None:
        assert self.grouped is not None
        self._launch(self.grouped)
        self.grouped = None

    def device(self, name: str, *, duration_ns: int = 1_000, stream: int = 7) -> None:
        """A call of the CUDA runtime, by family 1."""
        self.now_ns += 20_000
        row = np.zeros(1, dtype=OPERATION)[0]
        synchronizes = name.endswith("Synchronize")
        row["kind"] = OperationKind.SYNCHRONIZATION if synchronizes else OperationKind.GRAPH
        row["start_ns"], row["duration_ns"], row["returned"] = self.now_ns, duration_ns, 1
        row["tgid"], row["tid"], row["family"], row["api"] = self.tgid, self.tid, 1, _CUDA_CODES[name]
        row["handle" if synchronizes else "stream"] = stream
        if name == "cudaDeviceSynchronize":
            row["handle"] = 0
        self.device_calls.append(row)
        self.now_ns += duration_ns

    def group_record(self, *, duration_ns: int = 0, calls: int = 1, sequence_source: int = 0) -> Operations:
        """Of the newest group, which ends ``duration_ns`` from now."""
        rows: Operations = np.zeros(1, dtype=OPERATION)
        rows["kind"], rows["tgid"], rows["tid"], rows["group"] = (
            OperationKind.GROUP,
            self.tgid,
            self.tid,
            self.group,
        )
        rows["start_ns"], rows["duration_ns"] = self.now_ns, duration_ns
        rows["sequence_source"] = sequence_source
        rows["extra"] = calls
        return rows

    def take(self) -> tuple[Operations, list[int | None]]:
        """The records since the last time, and their true numbers."""
        records, self.records = self.records, []
        return rows_of([row for row, _ in records]), [true for _, true in records]

    def take_device_calls(self) -> Operations:
        rows, self.device_calls = self.device_calls, []
        return rows_of(rows)


def rows_of(rows: list[np.void]) -> Operations:
    made: npt.NDArray[np.void] = np.zeros(len(rows), dtype=OPERATION)
    for position, row in enumerate(rows):
        made[position] = row
    return made
