"""The simulated device: what takes how long, how memory is kept, what is refused."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rig import build_fakes, run_cuda_client
from tests.unit.fakes.fake import (
    BAD_DIRECTION,
    BAD_FUNCTION,
    BAD_HANDLE,
    CAPTURE_UNSUPPORTED,
    HOST_TO_DEVICE,
    HOST_TO_HOST,
    INVALID_VALUE,
    KERNEL_NS,
    OUT_OF_MEMORY,
    SUCCESS,
    Device,
)

NOT_READY = 600
ATTEMPTS = 50


def is_busy(device: Device, stream: int) -> bool:
    """Whether work that was given to a stream is not done yet."""
    status = device.lib.cudaStreamQuery(ctypes.c_void_p(stream))
    assert status in (SUCCESS, NOT_READY)
    return bool(status == NOT_READY)


def mark(device: Device, stream: int) -> int:
    """An event in a stream: a point of the device's own time."""
    event = device.create("cudaEventCreate")
    device.timed("cudaEventRecord", event, stream)
    return event


def elapsed_ns(device: Device, start: int, end: int) -> int:
    """Between two events, as the device has it. The fake reports thousandths of milliseconds."""
    ms = ctypes.c_float()
    device.timed("cudaEventSynchronize", end)
    status = device.lib.cudaEventElapsedTime(ctypes.byref(ms), ctypes.c_void_p(start), ctypes.c_void_p(end))
    assert status == SUCCESS
    return round(ms.value * 1000) * 1000


def happens(observe: Callable[[], bool]) -> bool:
    """Whether something is seen that must not be impossible.

    A busy machine may keep this program from looking in time, not fifty times in a row; what a device that waits where
    it must not would hide is never seen.
    """
    return any(observe() for _ in range(ATTEMPTS))


