"""The stand-in libcudart, the compiled client and the example server do what tests of otelgpu rely on."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from tests.rig import (
    ROOT,
    LlmServer,
    build_fakes,
    fake_cudart_path,
    missing_compiler,
    read_ledger,
    run_cuda_client,
    start_cuda_client,
    start_llm_server,
)

pytestmark = pytest.mark.skipif(
    missing_compiler() is not None, reason=f"{missing_compiler()} is not installed: the stand-in is not built"
)

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION = 0, 1, 2, 9
BAD_DIRECTION, NO_CONFIGURATION, BAD_FUNCTION, BAD_HANDLE = 21, 52, 98, 400
CAPTURE_UNSUPPORTED = 900
HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST = 0, 1, 2
KERNEL_NS = (
    200_000  # ten times the default, so that a busy machine does not hide what waits and what does not
)
STUB = 0x1234  # any address: the stand-in never calls a kernel

REPEATABLE = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaGraphLaunch",
    "cudaMalloc",
    "cudaFree",
    "cudaMemcpy",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
)


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", Dim3),
        ("block", Dim3),
        ("shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


class Device:
    """The stand-in in this process; statuses come back as they are."""

    def __init__(self) -> None:
        with mock.patch.dict(os.environ, {"FAKE_CUDART_KERNEL_US": str(KERNEL_NS // 1000)}):
            self.lib = ctypes.CDLL(str(fake_cudart_path()))  # reads its settings when it is loaded first
        for name in ("cudaGetErrorName", "cudaGetErrorString"):
            getattr(self.lib, name).restype = ctypes.c_char_p

    def malloc(self, size_bytes: int) -> tuple[int, int]:
        pointer = ctypes.c_void_p()
        status = self.lib.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        return status, pointer.value or 0

    def free(self, pointer: int) -> int:
        return int(self.lib.cudaFree(ctypes.c_void_p(pointer)))

    def launch(
        self,
        stream: int = 0,
        *,
        function: int = STUB,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
    ) -> int:
        status = self.lib.cudaLaunchKernel(
            ctypes.c_void_p(function),
            Dim3(*grid),
            Dim3(*block),
            None,
            ctypes.c_size_t(0),
            ctypes.c_void_p(stream),
        )
        return int(status)

    def create(self, function: str, *arguments: Any) -> int:
        handle = ctypes.c_void_p()
        assert getattr(self.lib, function)(ctypes.byref(handle), *arguments) == SUCCESS
        return handle.value or 0

    def timed(self, function: str, *arguments: int) -> int:
        start_ns = time.monotonic_ns()
        assert getattr(self.lib, function)(*map(ctypes.c_void_p, arguments)) == SUCCESS
        return time.monotonic_ns() - start_ns


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device()
    device.lib.cudaGetLastError()
    yield device
    device.lib.cudaDeviceSynchronize()


def real_cudart() -> Path:
    spec = importlib.util.find_spec("nvidia.cuda_runtime")
    assert spec is not None and spec.submodule_search_locations, "pip install nvidia-cuda-runtime-cu12"
    return Path(next(iter(spec.submodule_search_locations)), "lib", "libcudart.so.12")


def exported_versions(path: Path) -> dict[str, str]:
    """Exported function → version node."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols, indexes = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
        definitions = elf.get_section_by_name(".gnu.version_d")
        assert isinstance(symbols, SymbolTableSection)
        assert isinstance(indexes, GNUVerSymSection) and isinstance(definitions, GNUVerDefSection)
        nodes = {verdef["vd_ndx"]: next(names).name for verdef, names in definitions.iter_versions()}
        return {
            symbol.name: nodes[indexes.get_symbol(index)["ndx"] & 0x7FFF]
            for index, symbol in enumerate(symbols.iter_symbols())
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
        }


