"""A small serving engine: the CUDA calls of a transformer's prefill and decode, and words as tokens.

In: a prompt's length and how many tokens to make. Out: the tokens, one per `Sequence.decode()`. The calls are
real; the model is not: tokens come from a fixed list, whatever the device computes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass, field
from pathlib import Path

from llm_server.cudart import (
    STAND_IN_HINT,
    CallLog,
    CopyKind,
    CudaError,
    CudaLibraryError,
    Cudart,
)

LAYERS = 4
HIDDEN = 4096
HEADS = 32
HEAD_DIM = 128
KV_BYTES_PER_TOKEN = LAYERS * 2 * HEADS * HEAD_DIM * 2  # keys and values, bfloat16
TOKEN_BYTES = 4  # a token id is an int32
BROKEN_MODEL_BYTES = 1 << 50  # more than any device has: 1 PiB
CUDA_INVALID_DEVICE_FUNCTION = 98  # cudaErrorInvalidDeviceFunction, driver_types.h
CUDA_INVALID_KERNEL_IMAGE = 200  # cudaErrorInvalidKernelImage

WORDS = ("the", "kernel", "reads", "what", "a", "socket", "says", "and", "finds", "its", "way", "home")

# Host stubs in libllmkernels.so, by their C++ names (kernels.cpp).
KERNELS = {
    "rms_norm": "_Z8rms_normPK13__nv_bfloat16S1_PS_i",
    "gemm_bf16": "_Z9gemm_bf16PK13__nv_bfloat16S1_PS_iii",
    "flash_attention_fwd": "_Z19flash_attention_fwdILi128EEvPK13__nv_bfloat16S2_PS0_i",
    "paged_attention_decode": "_Z22paged_attention_decodeILi128EEvPK13__nv_bfloat16S2_PS0_i",
    "sample_argmax": "_Z13sample_argmaxPKfPii",
}


class KernelLibraryError(RuntimeError):
    """libllmkernels.so is missing; the message says where it was looked for and how to build it."""


def open_kernels() -> ctypes.CDLL:
    """Open the library of kernels: LLM_KERNELS, else beside this file, else in the checkout's build folder.

    Raises `KernelLibraryError`.
    """
    here = Path(__file__).resolve().parent
    candidates = [here / "libllmkernels.so", here.parents[1] / "build" / "fakes" / "libllmkernels.so"]
    if chosen := os.environ.get("LLM_KERNELS"):
        candidates = [Path(chosen)]
    for candidate in candidates:
        if candidate.exists():
            return ctypes.CDLL(str(candidate))
    places = ", ".join(map(str, candidates))
    raise KernelLibraryError(f"no libllmkernels.so ({places}): build it with `make -C tests/fakes`")


@dataclass(slots=True)
class Sequence:
    """One request on the device. `decode()` may be called until `close()`, by one thread at a time."""

    engine: Engine
    log: CallLog
    prompt_tokens: int
    stream: int = 0
    kv_cache: int = 0
    output_tokens: int = 0
    _token: ctypes.c_int32 = field(default_factory=ctypes.c_int32)

    def prefill(self, max_tokens: int, cache_bytes: int) -> None:
        """Reserve memory, copy the prompt's tokens to the device and run all layers over them."""
        cuda, log = self.engine.cuda, self.log
        prompt = (ctypes.c_int32 * self.prompt_tokens)()
        self.kv_cache = cuda.malloc(
            log, cache_bytes or (self.prompt_tokens + max_tokens) * KV_BYTES_PER_TOKEN
        )
        self.stream = cuda.stream_create(log)
        cuda.memcpy_async(
            log,
            self.kv_cache,
            ctypes.addressof(prompt),
            ctypes.sizeof(prompt),
            CopyKind.HOST_TO_DEVICE,
            self.stream,
        )
        for _ in range(LAYERS):
            self._launch("rms_norm", (self.prompt_tokens, 1, 1), (1024, 1, 1))
            self._launch("gemm_bf16", (3 * HIDDEN // 128, 1, 1), (256, 1, 1), shared_bytes=49_152)
            self._launch("flash_attention_fwd", (1, HEADS, 1), (128, 1, 1), shared_bytes=65_536)
            self._launch("gemm_bf16", (HIDDEN // 128, 1, 1), (256, 1, 1), shared_bytes=49_152)
        cuda.stream_synchronize(log, self.stream)

    def decode(self) -> str:
        """Run all layers for one position and give the next token."""
        cuda, log = self.engine.cuda, self.log
        for _ in range(LAYERS):
            self._launch("paged_attention_decode", (1, HEADS, 1), (128, 1, 1), shared_bytes=16_384)
            self._launch("gemm_bf16", (HIDDEN // 128, 1, 1), (256, 1, 1), shared_bytes=49_152)
        self._launch("sample_argmax", (1, 1, 1), (1024, 1, 1))
        token = ctypes.addressof(self._token)
        cuda.memcpy_async(log, token, self.kv_cache, TOKEN_BYTES, CopyKind.DEVICE_TO_HOST, self.stream)
        cuda.stream_synchronize(log, self.stream)
        word = WORDS[self.output_tokens % len(WORDS)]
        self.output_tokens += 1
        return word if self.output_tokens == 1 else " " + word

    def close(self) -> None:
        """Give everything back; a failure here must not hide the one that led here."""
        kv_cache, stream = self.kv_cache, self.stream
        self.kv_cache = self.stream = 0
        cuda = self.engine.cuda
        for give_back, handle in ((cuda.free, kv_cache), (cuda.stream_destroy, stream)):
            if handle:
                with contextlib.suppress(CudaError):
                    give_back(self.log, handle)

    def _launch(
        self, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int], *, shared_bytes: int = 0
    ) -> None:
        engine = self.engine
        try:
            engine.cuda.launch(self.log, engine.kernels[kernel], grid, block, shared_bytes, self.stream)
        except CudaError as error:
            # There is no device code behind the stubs: see LLM_TOLERATE_LAUNCH_ERRORS in README.md.
            missing = error.status in (CUDA_INVALID_DEVICE_FUNCTION, CUDA_INVALID_KERNEL_IMAGE)
            if not (missing and engine.tolerate_launch_errors):
                raise


class Engine:
    """The device and the kernels; one per process, used by all its threads."""

    def __init__(self, cuda: Cudart, kernels: ctypes.CDLL, *, tolerate_launch_errors: bool = False) -> None:
        self.cuda = cuda
        self.kernels = {
            name: ctypes.cast(getattr(kernels, symbol), ctypes.c_void_p).value or 0
            for name, symbol in KERNELS.items()
        }
        self.tolerate_launch_errors = tolerate_launch_errors

    @classmethod
    def from_environment(cls) -> Engine:
        """The engine as LLM_CUDART, LLM_KERNELS and LLM_TOLERATE_LAUNCH_ERRORS say.

        Raises `CudaLibraryError` (also where the library finds no GPU) and `KernelLibraryError`.
        """
        tolerate = os.environ.get("LLM_TOLERATE_LAUNCH_ERRORS") == "1"
        engine = cls(Cudart.from_environment(), open_kernels(), tolerate_launch_errors=tolerate)
        try:
            engine.cuda.device_count(CallLog())
        except CudaError as error:
            raise CudaLibraryError(f"{engine.cuda.path} finds no GPU: {error}. {STAND_IN_HINT}") from error
        return engine

    def start(self, model: str, prompt: str, max_tokens: int, log: CallLog) -> Sequence:
        """Prefill `prompt` for up to `max_tokens` tokens. The model named "broken" asks for too much memory.

        Raises `CudaError`; nothing is then left on the device.
        """
        sequence = Sequence(self, log, prompt_tokens=max(1, len(prompt.split())))
        try:
            sequence.prefill(max_tokens, BROKEN_MODEL_BYTES if model == "broken" else 0)
        except CudaError:
            sequence.close()
            raise
        return sequence
