"""Ring memory as a busy server's kernel would have filled it, and the requests that the records belong to.

200 kernels, 16 threads, 1 000 requests open at a time, kinds mixed: 78 % launches, 12 % copies, 5 % waits,
4 % allocations and frees, 1 % graph launches. The grid of each launch is random, which is the worst case; or
launches repeat a number of distinct ones, as those of a model do.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from otelgpu.engine.contract import Family
from otelgpu.engine.facts import TrafficParsed
from otelgpu.engine.services import Services
from otelgpu.kernel.loader import Image
from otelgpu.kernel.ring import Ring
from otelgpu.model.exchange import Endpoint, Exchange, ThreadAssignment
from otelgpu.model.inputs import Batch

RING_BYTES = 8 << 20
THREADS = 16
REQUESTS = 1000
KERNELS = 200
_KINDS = (  # kind, function, share of the calls
    ("CUDA_LAUNCH", "cudaLaunchKernel", 0.78),
    ("CUDA_COPY", "cudaMemcpyAsync", 0.12),
    ("CUDA_SYNCHRONIZATION", "cudaStreamSynchronize", 0.05),
    ("CUDA_ALLOCATION", "cudaMalloc", 0.02),
    ("CUDA_FREE", "cudaFree", 0.02),
    ("CUDA_GRAPH_LAUNCH", "cudaGraphLaunch", 0.01),
)
_RECORD = "cuda_call"


class RingMemory:
    """A BPF ring without a kernel: the same pages in a memfd, the data mapped twice by writing it twice."""

    def __init__(self, size: int = RING_BYTES) -> None:
        self._size = size
        self._fd = os.memfd_create("ring")
        os.ftruncate(self._fd, 2 * mmap.PAGESIZE + 2 * size)
        self._memory = mmap.mmap(self._fd, 0)
        self._bytes = np.frombuffer(self._memory, dtype=np.uint8)
        self._positions = self._bytes[: 2 * mmap.PAGESIZE].view("<u8")
        self.ring = Ring(self._fd, size, longest=mmap.PAGESIZE)

    def room(self, record_bytes: int) -> int:
        """How many records fit."""
        return self._size // (record_bytes + 8) - 1

    def fill(self, records: npt.NDArray[np.uint8]) -> None:
        """Put records, shape (n, bytes), into the empty ring, as ``bpf_ringbuf_submit`` leaves them."""
        framed = np.zeros((len(records), records.shape[1] + 8), dtype=np.uint8)
        framed[:, :4] = np.frombuffer(np.uint32(records.shape[1]).tobytes(), dtype=np.uint8)
        framed[:, 8:] = records
        position = int(self._positions[mmap.PAGESIZE // 8])
        start = position & (self._size - 1)
        flat = framed.reshape(-1)
        data = self._bytes[2 * mmap.PAGESIZE :]
        data[start : start + len(flat)] = flat  # runs into the second half where it wraps
        beyond = max(start + len(flat) - self._size, 0)
        data[:beyond] = flat[len(flat) - beyond :]
        self._positions[mmap.PAGESIZE // 8] = position + len(flat)


class Reported:
    """Facts of conversations that are put in from outside: requests without the cost of parsing HTTP."""

    def __init__(self) -> None:
        self.next = TrafficParsed()

    def opened(self, services: Services) -> Reported:
        """As family http's handler."""
        self._emit = services.emit
        return self

    def take(self, batch: Batch) -> None:
        taken, self.next = self.next, TrafficParsed()
        self._emit(taken)


