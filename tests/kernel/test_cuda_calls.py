"""N calls into the fake library, N prime, give exactly N records with the right contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind
from tests.kernel.observing import PROBED, Watch, probed
from tests.rig import CudaClientResult, start_cuda_client
from tests.rig.cuda_client import CudaClientOptions

COPY_BYTES = 4096  # the client's default


def observe_client(watching: Watch, options: CudaClientOptions) -> CudaClientResult:
    with start_cuda_client(**options) as client:
        watching.observe(client.pid)
        return watching.during(client.finish)


@pytest.mark.parametrize(("calls", "threads"), [(23, 1), (101, 5)])
@pytest.mark.parametrize("sessions", [True, False])
def test_every_call_of_every_function_gives_one_record(
    watch: Callable[..., Watch], sessions: bool, calls: int, threads: int
) -> None:
    watching = watch(sessions=sessions)
    said = observe_client(watching, {"calls": calls, "functions": ("all",), "threads": threads})
    made = probed(dict(said.calls))
    assert Counter(made.values())[calls] >= 10
    assert watching.calls(said.pid) == made
    assert watching.total("cuda", "submitted") == sum(watching.calls().values())
    assert watching.total("cuda", "ring_full") == 0


def test_launches_report_grid_block_shared_memory_and_stream(watching: Watch) -> None:
    observe_client(watching, {"calls": 23, "functions": ("cudaLaunchKernel", "cudaLaunchKernelExC")})
    configurations = Counter(
        (
            watching.api_names()[int(record["api"])],
            tuple(record["grid"].tolist()),
            tuple(record["block"].tolist()),
            int(record["shared_bytes"]),
        )
        for record in watching.records("cuda_launch")
    )
    assert configurations == {
        ("cudaLaunchKernel", (16, 2, 1), (32, 4, 2), 1024): 12,
        ("cudaLaunchKernel", (8, 1, 1), (128, 1, 1), 0): 11,
        ("cudaLaunchKernelExC", (4, 5, 6), (64, 2, 1), 2048): 23,
    }
    streams = set(watching.column("cuda_launch", "stream").tolist())
    assert len(streams) == 1 and 0 not in streams


def test_copies_report_bytes_direction_and_stream(watching: Watch) -> None:
    observe_client(watching, {"calls": 19, "functions": ("cudaMemcpy", "cudaMemcpyAsync")})
    copies = watching.records("cuda_copy")
    seen = Counter(
        (watching.api_names()[int(c["api"])], int(c["bytes"]), int(c["detail"]), bool(c["stream"]))
        for c in copies
    )
    assert seen == {
        ("cudaMemcpyAsync", COPY_BYTES, 1, True): 19,  # cudaMemcpyHostToDevice
        ("cudaMemcpy", COPY_BYTES, 2, False): 19,  # cudaMemcpyDeviceToHost
    }
    device = set(watching.column("cuda_allocation", "object").tolist())
    ends = [c["object"] if c["detail"] == 1 else c["other"] for c in copies]
    assert {int(end) for end in ends} == device


def test_allocations_and_frees_report_the_same_addresses(watching: Watch) -> None:
    observe_client(watching, {"calls": 17, "functions": ("cudaMalloc", "cudaFree")})
    allocated = watching.column("cuda_allocation", "object")
    assert watching.column("cuda_allocation", "bytes").tolist() == [COPY_BYTES] * 17
    assert 0 not in allocated
    assert Counter(allocated.tolist()) == Counter(watching.column("cuda_free", "object").tolist())


def test_a_call_that_fails_reports_its_code(watching: Watch) -> None:
    failing = "cudaMemcpyAsync:3:700,cudaLaunchKernel:5:9,cudaMalloc:2:2,cudaStreamSynchronize:7:999"
    said = observe_client(
        watching, {"calls": 13, "functions": ("all",), "env": {"FAKE_CUDART_FAIL": failing}}
    )
    seen: dict[str, Counter[int]] = {}
    for item in watching.inputs:
        if isinstance(item, Batch) and item.kind == "cuda_call":
            for record in item.records[item.records["status"] != 0]:
                seen.setdefault(watching.api_names()[int(record["api"])], Counter())[
                    int(record["status"])
                ] += 1
    assert seen == {name: dict(codes) for name, codes in said.failures.items() if name in PROBED}
    assert seen["cudaLaunchKernel"] == {9: 1}
    assert [int(r["object"]) for r in watching.records("cuda_allocation") if r["status"]] == [0]


def test_times_lie_between_the_client_s_own(watching: Watch) -> None:
    said = observe_client(watching, {"calls": 53, "functions": ("all",), "times": True})
    heads = np.concatenate(
        [item.heads for item in watching.inputs if isinstance(item, Batch) and item.family == "cuda"]
    )
    heads = heads[np.argsort(heads["time_ns"])]
    before = [time_ns for name, time_ns in said.times if name in PROBED]
    # One thread: a call starts after the client noted that it would, and ends before the next note.
    notes = np.array([time_ns for _, time_ns in said.times] + [said.end_ns], dtype=np.uint64)
    following = notes[np.searchsorted(notes, np.array(before, dtype=np.uint64), side="right")]
    assert len(heads) == len(before)
    assert (heads["time_ns"] >= np.array(before, dtype=np.uint64)).all()
    assert (heads["time_ns"] + heads["duration_ns"] <= following).all()
    returned = heads["returned"] == 1
    assert (heads["duration_ns"] > 0).tolist() == returned.tolist()
    assert heads["kind"][~returned].tolist() == [OperationKind.EVENT] * (~returned).sum()


def test_a_wait_lasts_as_long_as_the_device_works(watching: Watch) -> None:
    kernel_us = 3000
    observe_client(
        watching,
        {
            "calls": 7,
            "functions": ("cudaLaunchKernel", "cudaStreamSynchronize"),
            "env": {"FAKE_CUDART_KERNEL_US": str(kernel_us)},
        },
    )
    launches = [int(r["head"]["duration_ns"]) for r in watching.records("cuda_launch")]
    waits = [int(r["head"]["duration_ns"]) for r in watching.records("cuda_synchronization")]
    assert len(waits) == 7
    assert min(waits) > kernel_us * 1000 / 2
    assert sorted(launches)[3] < kernel_us * 1000 / 2  # a launch does not wait


def test_each_thread_s_calls_carry_its_own_number(watching: Watch) -> None:
    said = observe_client(watching, {"calls": 101, "threads": 5})
    by_thread = Counter(int(record["head"]["tid"]) for record in watching.records("cuda_launch"))
    assert sorted(by_thread.values()) == [20, 20, 20, 20, 21]
    assert said.pid in by_thread  # the first share is the main thread's


@pytest.mark.parametrize("launch", ["stub", "handle"])
def test_kernels_are_named_whether_launched_by_stub_or_by_handle(
    watching: Watch, launch: Literal["stub", "handle"]
) -> None:
    observe_client(watching, {"calls": 23, "launch": launch})
    names = watching.names()
    launched = Counter(names[int(a)].name for a in watching.column("cuda_launch", "function"))
    assert launched == {
        "flash_fwd(float const*, float*, int)": 12,
        "void rms_norm<float, 128>(float const*, float*, int)": 11,
    }
    assert all(answer.known for answer in names.values())
