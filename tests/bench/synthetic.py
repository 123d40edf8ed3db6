"""Ring memory as a busy server's kernel would have filled it, and the requests that the records belong to.

200 kernels, 16 threads, 1 000 requests open at a time, kinds mixed: 78 % launches, 12 % copies, 5 % waits,
4 % allocations and frees, 1 % graph launches.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otelgpu.families import registry
from otelgpu.families.base import Family
from otelgpu.kernel.loader import Image
from otelgpu.kernel.ring import Ring
from otelgpu.model.exchange import Claim, Endpoint, Exchange
from otelgpu.model.inputs import Batch

RING_BYTES = 8 << 20
THREADS = 16
REQUESTS = 1000
KERNELS = 200
_SHARES = {
    "cuda_launch": 0.78,
    "cuda_copy": 0.12,
    "cuda_synchronization": 0.05,
    "cuda_allocation": 0.02,
    "cuda_free": 0.02,
    "cuda_graph_launch": 0.01,
}
_APIS = {
    "cuda_launch": "API_cudaLaunchKernel",
    "cuda_copy": "API_cudaMemcpyAsync",
    "cuda_synchronization": "API_cudaStreamSynchronize",
    "cuda_allocation": "API_cudaMalloc",
    "cuda_free": "API_cudaFree",
    "cuda_graph_launch": "API_cudaGraphLaunch",
}


class RingMemory:
    """A BPF ring without a kernel: the same pages in a memfd, the data mapped twice by writing it twice."""

    def __init__(self, size: int = RING_BYTES) -> None:
        self._size = size
        self._fd = os.memfd_create("ring")
        os.ftruncate(self._fd, 2 * mmap.PAGESIZE + 2 * size)
        self._memory = mmap.mmap(self._fd, 0)
        self._bytes = np.frombuffer(self._memory, dtype=np.uint8)
        self._positions = self._bytes[: 2 * mmap.PAGESIZE].view("<u8")
        self.ring = Ring(self._fd, size)

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


@dataclass(frozen=True, slots=True)
class Activity:
    """What the stand-in conversation learnt."""

    claims: Sequence[Claim] = ()
    exchanges: Sequence[Exchange] = ()


class Told:
    """A conversation whose activity is put in from outside: requests without the cost of parsing HTTP."""

    counters: dict[str, int] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.next = Activity()

    def feed(self, batch: Batch) -> Activity:
        taken, self.next = self.next, Activity()
        return taken

    def process_gone(self, tgid: int, time_ns: int) -> Activity:
        return Activity()

    def expire(self, now_ns: int) -> Activity:
        return Activity()


def told_family(told: Told) -> Family:
    """Family http, fed by hand."""
    return Family(name="http", open=lambda btf: told, signals=registry.families()["http"].signals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Records in ring order, and what their threads were doing: 1 000 requests that end after the last one."""

    records: npt.NDArray[np.uint8]  # (n, record bytes)
    claims: Sequence[Claim]
    exchanges: Sequence[Exchange]


def wave(image: Image, tgid: int, functions: Sequence[int], count: int, begin_ns: int, number: int) -> Wave:
    """``count`` calls of ``tgid`` from ``begin_ns`` on, 1 µs apart, each by a thread that holds a request."""
    rng = np.random.default_rng(number)
    btf = image.btf
    kinds = {name.lower(): value for name, value in btf.enumerators("cuda_kind").items()}
    apis = btf.enumerators("cuda_api")
    names = list(_SHARES)
    chosen = rng.choice(len(names), size=count, p=list(_SHARES.values()))
    raw = np.zeros((count, btf.dtype("cuda_launch").itemsize), dtype=np.uint8)
    times = np.uint64(begin_ns) + np.arange(count, dtype=np.uint64) * np.uint64(1000)
    threads = rng.integers(0, THREADS, count)
    for position, name in enumerate(names):
        mine = np.flatnonzero(chosen == position)
        rows = np.zeros(len(mine), dtype=btf.dtype(name))
        head = rows["head"]
        head["time_ns"] = times[mine]
        head["duration_ns"] = rng.integers(500, 20_000, len(mine))
        head["tgid"], head["tid"], head["returned"] = tgid, tgid + threads[mine], 1
        head["kind"] = kinds[name]
        rows["api"] = apis[_APIS[name]]
        rows["status"] = np.where(rng.random(len(mine)) < 0.001, 1, 0)
        _fill(name, rows, functions, rng)
        raw[mine] = rows.view(np.uint8).reshape(len(mine), -1)
    claims, exchanges = _requests(tgid, begin_ns, count, number)
    return Wave(records=raw, claims=claims, exchanges=exchanges)


def _fill(name: str, rows: npt.NDArray[np.void], functions: Sequence[int], rng: np.random.Generator) -> None:
    n = len(rows)
    if "stream" in (rows.dtype.names or ()):
        rows["stream"] = rng.choice([0, 0x55AA_0000_1000, 0x55AA_0000_2000], n)
    if name == "cuda_launch":
        rows["function"] = rng.choice(np.array(functions, dtype=np.uint64), n)
        rows["grid"] = rng.integers(1, 64, (n, 3))
        rows["block"] = (128, 1, 1)
        rows["shared_bytes"] = rng.choice([0, 49152], n)
    elif name == "cuda_copy":
        rows["bytes"] = rng.integers(1, 1 << 24, n)
        rows["direction"] = rng.integers(1, 3, n)
    elif name == "cuda_allocation":
        rows["bytes"] = rng.integers(1, 1 << 24, n)


def _requests(tgid: int, begin_ns: int, count: int, number: int) -> tuple[list[Claim], list[Exchange]]:
    """Each thread serves its share of the requests one after the other; all are answered at the end."""
    end_ns = begin_ns + count * 1000
    each = REQUESTS // THREADS + 1
    claims, exchanges = [], []
    for request in range(REQUESTS):
        tid, turn = tgid + request % THREADS, request // THREADS
        key = number * REQUESTS + request + 1
        start = begin_ns + turn * (count * 1000) // each
        stop = begin_ns + (turn + 1) * (count * 1000) // each
        claims.append(Claim(time_ns=start, tgid=tgid, tid=tid, exchange=key, held=True))
        claims.append(Claim(time_ns=stop, tgid=tgid, tid=tid, exchange=key, held=False))
        exchanges.append(_exchange(key, tgid, tid, start, end_ns))
    return claims, exchanges


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