def reported_family(reported: Reported) -> Family:
    """Family http, fed by hand."""
    return Family(name="http", open=reported.opened)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Records in ring order, and what their threads were doing: 1 000 requests that end after the last one."""

    records: npt.NDArray[np.uint8]  # (n, record bytes)
    assignments: Sequence[ThreadAssignment]
    exchanges: Sequence[Exchange]


def wave(
    image: Image,
    tgid: int,
    functions: Sequence[int],
    count: int,
    begin_ns: int,
    number: int,
    *,
    distinct_launches: int | None = None,
) -> Wave:
    """``count`` calls of ``tgid`` from ``begin_ns`` on, 1 µs apart, each by a thread that holds a request.

    ``distinct_launches``: how many combinations of function, grid, block and shared memory there are; None:
    each launch has a grid of its own.
    """
    rng = np.random.default_rng(number)
    btf = image.btf
    kinds, apis = btf.enumerators("cuda_kind"), btf.enumerators("cuda_api")
    chosen = rng.choice(len(_KINDS), size=count, p=[share for _, _, share in _KINDS])
    rows = np.zeros(count, dtype=btf.dtype(_RECORD))
    head = rows["head"]
    head["time_ns"] = np.uint64(begin_ns) + np.arange(count, dtype=np.uint64) * np.uint64(1000)
    head["duration_ns"] = rng.integers(500, 20_000, count)
    head["tgid"], head["tid"], head["returned"] = tgid, tgid + rng.integers(0, THREADS, count), 1
    head["kind"] = np.array([kinds[kind] for kind, _, _ in _KINDS])[chosen]
    rows["api"] = np.array([apis[f"API_{name}"] for _, name, _ in _KINDS])[chosen]
    rows["status"] = np.where(rng.random(count) < 0.001, 1, 0)
    rows["stream"] = rng.choice([0, 0x55AA_0000_1000, 0x55AA_0000_2000], count)
    for position, (kind, _, _) in enumerate(_KINDS):
        mine = np.flatnonzero(chosen == position)
        fields = _fields(kind, len(mine), functions, rng)
        if kind == "CUDA_LAUNCH" and distinct_launches is not None:
            fields = _repeated(functions, distinct_launches, len(mine), rng)
        for field, values in fields.items():
            rows[field][mine] = values
    assignments, exchanges = _requests(tgid, begin_ns, count, number)
    return Wave(records=rows.view(np.uint8).reshape(count, -1), assignments=assignments, exchanges=exchanges)


def _fields(kind: str, n: int, functions: Sequence[int], rng: np.random.Generator) -> dict[str, Any]:
    """What calls of a kind have of their own."""
    match kind:
        case "CUDA_LAUNCH":
            return {
                "function": rng.choice(np.array(functions, dtype=np.uint64), n),
                "grid": rng.integers(1, 64, (n, 3)),
                "block": (128, 1, 1),
                "shared_bytes": rng.choice([0, 49152], n),
            }
        case "CUDA_COPY":
            return {"bytes": rng.integers(1, 1 << 24, n), "detail": rng.integers(1, 3, n)}
        case "CUDA_ALLOCATION":
            addresses = 0x7F00_0000_0000 + np.arange(n) * 0x200000
            return {"object": addresses, "bytes": rng.integers(1, 1 << 24, n), "memory": 1}
        case "CUDA_FREE":
            return {"object": 0x7F00_0000_0000 + np.arange(n) * 0x200000, "memory": 1}
        case _:
            return {"object": 0x55AA_0000_1000}


def _repeated(
    functions: Sequence[int], distinct: int, n: int, rng: np.random.Generator
) -> dict[str, npt.NDArray[Any]]:
    """``n`` launches, each one of the same ``distinct`` ones in every wave."""
    model = np.random.default_rng(distinct)
    launches = _fields("CUDA_LAUNCH", distinct, functions, model) | {
        "block": np.stack([1 << model.integers(5, 11, distinct), *np.ones((2, distinct), int)], axis=1)
    }
    chosen = rng.integers(0, distinct, n)
    return {field: values[chosen] for field, values in launches.items()}


def _requests(
    tgid: int, begin_ns: int, count: int, number: int
) -> tuple[list[ThreadAssignment], list[Exchange]]:
    """Each thread serves its share of the requests one after the other; all are answered at the end."""
    end_ns = begin_ns + count * 1000
    each = REQUESTS // THREADS + 1
    assignments, exchanges = [], []
    for request in range(REQUESTS):
        tid, turn = tgid + request % THREADS, request // THREADS
        key = number * REQUESTS + request + 1
        start = begin_ns + turn * (count * 1000) // each
        stop = begin_ns + (turn + 1) * (count * 1000) // each
        assignments.append(ThreadAssignment(time_ns=start, tgid=tgid, tid=tid, exchange=key, begins=True))
        assignments.append(ThreadAssignment(time_ns=stop, tgid=tgid, tid=tid, exchange=key, begins=False))
        exchanges.append(_exchange(key, tgid, tid, start, end_ns))
    return assignments, exchanges


def _exchange(key: int, tgid: int, tid: int, start_ns: int, end_ns: int) -> Exchange:
    return Exchange(
        key=key,
        connection=key,
        ordinal=0,
        tgid=tgid,
        tid=tid,
        cgroup_id=1,
        start_ns=start_ns,
        request_end_ns=start_ns,
        first_byte_ns=end_ns - 1000,
        end_ns=end_ns,
        method="POST",
        path="/v1/embeddings",
        query_present=False,
        protocol_version="1.1",
        status_code=200,
        request_bytes=300,
        response_bytes=3000,
        server=Endpoint(address="127.0.0.1", port=8000),
        client=Endpoint(address="127.0.0.1", port=40000 + key % 20000),
        user_agent="bench",
        parent=None,
        error="",
        generation=None,
    )
