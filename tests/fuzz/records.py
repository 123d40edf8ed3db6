"""Fuzz targets of records: a fuzzer's bytes as what the rings of families nccl, cuda and verbs hold, in any order.

An input is a byte of what comes next, then a record's bytes, cut off or padded; or a moment, a loss, an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

import numpy as np

from otelgpu.elf.btf import Btf
from otelgpu.engine.pipeline import Pipeline
from otelgpu.engine.registry import families
from otelgpu.kernel.loader import read_image
from otelgpu.model.fabric import PortReadings, PortSeen
from otelgpu.model.inputs import Batch, Input, LossCounted, ProcessGone, Tick
from otelgpu.model.resource import resource
from tests.golden.training_job import job

COLLECTIVE_STRUCTS: Final = (("nccl", "nccl_call"), ("nccl", "nccl_communicator"), ("cuda", "cuda_call"))
VERBS_STRUCTS: Final = tuple(
    ("verbs", f"verbs_{kind}") for kind in ("queue_pair", "region", "object", "event", "counts", "transfer")
)
TICK, GONE, LOST, PORT = 16, 17, 18, 19
MOST_RECORDS: Final = 100
MOST_SPANS: Final = 64  # that one record can make: of a call, its collective, its wait, a step, a window
MOST_POINTS: Final = 400  # data points that one record can make: a series for each counter of a queue pair
_MOMENT_NS: Final = 250_000_000


@cache
def _btf(family: str) -> Btf:
    return read_image(family).btf


def _inputs(data: bytes, structs: Sequence[tuple[str, str]]) -> Iterator[Input]:
    position, now_ns, count = 0, 1_000_000_000, 0
    drained: list[tuple[int, bytes]] = []  # of one kind
    while position < len(data) and count < MOST_RECORDS:
        what, position, count = data[position], position + 1, count + 1
        if what < len(structs):
            size = _btf(structs[what][0]).dtype(structs[what][1]).itemsize
            if drained and drained[-1][0] != what:
                yield from _batch(drained, structs)
            drained.append((what, data[position : position + size].ljust(size, b"\0")))
            position += size
            continue
        yield from _batch(drained, structs)
        value = data[position] if position < len(data) else 0
        position += 1
        now_ns += value * _MOMENT_NS
        if what == GONE:
            yield ProcessGone(tgid=500 + value % 4, time_ns=now_ns)
        elif what == LOST:
            yield LossCounted(family=structs[0][0], reason="ring_full", count=value)
        elif what == PORT:
            device = f"mlx5_{value % 2}"
            gids = {3: f"fe80::{value % 2 + 1}"}
            state = {"state": "ACTIVE", "link_layer": "Ethernet", "gids": gids}
            yield PortSeen(time_ns=now_ns, device=device, port=1, **state)  # type: ignore[arg-type]
            values = {"out_of_sequence": now_ns >> 20}
            yield PortReadings(time_ns=now_ns, device=device, port=1, values=values)
        else:
            yield Tick(time_ns=now_ns)
    yield from _batch(drained, structs)


def _batch(drained: list[tuple[int, bytes]], structs: Sequence[tuple[str, str]]) -> Iterator[Batch]:
    """Neighbours of one kind together, as a drain gives them."""
    if drained:
        family, kind = structs[drained[0][0]]
        content = b"".join(content for _, content in drained)
        drained.clear()
        yield Batch(family=family, kind=kind, records=np.frombuffer(content, _btf(family).dtype(kind)).copy())


def _run(data: bytes, structs: Sequence[tuple[str, str]]) -> None:
    """What comes out is bounded by what went in, and losses only grow."""
    names = {family for family, _ in structs}
    chosen = {name: family for name, family in families().items() if name in names}
    pipeline = Pipeline(
        chosen, {name: _btf(name) for name in chosen}, seed=1, own=resource({}), start_unix_ns=0
    )
    records = spans = 0
    losses: dict[tuple[str, str], int] = {}
    for item in _inputs(data, structs):
        records += len(item.records) if isinstance(item, Batch) else 0
        spans += sum(map(len, pipeline.feed(item)))
        now = dict(pipeline.summary.losses)
        assert all(now[key] >= count >= 0 for key, count in losses.items())
        losses = now
    spans += sum(map(len, pipeline.finish()))
    _, points = pipeline.read_metrics()
    assert spans <= records * MOST_SPANS, (spans, records)
    assert points <= 64 + records * MOST_POINTS, (points, records)


def collectives(data: bytes) -> None:
    """Calls of NCCL and CUDA, and communicators."""
    _run(data, COLLECTIVE_STRUCTS)


def verbs(data: bytes) -> None:
    """Queue pairs, memory, events, counts, work requests."""
    _run(data, VERBS_STRUCTS)


def _seed(structs: Sequence[tuple[str, str]], choose: Callable[[int], bool], most: int) -> bytes:
    """The golden job's records, with a moment after some of them."""
    found = bytearray()
    count = 0
    for item in job():
        if isinstance(item, Batch) and (item.family, item.kind) in structs:
            what = structs.index((item.family, item.kind))
            for row in item.records:
                if choose(int(row["head"]["tgid"])) and count < most:
                    found += bytes((what,)) + row.tobytes()
                    count += 1
        elif isinstance(item, Tick):
            found += bytes((TICK, 1))
    return bytes(found + bytes((GONE, 0, TICK, 255)))


def collective_seeds() -> tuple[bytes, ...]:
    """The beginning, then collectives of a rank whose records were lost before."""
    return (
        _seed(COLLECTIVE_STRUCTS, lambda _: True, 36),
        bytes((LOST, 1)) + _seed(COLLECTIVE_STRUCTS[:2], lambda tgid: tgid == 501, 16),
    )


def verbs_seeds() -> tuple[bytes, ...]:
    """With ports and without."""
    ports = bytes((PORT, 0, PORT, 1))
    return (
        ports + _seed(VERBS_STRUCTS, lambda _: True, 60) + ports,
        _seed(VERBS_STRUCTS, lambda tgid: tgid == 501, 60),
    )
