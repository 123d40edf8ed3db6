"""Records of family nccl become one trace per collective: through the whole pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from otelgpu.engine.pipeline import Pipeline
from otelgpu.engine.registry import families
from otelgpu.families.nccl.collectives import SETTLED_NS
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch, LossCounted, ProcessGone, ProcessSeen, Tick
from otelgpu.model.operations import OperationKind
from otelgpu.model.resource import resource
from tests.unit.families.nccl.collective_sessions import SECOND, read

RANKS, CALLS = 4, 5
_FAMILIES = {name: family for name, family in families().items() if name in ("cuda", "nccl")}
_BTF = {name: read_image(name).btf for name in _FAMILIES}


def pipeline() -> Pipeline:
    """One that has seen four processes make a communicator."""
    made = Pipeline(_FAMILIES, _BTF, seed=1, own=resource({}), start_unix_ns=0)
    for rank in range(RANKS):
        made.feed(ProcessSeen(tgid=100 + rank, time_ns=1, resource=resource({"process.pid": 100 + rank})))
        reported = record("nccl_communicator", rank, hash=0xABC, ranks=RANKS, created=1)
        reported["head"]["time_ns"] = 5
        made.feed(Batch(family="nccl", kind="nccl_communicator", records=reported))
    return made


def record(kind: str, rank: int, rows: int = 1, **fields: Any) -> Any:
    made = np.zeros(rows, dtype=_BTF["nccl"].dtype(kind))
    made["head"]["tgid"], made["head"]["tid"], made["head"]["returned"] = 100 + rank, 1000 + rank, 1
    made["communicator"], made["rank"] = 0x1000, rank
    for name, value in fields.items():
        made[name] = value
    return made


def all_reduces(rank: int, **fields: Any) -> Batch:
    rows = record("nccl_call", rank, CALLS, count=1 << 20, datatype=7, peer=-1, stream=7)
    rows["head"]["kind"], rows["head"]["duration_ns"] = OperationKind.COLLECTIVE, 5000
    rows["head"]["time_ns"] = SECOND + np.arange(CALLS) * 10**7 + rank * 10**6
    rows["hash"], rows["sequence"], rows["sequence_source"] = 0xABC, np.arange(CALLS), 1
    rows["api"] = _BTF["nccl"].enumerators("nccl_api")["API_ncclAllReduce"]
    for name, value in fields.items():
        rows[name] = value
    return Batch(family="nccl", kind="nccl_call", records=rows)


def spans_of(reported: Iterable[Any]) -> list[dict[str, Any]]:
    return [span for batch in reported for span in read(batch)]


def test_the_calls_of_all_ranks_are_reported_once_in_one_trace_each() -> None:
    made = pipeline()
    for rank in range(RANKS):
        made.feed(all_reduces(rank))
    spans = spans_of(made.feed(Tick(time_ns=2 * SECOND)))
    spans += spans_of(made.feed(Tick(time_ns=2 * SECOND + SETTLED_NS)))
    spans += spans_of(made.finish())
    by_trace: dict[str, list[str]] = {}
    for span in spans:
        by_trace.setdefault(span["trace"], []).append(span["name"])
    assert list(map(sorted, by_trace.values())) == [["AllReduce", *["ncclAllReduce"] * RANKS]] * CALLS
    assert made.metrics.value("nccl.calls") == RANKS * CALLS
    assert made.summary.losses == {}


def test_processes_that_ended_are_still_reported_by_name() -> None:
    made = pipeline()
    for rank in range(RANKS):
        made.feed(all_reduces(rank))
        made.feed(ProcessGone(tgid=100 + rank, time_ns=2 * SECOND))
    spans = spans_of(made.feed(Tick(time_ns=2 * SECOND))) + spans_of(made.finish())
    assert {span["pid"] for span in spans} == set(range(100, 100 + RANKS))


def test_a_loss_of_records_ends_the_agents_own_count() -> None:
    made = pipeline()
    made.feed(all_reduces(0, sequence_source=0))
    made.feed(LossCounted(family="nccl", reason="ring_full", count=1))
    spans = spans_of(made.feed(Tick(time_ns=2 * SECOND))) + spans_of(made.finish())
    assert {span["nccl.sequence.source"] for span in spans} == {"unknown"}
    assert made.summary.losses["nccl", "collectives_unnumbered"] == CALLS