def graph_of(device: Device, stream: int, kernels: int) -> int:
    """An executable graph: its kernels follow one another however busy the machine is."""
    assert device.lib.cudaStreamBeginCapture(ctypes.c_void_p(stream), 0) == SUCCESS
    for _ in range(kernels):
        assert device.launch(stream) == SUCCESS
    graph = ctypes.c_void_p()
    assert device.lib.cudaStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == SUCCESS
    return device.create("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0))


class TestTimeline:
    def test_synchronize_waits_until_the_stream_is_drained(self, device: Device) -> None:
        stream = device.create("cudaStreamCreate")
        start, start_ns = mark(device, stream), time.monotonic_ns()
        for _ in range(101):
            assert device.launch(stream) == SUCCESS
        end = mark(device, stream)
        device.timed("cudaStreamSynchronize", stream)
        assert time.monotonic_ns() - start_ns >= 101 * KERNEL_NS
        assert not is_busy(device, stream)
        assert elapsed_ns(device, start, end) >= 101 * KERNEL_NS

    def test_a_launch_does_not_wait(self, device: Device) -> None:
        stream = device.create("cudaStreamCreate")

        def busy_after_a_launch() -> bool:
            for _ in range(11):
                device.launch(stream)
            seen = is_busy(device, stream)
            device.timed("cudaStreamSynchronize", stream)
            return seen

        assert happens(busy_after_a_launch)

    def test_streams_run_side_by_side(self, device: Device) -> None:
        first, second = (device.create("cudaStreamCreate") for _ in range(2))
        graph = graph_of(device, first, 101)

        def overlap() -> bool:
            marks = []
            for stream in (first, second):
                start = mark(device, stream)
                device.timed("cudaGraphLaunch", graph, stream)
                marks += [start, mark(device, stream)]
            assert min(elapsed_ns(device, *marks[:2]), elapsed_ns(device, *marks[2:])) >= 101 * KERNEL_NS
            return elapsed_ns(device, marks[0], marks[3]) < 202 * KERNEL_NS

        assert happens(overlap)

    def test_the_default_stream_waits_for_all(self, device: Device) -> None:
        streams = [device.create("cudaStreamCreate") for _ in range(2)]
        ends = []
        for stream, kernels in zip(streams, (50, 100), strict=True):
            for _ in range(kernels):
                device.launch(stream)
            ends.append(mark(device, stream))
        device.launch(0)
        last = mark(device, 0)
        assert min(elapsed_ns(device, end, last) for end in ends) >= KERNEL_NS

    def test_an_event_that_was_not_recorded_has_come(self, device: Device) -> None:
        event = device.create("cudaEventCreate")
        assert device.lib.cudaEventQuery(ctypes.c_void_p(event)) == SUCCESS
        device.timed("cudaEventSynchronize", event)

    def test_event_synchronize_waits_for_what_came_before_the_record(self, device: Device) -> None:
        stream = device.create("cudaStreamCreate")
        start, start_ns = mark(device, stream), time.monotonic_ns()
        for _ in range(101):
            device.launch(stream)
        event = mark(device, stream)
        device.timed("cudaEventSynchronize", event)
        assert time.monotonic_ns() - start_ns >= 101 * KERNEL_NS
        assert device.lib.cudaEventQuery(ctypes.c_void_p(event)) == SUCCESS
        assert elapsed_ns(device, start, event) >= 101 * KERNEL_NS

    def test_event_synchronize_does_not_wait_for_what_comes_after_the_record(self, device: Device) -> None:
        stream = device.create("cudaStreamCreate")
        graph = graph_of(device, stream, 101)

        def busy_after_the_event() -> bool:
            event = mark(device, stream)
            device.timed("cudaGraphLaunch", graph, stream)
            device.timed("cudaEventSynchronize", event)
            seen = is_busy(device, stream)
            device.timed("cudaStreamSynchronize", stream)
            return seen

        assert happens(busy_after_the_event)

    def test_copies_take_their_bytes_over_the_bandwidth(self, device: Device) -> None:
        _, pointer = device.malloc(1 << 30)
        host = ctypes.create_string_buffer(16)
        arguments = (ctypes.c_void_p(pointer), host, ctypes.c_size_t(100_000_000), HOST_TO_DEVICE)
        start_ns = time.monotonic_ns()
        assert device.lib.cudaMemcpy(*arguments) == SUCCESS
        assert time.monotonic_ns() - start_ns >= 5_000_000  # 100 MB at 20 GB/s
        assert not is_busy(device, 0)
        start = mark(device, 0)
        assert device.lib.cudaMemcpyAsync(*arguments, None) == SUCCESS
        assert elapsed_ns(device, start, mark(device, 0)) >= 5_000_000

        def busy_after_an_asynchronous_one() -> bool:
            assert device.lib.cudaMemcpyAsync(*arguments, None) == SUCCESS
            seen = is_busy(device, 0)
            device.timed("cudaDeviceSynchronize")
            assert not is_busy(device, 0)
            return seen

        assert happens(busy_after_an_asynchronous_one)
        assert device.free(pointer) == SUCCESS

    def test_kernel_time_can_follow_the_grid(self) -> None:
        blocks = 16 * 2  # of the client's flash_fwd
        result = run_cuda_client(
            calls=1,
            functions=("cudaLaunchKernel", "cudaDeviceSynchronize"),
            env={"FAKE_CUDART_KERNEL_US_PER_BLOCK": "500"},
        )
        assert result.end_ns - result.start_ns >= blocks * 500_000

    def test_a_graph_takes_the_time_of_what_it_captured(self, device: Device) -> None:
        stream = device.create("cudaStreamCreate")
        executable = graph_of(device, stream, 101)
        assert not is_busy(device, stream)  # what is captured is not done

        def exact() -> bool:
            device.launch(
                stream
            )  # with which the stream is busy, so that the graph is not begun by this program
            start = mark(device, stream)
            device.timed("cudaGraphLaunch", executable, stream)
            took_ns = elapsed_ns(device, start, mark(device, stream))
            assert took_ns >= 101 * KERNEL_NS
            return took_ns == 101 * KERNEL_NS

        assert happens(exact)
        device.timed("cudaGraphExecDestroy", executable)
        assert device.lib.cudaGraphLaunch(ctypes.c_void_p(executable), None) == INVALID_VALUE

    def test_synchronizing_a_capturing_stream_ends_the_capture(self, device: Device) -> None:
        stream, graph = device.create("cudaStreamCreate"), ctypes.c_void_p()
        assert device.lib.cudaStreamBeginCapture(ctypes.c_void_p(stream), 0) == SUCCESS
        assert device.lib.cudaStreamSynchronize(ctypes.c_void_p(stream)) == CAPTURE_UNSUPPORTED
        assert device.lib.cudaStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 901


class TestMemory:
    def test_addresses_are_unique_and_unmapped(self, device: Device) -> None:
        pointers = [device.malloc(1000)[1] for _ in range(100)]
        assert len({pointer // 512 for pointer in pointers}) == 100
        lines = Path("/proc/self/maps").read_text().splitlines()
        mapped = [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in lines]
        assert not [pointer for pointer in pointers for start, end in mapped if start <= pointer < end]
        assert [device.free(pointer) for pointer in pointers] == [SUCCESS] * 100

    def test_free_refuses_what_is_not_allocated(self, device: Device) -> None:
        _, pointer = device.malloc(1)
        assert device.free(pointer + 1) == INVALID_VALUE
        assert [device.free(pointer), device.free(pointer)] == [SUCCESS, INVALID_VALUE]
        assert device.free(0) == SUCCESS

    def test_memory_ends_at_the_capacity_and_comes_back(self, device: Device) -> None:
        capacity = 16 << 30
        status, pointer = device.malloc(capacity)
        assert status == SUCCESS
        assert device.malloc(1) == (OUT_OF_MEMORY, 0)
        assert device.free(pointer) == SUCCESS
        assert device.malloc(capacity + 1) == (OUT_OF_MEMORY, 0)
        assert device.malloc((1 << 64) - 1) == (OUT_OF_MEMORY, 0)
        assert device.malloc(0) == (SUCCESS, 0)

    def test_host_to_host_is_copied(self, device: Device) -> None:
        source, target = ctypes.create_string_buffer(b"prefill", 8), ctypes.create_string_buffer(8)
        assert device.lib.cudaMemcpy(target, source, ctypes.c_size_t(8), HOST_TO_HOST) == SUCCESS
        assert target.value == b"prefill"

    def test_a_copy_with_bad_arguments_is_refused(self, device: Device) -> None:
        host = ctypes.create_string_buffer(8)
        assert device.lib.cudaMemcpy(host, host, ctypes.c_size_t(8), 5) == BAD_DIRECTION
        assert device.lib.cudaMemcpy(None, host, ctypes.c_size_t(8), HOST_TO_DEVICE) == INVALID_VALUE

    def test_the_ledger_of_allocations_holds_under_threads(self, device: Device) -> None:
        failures: list[int] = []

        def work() -> None:
            for size in range(1, 501):
                status, pointer = device.malloc(size)
                failures.extend(code for code in (status, device.free(pointer)) if code)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        status, pointer = device.malloc(16 << 30)  # nothing leaked
        assert (status, device.free(pointer)) == (SUCCESS, SUCCESS)


class TestErrors:
    def test_the_last_error_is_kept_until_it_is_taken(self, device: Device) -> None:
        assert device.launch(function=0) == BAD_FUNCTION
        assert device.launch() == SUCCESS
        assert [device.lib.cudaPeekAtLastError() for _ in range(2)] == [BAD_FUNCTION] * 2
        assert [device.lib.cudaGetLastError() for _ in range(2)] == [BAD_FUNCTION, SUCCESS]

    def test_a_handle_that_is_none_is_refused(self, device: Device) -> None:
        stream = device.create("cudaStreamCreate")
        device.timed("cudaStreamDestroy", stream)
        for handle in (stream, stream + 1, 0xDEAD_BEEF_0000):
            assert device.launch(handle) == BAD_HANDLE
            assert device.lib.cudaEventSynchronize(ctypes.c_void_p(handle)) == BAD_HANDLE

    def test_the_nth_call_fails_on_demand(self) -> None:
        result = run_cuda_client(
            calls=5,
            functions=("cudaMalloc", "cudaMemcpyAsync", "cudaFree"),
            env={"FAKE_CUDART_FAIL": "cudaMemcpyAsync:3:700,cudaMemcpyAsync:5:719,cudaFree:1:1"},
        )
        assert result.failures == {"cudaMemcpyAsync": {700: 1, 719: 1}, "cudaFree": {1: 1}}

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("FAKE_CUDART_FAIL", "cudaMalloc:0:2"),
            ("FAKE_CUDART_FAIL", "cudaNothing:1:2"),
            ("FAKE_CUDART_FAIL", "cudaGetErrorName:1:2"),
            ("FAKE_CUDART_KERNEL_US", "soon"),
        ],
    )
    def test_a_setting_that_cannot_be_read_stops_the_program(self, variable: str, value: str) -> None:
        done = subprocess.run(
            [build_fakes() / "cuda_client"],
            env={**os.environ, variable: value},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert variable in done.stderr and value in done.stderr