class TestAbi:
    def test_exports_only_functions_of_the_real_library_under_the_same_version(self) -> None:
        fake = exported_versions(fake_cudart_path())
        real = exported_versions(real_cudart())
        assert fake.items() <= real.items()
        assert set(REPEATABLE) <= fake.keys()

    def test_names_errors_as_the_real_library_does(self, device: Device) -> None:
        real = ctypes.CDLL(str(real_cudart()))
        unknown = b"unrecognized error code"
        for function in ("cudaGetErrorName", "cudaGetErrorString"):
            name = getattr(real, function)
            name.restype = ctypes.c_char_p
            given = {code: getattr(device.lib, function)(code) for code in range(1000)}
            known = {code: text for code, text in given.items() if text != unknown}
            assert known == {code: name(code) for code in known}
            assert {SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, BAD_FUNCTION, 700} <= known.keys()

    def test_takes_dim3_by_value(self, device: Device) -> None:
        assert device.launch(grid=(7, 3, 2), block=(16, 8, 8)) == SUCCESS
        assert device.launch(grid=(7, 3, 0)) == INVALID_CONFIGURATION
        assert device.launch(block=(0, 8, 8)) == INVALID_CONFIGURATION
        assert device.launch(block=(1024, 1, 2)) == INVALID_CONFIGURATION

    def test_launch_configuration_is_pushed_and_popped_per_thread(self, device: Device) -> None:
        grid, block, shared, stream = Dim3(), Dim3(), ctypes.c_size_t(), ctypes.c_void_p()

        def pop() -> int:
            into = map(ctypes.byref, (grid, block, shared, stream))
            return int(device.lib.__getattr__("__cudaPopCallConfiguration")(*into))

        push = device.lib.__getattr__("__cudaPushCallConfiguration")
        assert push(Dim3(7, 8, 9), Dim3(4, 5, 6), ctypes.c_size_t(77), ctypes.c_void_p(STUB)) == 0
        statuses: list[int] = []
        other = threading.Thread(target=lambda: statuses.append(pop()))
        other.start()
        other.join()
        assert statuses == [NO_CONFIGURATION]
        assert pop() == SUCCESS
        assert (grid.x, grid.y, grid.z, block.x, block.y, block.z) == (7, 8, 9, 4, 5, 6)
        assert (shared.value, stream.value) == (77, STUB)
        assert pop() == NO_CONFIGURATION


