"""Device work → spans with device times under the host call's parent, and metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.engine import names
from otelgpu.engine.folding import Parents
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.families.gpu.cuda.signals import SIGNALS
from otelgpu.families.gpu.device_time import spans as device_time
from otelgpu.families.gpu.device_time.spans import (
    SAMPLED,
    Sampling,
    device_spans,
    first_of_each,
    measure_activities,
)
from otelgpu.model.device_work import ACTIVITY, DEVICE_WORK, DeviceWork, Work
from otelgpu.model.operations import OperationKind
from tests.unit.model.builders import LLM, MS, Row, calls, read_out


class Decoder:
    """As much of an OperationDecoder as names need."""

    apis: dict[int, str] = {1: "cudaLaunchKernel"}  # noqa: RUF012


VOCABULARY = Vocabulary(
    families=[(Decoder(), SIGNALS)],  # type: ignore[list-item]
    kernels=["unknown", "void flash_fwd<64>(float*)"],
    short_kernels=["unknown", "flash_fwd"],
)
PARENTS = Parents(
    trace_id=np.arange(32, dtype=np.uint8).reshape(2, 16),
    span_id=np.arange(1, 17, dtype=np.uint8).reshape(2, 8),
    flags=np.array([1, 0x101], dtype=np.uint32),
)


def work(rows: int = 1, **columns: Any) -> DeviceWork:
    """Kernels of process 100, launched by thread 101 at 10 ms, begun on the device 1 s later, 1 ms apart."""
    made = np.zeros(rows, dtype=DEVICE_WORK)
    made["start_ns"], made["tgid"], made["tid"], made["kind"] = 10 * MS, 100, 101, OperationKind.LAUNCH
    made["device_start_ns"], made["duration_ns"] = 1010 * MS + np.arange(rows) * MS, 5000
    made["work"], made["name"], made["correlation"] = Work.KERNEL, 1, np.arange(7, 7 + rows)
    made["sampled"], made["stream_id"], made["stream"] = 1_000_000, 13, 0xABC
    for column, value in columns.items():
        made[column] = value
    return made


def spans(rows: DeviceWork, group: list[int] | None = None) -> list[Row]:
    return read_out(
        device_spans(
            rows,
            np.array(group or [0] * len(rows), dtype=np.int64),
            PARENTS,
            {100: LLM},
            VOCABULARY,
            seed=7,
            unix_offset_ns=1_000_000 * MS,
        )
    )


def test_a_kernels_span_has_device_times_and_its_short_name() -> None:
    (span,) = spans(work(), [1])
    assert (span.name, span["cuda.kernel.name"]) == ("flash_fwd", "void flash_fwd<64>(float*)")
    assert span.start_ns == 1_001_010 * MS
    assert span.end_ns - span.start_ns == 5000
    assert (span.trace_id, span.parent_id) == (bytes(range(16, 32)).hex(), bytes(range(9, 17)).hex())
    assert span.flags == 0x101
    assert (span["cuda.device.index"], span["cuda.stream"], span["cuda.stream.id"]) == (0, 0xABC, 13)
    assert (span["cuda.correlation.id"], span[names.THREAD_ID], span[SAMPLED]) == (7, 101, 1.0)
    assert span["cuda.call.delay"] == 1.0
    assert span.get("cuda.graph.node") is None


def test_kernels_of_a_graph_say_which_node_they_are() -> None:
    reported = spans(work(2, graph_node=[0, 1005], graph=[0, 3], sampled=250_000))
    assert [span.get("cuda.graph.node") for span in reported] == [None, 1005]
    assert [span.get("cuda.graph.id") for span in reported] == [None, 3]
    assert reported[0][SAMPLED] == pytest.approx(0.25)


def test_copies_and_sets_say_how_much() -> None:
    reported = spans(work(2, work=[Work.COPY, Work.SET], size_bytes=[4096, 512]))
    assert {(span.name, span["cuda.size"]) for span in reported} == {("memcpy", 4096), ("memset", 512)}


def test_nodes_of_one_launch_that_begin_together_have_ids_of_their_own() -> None:
    reported = spans(work(3, device_start_ns=5, correlation=7, graph_node=[1, 2, 3]))
    assert len({span.span_id for span in reported}) == 3


def test_the_earliest_of_each_parent_are_reported() -> None:
    rows = work(6, device_start_ns=[5, 1, 3, 2, 4, 9])
    kept = first_of_each(rows, np.array([0, 0, 0, 1, 1, 0]), limit=2)
    assert kept.tolist() == [False, True, True, True, True, False]
    assert first_of_each(work(0), np.zeros(0, np.int64), limit=2).tolist() == []


def points(metrics: Metrics, name: str) -> list[Any]:
    data, _ = metrics.read(0)
    found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.name == name]
    return [point for m in found for point in (m.histogram.data_points or m.sum.data_points)]


def test_kernels_alone_make_the_histogram_of_durations() -> None:
    rows = np.zeros(3, dtype=ACTIVITY)
    rows["work"], rows["duration_ns"] = [Work.KERNEL, Work.COPY, Work.KERNEL], [5000, 1, 15_000]
    metrics = Metrics(0)
    measure_activities(metrics, rows, lambda _: LLM)
    (point,) = points(metrics, "gpu.cuda.kernel.duration")
    assert (point.count, point.sum) == (2, pytest.approx(20e-6))
    bounds = device_time.KERNEL_DURATION.buckets
    assert [bounds[i] for i, count in enumerate(point.bucket_counts) if count] == [5e-6, 2e-5]


def test_calls_are_counted_by_whether_they_were_measured() -> None:
    metrics, sampling = Metrics(0), Sampling()
    rows = calls(5, kind=[1, 1, 3, 6, 7], tgid=[100, 100, 100, 100, 200])
    reported = np.array([7, 0, 8, 0, 0], np.uint64)
    sampling.measure(metrics, rows, reported, lambda _: LLM)
    found = {
        point.attributes[0].value.string_value: point.as_int
        for point in points(metrics, "gpu.cuda.device_time.calls")
    }
    # The synchronisation makes no work; process 200 measures nothing.
    assert found == {"true": 2, "false": 1}
    sampling.forget_process(100)
    sampling.measure(metrics, rows, np.zeros(5, np.uint64), lambda _: LLM)
    (true,) = [p for p in points(metrics, "gpu.cuda.device_time.calls") if p.as_int == 2]
    assert true.attributes[0].key == SAMPLED
