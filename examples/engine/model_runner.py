"""The CUDA calls of a step: inputs copied in, kernels or a captured graph launched, sampled tokens copied out.

In: a :class:`~engine.scheduler.Step`. Out: nothing; the step's times and number of launches are noted in it. The calls
are real, the model is not. Used by one thread.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from llm_server.cudart import CallLog, CopyKind, Cudart, open_library
from llm_server.engine import KERNELS, open_kernels

from engine.scheduler import Step

LAYERS = 4
HEADS = 32
TOKEN_BYTES = 4
CAPTURE_RELAXED = 2  # cudaStreamCaptureModeRelaxed of driver_types.h
IN_FLIGHT = 2  # steps that may be on the device at a time

_PROTOTYPES: dict[str, tuple[type[Any], ...]] = {
    "cudaEventCreate": (ctypes.c_void_p,),
    "cudaEventRecord": (ctypes.c_void_p, ctypes.c_void_p),
    "cudaEventSynchronize": (ctypes.c_void_p,),
    "cudaGraphInstantiate": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong),
    "cudaGraphLaunch": (ctypes.c_void_p, ctypes.c_void_p),
    "cudaStreamBeginCapture": (ctypes.c_void_p, ctypes.c_int),
    "cudaStreamEndCapture": (ctypes.c_void_p, ctypes.c_void_p),
}


class GraphCudart(Cudart):
    """The CUDA runtime with events and graphs."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        for name, parameters in _PROTOTYPES.items():
            function = getattr(library, name)
            function.argtypes = parameters
            function.restype = ctypes.c_int
            self._functions[name] = function

    def event_create(self, log: CallLog) -> int:
        """Handle of a new event."""
        return self._made(log, "cudaEventCreate")

    def event_record(self, log: CallLog, event: int, stream: int) -> None:
        """Let `event` happen once all that was queued on `stream` so far is done."""
        self._call(log, "cudaEventRecord", event, stream)

    def event_synchronize(self, log: CallLog, event: int) -> None:
        """Wait for an event."""
        self._call(log, "cudaEventSynchronize", event)

    def begin_capture(self, log: CallLog, stream: int) -> None:
        """Collect what is queued on `stream` from now on, instead of doing it."""
        self._call(log, "cudaStreamBeginCapture", stream, CAPTURE_RELAXED)

    def end_capture(self, log: CallLog, stream: int) -> int:
        """Handle of the executable graph of what was queued."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._call(log, "cudaStreamEndCapture", stream, ctypes.addressof(graph))
        self._call(log, "cudaGraphInstantiate", ctypes.addressof(executable), graph.value, 0)
        return executable.value or 0

    def graph_launch(self, log: CallLog, executable: int, stream: int) -> None:
        """Queue a graph."""
        self._call(log, "cudaGraphLaunch", executable, stream)

    def _made(self, log: CallLog, function: str) -> int:
        handle = ctypes.c_void_p()
        self._call(log, function, ctypes.addressof(handle))
        return handle.value or 0


class ModelRunner:
    """The device as a model's runner uses it."""

    def __init__(self, library: str | None, max_batch: int, max_tokens: int) -> None:
        self._cuda = GraphCudart(open_library(library))
        kernels = open_kernels()
        self._kernels = {
            name: ctypes.cast(getattr(kernels, symbol), ctypes.c_void_p).value or 0
            for name, symbol in KERNELS.items()
        }
        log = CallLog()
        self._stream = self._cuda.stream_create(log)
        self._events = [self._cuda.event_create(log) for _ in range(IN_FLIGHT)]
        self._inputs = (ctypes.c_int32 * max_tokens)()
        self._sampled = (ctypes.c_int32 * max_batch)()
        self._device_inputs = self._cuda.malloc(log, ctypes.sizeof(self._inputs))
        self._device_sampled = self._cuda.malloc(log, ctypes.sizeof(self._sampled))
        self._cuda.begin_capture(log, self._stream)
        self._decode(log)
        self._decode_graph = self._cuda.end_capture(log, self._stream)

    def launch(self, step: Step) -> None:
        """Queue a step's work on the device."""
        cuda, log = self._cuda, CallLog()
        tokens = sum(work.tokens for work in step.work)
        step.start_ns = time.monotonic_ns()
        cuda.memcpy_async(
            log,
            self._device_inputs,
            ctypes.addressof(self._inputs),
            tokens * TOKEN_BYTES,
            CopyKind.HOST_TO_DEVICE,
            self._stream,
        )
        if step.decode_only:
            cuda.graph_launch(log, self._decode_graph, self._stream)
        else:
            self._prefill(log, tokens)
        sampled = sum(work.samples for work in step.work)
        if sampled:
            cuda.memcpy_async(
                log,
                ctypes.addressof(self._sampled),
                self._device_sampled,
                sampled * TOKEN_BYTES,
                CopyKind.DEVICE_TO_HOST,
                self._stream,
            )
        cuda.event_record(log, self._events[step.number % IN_FLIGHT], self._stream)
        step.launches = log.counts.get("cudaLaunchKernel", 0) + log.counts.get("cudaGraphLaunch", 0)

    def wait(self, step: Step) -> None:
        """Wait until the device is done with a step."""
        self._cuda.event_synchronize(CallLog(), self._events[step.number % IN_FLIGHT])
        step.end_ns = time.monotonic_ns()

    def _prefill(self, log: CallLog, tokens: int) -> None:
        for _ in range(LAYERS):
            self._kernel(log, "rms_norm", (tokens, 1, 1), (1024, 1, 1))
            self._kernel(log, "gemm_bf16", (96, max(1, tokens // 128), 1), (256, 1, 1))
            self._kernel(log, "flash_attention_fwd", (tokens, HEADS, 1), (128, 1, 1))
        self._kernel(log, "sample_argmax", (1, 1, 1), (1024, 1, 1))

    def _decode(self, log: CallLog) -> None:
        for _ in range(LAYERS):
            self._kernel(log, "paged_attention_decode", (1, HEADS, 1), (128, 1, 1))
            self._kernel(log, "gemm_bf16", (96, 1, 1), (256, 1, 1))
        self._kernel(log, "sample_argmax", (1, 1, 1), (1024, 1, 1))

    def _kernel(
        self, log: CallLog, name: str, grid: tuple[int, int, int], block: tuple[int, int, int]
    ) -> None:
        self._cuda.launch(log, self._kernels[name], grid, block, 0, self._stream)