class TestTimeline:
    def test_synchronize_waits_until_the_stream_is_drained(self, device: Device) -> None:
        stream = device.create("cudaStreamCreate")
        start_ns = time.monotonic_ns()
        for _ in range(101):
            assert device.launch(stream) == SUCCESS
        queued_ns = time.monotonic_ns() - start_ns
        device.timed("cudaStreamSynchronize", stream)
        assert time.monotonic_ns() - start_ns >= 101 * KERNEL_NS
        assert queued_ns < 101 * KERNEL_NS
        assert device.timed("cudaStreamSynchronize", stream) < 101 * KERNEL_NS

    def test_streams_run_side_by_side_and_the_default_stream_waits_for_all(self, device: Device) -> None:
        streams = [device.create("cudaStreamCreate") for _ in range(2)]
        start_ns = time.monotonic_ns()
        for stream in streams:
            for _ in range(211):
                device.launch(stream)
        device.timed("cudaDeviceSynchronize")
        assert 211 * KERNEL_NS <= time.monotonic_ns() - start_ns < 422 * KERNEL_NS
        start_ns = time.monotonic_ns()
        for _ in range(100):
            device.launch(streams[0])
        device.launch(0)
        device.timed("cudaStreamSynchronize", 0)
        assert time.monotonic_ns() - start_ns >= 101 * KERNEL_NS

    def test_event_synchronize_waits_for_what_came_before_the_record(self, device: Device) -> None:
        stream, event = device.create("cudaStreamCreate"), device.create("cudaEventCreate")
        assert device.timed("cudaEventSynchronize", event) < 100 * KERNEL_NS
        start_ns = time.monotonic_ns()
        for _ in range(101):
            device.launch(stream)
        device.timed("cudaEventRecord", event, stream)
        for _ in range(503):
            device.launch(stream)
        device.timed("cudaEventSynchronize", event)
        assert 101 * KERNEL_NS <= time.monotonic_ns() - start_ns < 604 * KERNEL_NS

    def test_copies_take_their_bytes_over_the_bandwidth(self, device: Device) -> None:
        _, pointer = device.malloc(1 << 30)
        host = ctypes.create_string_buffer(16)
        arguments = (ctypes.c_void_p(pointer), host, ctypes.c_size_t(100_000_000), HOST_TO_DEVICE)
        start_ns = time.monotonic_ns()
        assert device.lib.cudaMemcpy(*arguments) == SUCCESS
        assert time.monotonic_ns() - start_ns >= 5_000_000  # 100 MB at 20 GB/s
        start_ns = time.monotonic_ns()
        assert device.lib.cudaMemcpyAsync(*arguments, None) == SUCCESS
        assert time.monotonic_ns() - start_ns < 5_000_000
        device.timed("cudaDeviceSynchronize")
        assert time.monotonic_ns() - start_ns >= 5_000_000
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
        assert device.lib.cudaStreamBeginCapture(ctypes.c_void_p(stream), 0) == SUCCESS
        for _ in range(101):
            device.launch(stream)
        graph = ctypes.c_void_p()
        assert device.lib.cudaStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == SUCCESS
        assert device.timed("cudaStreamSynchronize", stream) < 101 * KERNEL_NS
        executable = device.create("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0))
        start_ns = time.monotonic_ns()
        device.timed("cudaGraphLaunch", executable, stream)
        device.timed("cudaStreamSynchronize", stream)
        assert time.monotonic_ns() - start_ns >= 101 * KERNEL_NS
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


class TestCudaClient:
    def test_23_calls_are_exactly_23_of_each(self, tmp_path: Path) -> None:
        ledger = tmp_path / "ledger.jsonl"
        result = run_cuda_client(
            calls=23,
            functions=("all",),
            threads=3,
            exit_code=7,
            times=True,
            env={"FAKE_CUDART_LEDGER": str(ledger)},
        )
        assert {function: result.calls[function] for function in REPEATABLE} == dict.fromkeys(REPEATABLE, 23)
        assert read_ledger(ledger) == Counter(result.calls)
        assert Counter(function for function, _ in result.times) == Counter(result.calls)
        assert (result.failures, result.exit_code) == ({}, 7)

    def test_a_handle_launch_reaches_cuda_launch_kernel(self, tmp_path: Path) -> None:
        ledger = tmp_path / "ledger.jsonl"
        result = run_cuda_client(launch="handle", env={"FAKE_CUDART_LEDGER": str(ledger)})
        assert result.calls["__cudaLaunchKernel"] == 23
        assert read_ledger(ledger)["cudaLaunchKernel"] == 23

    def test_waits_before_its_first_call_when_started(self) -> None:
        with start_cuda_client(calls=3) as client:
            attached_ns = time.monotonic_ns()
            result = client.finish()
        assert result.pid == client.pid
        assert result.start_ns > attached_ns and result.calls["cudaLaunchKernel"] == 3

    def test_the_late_variant_has_no_library_until_it_opens_it(self) -> None:
        with start_cuda_client(late_ms=50) as client:
            assert "libcudart" not in Path(f"/proc/{client.pid}/maps").read_text()
            started_ns = time.monotonic_ns()
            result = client.finish()
        assert result.opened_ns - started_ns >= 50_000_000
        assert result.library == str(fake_cudart_path()) and result.calls["cudaLaunchKernel"] == 23

    def test_counts_its_failing_calls_into_the_real_library(self) -> None:
        result = run_cuda_client(calls=5, functions=("cudaMalloc", "cudaFree"), library=real_cudart())
        assert Path(result.library) == real_cudart().resolve()
        assert (result.calls["cudaMalloc"], result.calls["cudaFree"]) == (5, 5)

    def test_its_kernels_keep_their_names(self) -> None:
        with (build_fakes() / "cuda_client").open("rb") as file:
            symbols = ELFFile(file).get_section_by_name(".symtab")
            assert isinstance(symbols, SymbolTableSection)
            names = {symbol.name for symbol in symbols.iter_symbols()}
        assert {"_Z9flash_fwdPKfPfi", "_Z8rms_normIfLi128EEvPKT_PS0_i"} <= names


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlmServer]:
    with start_llm_server(threads=4, env={"LLM_TRUTH_CALLS": "1"}) as server:
        yield server


