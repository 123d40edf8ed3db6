"""The numbers of the table that ends a run, and the sums above operations."""

from __future__ import annotations

import io
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otelgpu.agent import Outcome
from otelgpu.cli.report import print_outcome
from otelgpu.engine import registry
from otelgpu.engine import summary as module
from otelgpu.engine.attribution.threads import AMBIGUOUS
from otelgpu.engine.operation_metrics import parts_of
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.engine.summary import Latencies, Summary
from otelgpu.engine.totals import Totals
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.exchange import Endpoint
from otelgpu.model.operations import OperationKind
from otelgpu.model.settings import SignalSettings
from tests.unit.families.records import btf
from tests.unit.model.builders import any_calls, calls, exchange, generation

CUDA = registry.families()["cuda"]
assert CUDA.operations is not None
OPENED = [(CUDA.operations.decoder(btf("cuda"), SignalSettings()), CUDA.operations.signals)]
API = btf("cuda").enumerators("cuda_api")
KERNELS = ["unknown", "void a<int>()", "b()"]
VOCABULARY = Vocabulary(families=OPENED, kernels=KERNELS, short_kernels=["unknown", "a", "b"])


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_are_interpolated(values: list[float]) -> None:
    latencies = Latencies()
    latencies.add(values)
    low, median, high = latencies.percentiles(0, 50, 100)
    assert (low, high) == (min(values), max(values))
    assert median == pytest.approx(statistics.median(values))
    p99 = statistics.quantiles(values, n=100, method="inclusive")[98]
    assert latencies.percentiles(99) == [pytest.approx(p99)]


def test_percentiles_of_nothing_are_not_a_number() -> None:
    assert all(math.isnan(value) for value in Latencies().percentiles(50, 99))


def test_only_the_newest_samples_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLES_KEPT", 3)
    latencies = Latencies()
    for some in ([0], [1, 2, 3, 4], [5, 6, 7]):
        latencies.add(some)
    assert (sorted(latencies.values), latencies.count) == ([5, 6, 7], 8)


def test_an_exchange_adds_to_the_requests() -> None:
    summary = Summary()
    summary.add_exchanges([exchange(generation=generation()), exchange(status_code=503)])
    summary.add_exchanges([exchange(generation=generation(output_tokens=None), error="capture_gap")])
    assert (summary.requests, summary.request_errors, summary.requests_incomplete) == (3, 1, 1)
    assert summary.output_tokens == 5
    counts = (summary.duration.count, summary.time_to_first_token.count, summary.time_per_output_token.count)
    assert (counts, summary.duration.values[0]) == ((3, 2, 1), pytest.approx(0.09))


def test_requests_are_counted_at_each_server() -> None:
    """Behind a proxy each is one at the proxy and one at the server behind it."""
    summary = Summary()
    for port, count in ((8443, 3), (8000, 2)):
        summary.add_exchanges([exchange(server=Endpoint(address="::1", port=port))] * count)
    summary.add_exchanges([exchange(server=Endpoint(address="10.0.0.1", port=80))])
    assert summary.servers == {"[::1]:8443": 3, "[::1]:8000": 2, "10.0.0.1:80": 1}
    assert summary.requests == summary.servers.total() == 6
    console = Console(width=120, record=True, file=io.StringIO())
    print_outcome(Outcome(summary=summary, exported={}, libraries=(), submitted={}, seconds=1), console)
    said = console.export_text()
    assert "Requests: 6 at 3 servers (0 failed)" in said
    assert [line.split()[-2:] for line in said.splitlines() if " at [" in line] == [["3", "│"], ["2", "│"]]


def test_many_servers_are_counted_within_bounds() -> None:
    summary = Summary()
    for port in range(1, 200):
        summary.add_exchanges([exchange(server=Endpoint(address="", port=port))])
    assert len(summary.servers) == module.SERVERS_KEPT + 1
    assert summary.servers[module.OTHER_SERVERS] == 199 - module.SERVERS_KEPT


def summed(rows: np.ndarray) -> Summary:
    summary = Summary()
    summary.add_operations(parts_of(rows, 0)[1], VOCABULARY)
    return summary


def test_operations_are_counted_by_how_they_were_tied_to_a_request() -> None:
    summary = Summary()
    summary.add_linked(np.array([3, 1, 3, 4], dtype=np.uint8))
    summary.add_linked(np.array([3, 2], dtype=np.uint8))
    assert summary.linked == 6
    assert summary.linked_by == {
        ContextSource.THREAD_CONTEXT: 1,
        ContextSource.OBI: 1,
        ContextSource.THREAD: 3,
        ContextSource.WAKEUP: 1,
    }


def test_operations_of_nobody_are_counted_by_whether_there_was_a_choice() -> None:
    summary = Summary()
    summary.add_unattributed(np.array([0, AMBIGUOUS, 0], dtype=np.int64))
    assert (summary.unattributed, summary.ambiguous) == (2, 1)