def post(server: LlmServer, path: str, body: bytes | dict[str, Any]) -> tuple[int, str, str]:
    """Send a request; status, X-Request-Id and body of the answer."""
    connection = server.connect()
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, content, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers.get("X-Request-Id", ""), text


def events(text: str) -> list[dict[str, Any]]:
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-2]]


def truth_of(server: LlmServer, key: str, value: str) -> dict[str, Any]:
    """The truth file's line with this value; it comes just after the response."""
    deadline = time.monotonic() + 5
    while True:
        for line in server.truth(0):
            if line[key] == value:
                return line
        assert time.monotonic() < deadline, f"{value} is not in the truth file"
        time.sleep(0.01)


CHAT = {"model": "tiny-llm", "messages": [{"role": "user", "content": "why so slow"}], "max_tokens": 3}
TEXT = {"model": "tiny-llm", "prompt": "why so slow", "max_tokens": 3}


class TestLlmServer:
    def test_streams_a_chat_completion(self, server: LlmServer) -> None:
        body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
        status, request_id, text = post(server, "/v1/chat/completions", body)
        chunks = events(text)
        assert status == 200 and request_id
        assert len({chunk["id"] for chunk in chunks}) == 1 and chunks[0]["id"].startswith("chatcmpl-")
        assert [choice["delta"] for chunk in chunks for choice in chunk["choices"]] == [
            {"role": "assistant", "content": ""},
            {"content": "the"},
            {"content": " kernel"},
            {"content": " reads"},
            {},
        ]
        assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-2:] == [
            None,
            "length",
        ]
        assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}

    def test_streams_a_completion_without_usage(self, server: LlmServer) -> None:
        _, _, text = post(server, "/v1/completions", {**TEXT, "stream": True})
        chunks = events(text)
        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["the", " kernel", " reads", ""]
        assert not any("usage" in chunk for chunk in chunks)

    @pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
    def test_answers_at_once(self, server: LlmServer, path: str, body: dict[str, Any]) -> None:
        status, _, text = post(server, path, body)
        answer = json.loads(text)
        choice = answer["choices"][0]
        content = choice["message"]["content"] if "message" in choice else choice["text"]
        assert (status, content, choice["finish_reason"]) == (200, "the kernel reads", "length")
        assert answer["usage"]["completion_tokens"] == 3

    @pytest.mark.parametrize(
        "body", [b"{", b"[]", b'{"messages": []}', b'{"messages": [{"content": "a"}], "max_tokens": 0}']
    )
    def test_refuses_a_bad_body(self, server: LlmServer, body: bytes) -> None:
        status, _, text = post(server, "/v1/chat/completions", body)
        assert status == 400
        assert json.loads(text)["error"]["type"] == "invalid_request_error"

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_failing_gpu_call_is_a_500(self, server: LlmServer, stream: bool) -> None:
        status, request_id, text = post(
            server, "/v1/chat/completions", {**CHAT, "model": "broken", "stream": stream}
        )
        assert status == 500
        assert json.loads(text)["error"]["message"] == "cudaMalloc: cudaErrorMemoryAllocation (2)"
        line = truth_of(server, "x_request_id", request_id)
        assert (line["status"], line["cuda_calls"]) == (500, {"cudaMalloc": 1, "cudaGetErrorName": 1})

    def test_tells_the_truth_of_a_request(self, server: LlmServer) -> None:
        start_ns = time.monotonic_ns()
        _, request_id, text = post(server, "/v1/chat/completions", {**CHAT, "stream": True})
        line = truth_of(server, "id", events(text)[0]["id"])
        assert line["x_request_id"] == request_id and line["pid"] == server.worker_pid
        assert Path(f"/proc/{line['pid']}/task/{line['thread_id']}").exists()
        times = [
            start_ns,
            *(line[f"{moment}_ns"] for moment in ("start", "first_token", "last_token", "end")),
        ]
        assert times == sorted(times) and line["finished"]
        assert line["ttft_s"] == (line["first_token_ns"] - line["start_ns"]) / 1e9
        assert line["tpot_s"] == pytest.approx((line["end_ns"] - line["first_token_ns"]) / 2 / 1e9)
        assert line["cuda_calls"] == {
            "cudaMalloc": 1,
            "cudaStreamCreate": 1,
            "cudaMemcpyAsync": 4,
            "cudaLaunchKernel": 16 + 3 * 9,
            "cudaStreamSynchronize": 4,
            "cudaFree": 1,
            "cudaStreamDestroy": 1,
        }
        assert Counter(function for function, _ in line["cuda_call_times"]) == line["cuda_calls"]
        assert all(line["start_ns"] < call_ns < line["end_ns"] for _, call_ns in line["cuda_call_times"])

    def test_a_client_that_leaves_early_gives_the_device_back(self, server: LlmServer) -> None:
        connection = server.connect()
        connection.request(
            "POST", "/v1/completions", json.dumps({**TEXT, "max_tokens": 4096, "stream": True})
        )
        response = connection.getresponse()
        first = json.loads(response.readline().removeprefix(b"data: "))
        response.close()
        connection.close()
        line = truth_of(server, "id", first["id"])
        assert not line["finished"] and line["output_tokens"] < 4096
        assert (line["cuda_calls"]["cudaFree"], line["cuda_calls"]["cudaStreamDestroy"]) == (1, 1)

    def test_lists_its_models(self, server: LlmServer) -> None:
        connection = server.connect()
        connection.request("GET", "/v1/models")
        models = json.loads(connection.getresponse().read())["data"]
        connection.close()
        assert [model["id"] for model in models] == ["tiny-llm", "broken"]


def test_load_client_server_and_library_agree(tmp_path: Path) -> None:
    ledger, output = tmp_path / "ledger.jsonl", tmp_path / "client.jsonl"
    with start_llm_server(workers=2, threads=4, env={"FAKE_CUDART_LEDGER": str(ledger)}) as server:
        client = subprocess.run(
            [
                sys.executable,
                str(ROOT / "examples" / "llm_server" / "client.py"),
                f"--url={server.url}",
                "--requests=23",
                "--concurrency=7",
                "--traceparent",
                f"--output={output}",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        truth = {line["id"]: line for line in server.truth(23)}
    seen = [json.loads(line) for line in output.read_text().splitlines()]
    assert client.stdout.startswith("23 requests, 0 failed, 368 tokens")
    assert {line["id"] for line in seen} == truth.keys() and len(truth) == 23
    assert {line["x_request_id"] for line in seen} == {line["x_request_id"] for line in truth.values()}
    assert all(line["ttft_s"] > truth[line["id"]]["ttft_s"] for line in seen)
    assert all(re.fullmatch(r"[0-9a-f]{32}", line["trace_id"]) for line in seen)
    made: Counter[str] = Counter()
    for line in truth.values():
        made.update(line["cuda_calls"])
    called = read_ledger(ledger)
    del called["cudaGetDeviceCount"]  # each worker's own, at its start
    assert called == made


@pytest.mark.parametrize(("tolerate", "status"), [("0", 500), ("1", 200)])
def test_launches_without_device_code_are_tolerated_when_asked(tolerate: str, status: int) -> None:
    env = {"FAKE_CUDART_FAIL": f"cudaLaunchKernel:2:{BAD_FUNCTION}", "LLM_TOLERATE_LAUNCH_ERRORS": tolerate}
    with start_llm_server(env=env) as server:
        assert post(server, "/v1/chat/completions", CHAT)[0] == status


def test_a_server_without_a_library_says_so() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "llm_server", "--port=0"],
        env={**os.environ, "LLM_CUDART": "/nonexistent/libcudart.so.12"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert "no CUDA runtime: /nonexistent/libcudart.so.12" in done.stderr
    assert "Traceback" not in done.stderr