def test_kernels_are_counted_with_their_host_time() -> None:
    summary = summed(calls(4, name=[1, 2, 1, 0], duration_ns=[1, 10, 100, 1000]))
    assert summary.kernels == {"a": 2, "b": 1, "unknown": 1}
    assert summary.kernel_host_ns == {"a": 101, "b": 10, "unknown": 1000}
    assert summary.calls == {"cudaLaunchKernel": 4}


def test_kernels_of_one_short_name_add_up() -> None:
    vocabulary = Vocabulary(families=OPENED, kernels=KERNELS, short_kernels=["unknown", "same", "same"])
    summary = Summary()
    rows = calls(4, name=[1, 2, 1, 2], duration_ns=7)
    summary.add_operations(parts_of(rows, 0)[1], vocabulary)
    assert (summary.kernels, summary.kernel_host_ns) == ({"same": 4}, {"same": 28})


def test_kernels_that_are_named_later_are_counted_too() -> None:
    names = ["unknown", "a"]
    vocabulary = Vocabulary(families=OPENED, kernels=names, short_kernels=names)
    summary = Summary()
    for launched in ([1, 0], [1, 2, 2]):
        summary.add_operations(parts_of(calls(len(launched), name=launched, duration_ns=5), 0)[1], vocabulary)
        names.append(f"kernel{len(names)}")
    assert summary.kernels == {"unknown": 1, "a": 2, "kernel2": 2}
    assert summary.kernel_host_ns == {"unknown": 5, "a": 10, "kernel2": 10}


def test_copies_and_waits() -> None:
    kinds = [OperationKind.COPY, OperationKind.COPY, OperationKind.SYNCHRONIZATION]
    summary = summed(calls(3, kind=kinds, direction=[1, 2, 0], size_bytes=[10, 20, 0], duration_ns=5))
    assert summary.copies == {"host_to_device": 1, "device_to_host": 1}
    assert summary.copy_bytes == {"host_to_device": 10, "device_to_host": 20}
    assert (summary.waits, summary.wait_ns) == (1, 5)


def test_errors_are_named_and_those_of_unknown_result_are_none() -> None:
    summary = summed(
        calls(
            4,
            status=[2, 2, 98, 98],
            returned=[1, 1, 1, 0],
            api=[
                API[f"API_{name}"]
                for name in ("cudaLaunchKernel", "cudaLaunchKernel", "cudaMalloc", "cudaMalloc")
            ],
        )
    )
    assert summary.errors == {
        "cudaLaunchKernel: cudaErrorMemoryAllocation": 2,
        "cudaMalloc: cudaErrorInvalidDeviceFunction": 1,
    }


def test_no_operations_change_nothing() -> None:
    assert summed(calls(0)) == Summary()


@given(any_calls(), st.data())
def test_totals_by_group_are_the_sums_of_the_rows(rows: np.ndarray, data: st.DataObject) -> None:
    totals = Totals(OPENED)
    group = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))), np.int64)
    each = totals.by_group(rows, np.arange(len(rows)), len(rows))
    sums = totals.by_group(rows, group, 4)
    assert sums.shape == (4, len(totals))
    assert sums.tolist() == [each[group == g].sum(axis=0).tolist() for g in range(4)]


def test_totals_beyond_what_a_double_holds_are_exact() -> None:
    sizes = [2**53 + 1, 2**53 + 3, 1]
    rows = calls(3, kind=OperationKind.COPY, size_bytes=sizes)
    (sums,) = Totals(OPENED).by_group(rows, np.zeros(3, np.int64), 1).tolist()
    assert sum(sizes) in sums


def test_totals_leave_zeros_out() -> None:
    totals = Totals(OPENED)
    kinds = [OperationKind.LAUNCH, OperationKind.LAUNCH, OperationKind.SYNCHRONIZATION]
    rows = calls(3, kind=kinds, duration_ns=[1, 1, 9])
    sums = totals.by_group(rows, np.zeros(3, np.int64), 1)
    assert {a.key: a.values.tolist()[0] for a in totals.attributes(sums)} == {
        "cuda.launch.calls": 2,
        "cuda.synchronize.calls": 1,
        "cuda.synchronize.host.duration": 9e-9,
    }


def test_another_familys_rows_add_nothing() -> None:
    rows = calls(6, family=[1, 1, 1, 0, 1, 1], kind=[1, 3, 6, 1, 3, 6], size_bytes=7)
    sums = Totals(OPENED).by_group(rows, np.zeros(6, np.int64), 1)
    assert sums.tolist() == [[1, 0, 0, 0, 0, 0]]


def test_a_call_without_a_name_has_its_number() -> None:
    assert VOCABULARY.call_name(0, 999) == "api 999"
