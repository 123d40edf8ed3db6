"""``python -m tests.gallery.memory_programs NAME``: programs that hold device memory, on the fake runtime, by ctypes.

Code of a framework is made here, under the names of files and functions that the framework itself has for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, Final

MIB: Final = 1 << 20
LIBRARY: Final = Path(__file__).parents[2] / "build" / "fakes" / "libcudart.so.12"

Address = ctypes.c_void_p
cuda = ctypes.CDLL(str(LIBRARY))


def allocate(size: int) -> Address:
    address = Address()
    if cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)):
        raise MemoryError(size)
    return address


def free(address: Address) -> None:
    assert cuda.cudaFree(address) == 0


def made(file: str, source: str, **names: Any) -> dict[str, Any]:
    """What a module of that file defines."""
    module: dict[str, Any] = {"allocate": allocate, "free": free, **names}
    exec(compile(source, file, "exec"), module)
    return module


def load_weights() -> Address:
    return allocate(400 * MIB)


def leak() -> None:
    """One mebibyte a turn that nobody frees, beside what is given back."""
    kept = []

    def remember() -> None:
        kept.append(allocate(MIB))

    for _ in range(400):
        free(allocate(64 * MIB))
        remember()
        time.sleep(0.02)


def out_of_memory() -> None:
    """It holds most of the device, asks for what is not there, and dies."""
    weights = load_weights()
    time.sleep(2.5)
    try:
        allocate(700 * MIB)
    except MemoryError:
        sys.exit(f"out of memory beside {weights}")


def recovers() -> None:
    """It asks for more than there is, gives back what it kept, and asks again."""
    cache = [allocate(100 * MIB) for _ in range(8)]
    time.sleep(1.5)
    try:
        address = allocate(500 * MIB)
    except MemoryError:
        for each in cache:
            free(each)
        address = allocate(500 * MIB)
    time.sleep(1.5)
    free(address)


def healthy() -> None:
    """What it holds is the same after each turn."""
    weights = load_weights()
    for _ in range(100):
        free(allocate(64 * MIB))
        time.sleep(0.03)
    free(weights)


_MODULE: Final = """
def _apply(self): return [allocate(16 << 20) for _ in range(10)]
"""
_OPTIMIZER: Final = """
def _init_group(): return [allocate(32 << 20) for _ in range(10)]
def step(): return _init_group()
"""
_LAYER: Final = """
def forward(number): return [allocate(4 << 20) for _ in range(number)]
"""
_CACHE: Final = """
def _allocate_kv_cache_tensors(): return [allocate(50 << 20) for _ in range(10)]
"""


def training() -> None:
    """160 MiB of weights, 320 MiB of the optimizer's state, up to 80 MiB of activations, freed each turn."""
    module = made("/usr/lib/python3/dist-packages/torch/nn/modules/module.py", _MODULE)
    optimizer = made("/usr/lib/python3/dist-packages/torch/optim/adamw.py", _OPTIMIZER)
    layer = made("/home/user/model.py", _LAYER)
    call = made(
        "/usr/lib/python3/dist-packages/torch/nn/modules/module.py",
        "def _call_impl(forward, number): return forward(number)",
    )
    weights, state = module["_apply"](None), None
    for _ in range(30):
        activations = call["_call_impl"](layer["forward"], 20)
        time.sleep(0.1)
        for each in activations:
            free(each)
        state = state or optimizer["step"]()
    assert weights and state


def server() -> None:
    """160 MiB of weights, and 500 MiB for keys and values."""
    loader = made(
        "/opt/vllm/model_executor/model_loader/loader.py", "def load_weights(): return allocate(160 << 20)"
    )
    runner = made("/opt/vllm/v1/worker/gpu_model_runner.py", _CACHE)
    held = [loader["load_weights"](), *runner["_allocate_kv_cache_tensors"]()]
    time.sleep(3.0)
    for each in held:
        free(each)


def thread_leak() -> None:
    """A thread of the program keeps what it made of every request, in pieces of different sizes."""
    kept = []

    def serve() -> None:
        for number in range(120):
            kept.append(allocate((1 + number % 3) * MIB))
            time.sleep(0.06)

    worker = Thread(target=serve)
    worker.start()
    while worker.is_alive():
        free(allocate(16 * MIB))
        time.sleep(0.02)


def unbounded_cache() -> None:
    """Results are kept by their input, and every input is another."""
    results: dict[int, Address] = {}
    for number in range(160):
        if number not in results:
            results[number] = allocate(3 * MIB)
        time.sleep(0.05)


def bounded_cache() -> None:
    """Healthy: of the results the last twenty are kept."""
    results: dict[int, Address] = {}
    for number in range(200):
        results[number] = allocate(4 * MIB)
        if len(results) > 20:
            free(results.pop(next(iter(results))))
        time.sleep(0.04)


def warm_up() -> None:
    """Healthy: buffers are made as they are needed, in the first two seconds, and used from then on."""
    buffers = []
    for number in range(150):
        if number < 40:
            buffers.append(allocate(8 * MIB))
        free(allocate(32 * MIB))
        time.sleep(0.05)
    assert buffers


def cleared() -> None:
    """Healthy: what is gathered of an epoch is freed when that ends."""
    for _ in range(4):
        gathered = []
        for _ in range(40):
            gathered.append(allocate(6 * MIB))
            time.sleep(0.05)
        for each in gathered:
            free(each)


def charged(own: int = 0, others: int = 0) -> None:
    """Have the fake NVML say what this process and another have of the device."""
    lines = [f"set 0 memory_used {own + others}"]
    lines += [f"process 0 {pid} {size} 0 0 0 1" for pid, size in ((os.getpid(), own), (1, others)) if size]
    with open(os.environ["FAKE_NVML"], "a", encoding="ascii") as script:
        script.writelines(f"{line}\n" for line in lines)
    time.sleep(2.5)


def asks_too_much() -> None:
    """More than the device has."""
    charged(own=50 * MIB)
    with contextlib.suppress(MemoryError):
        allocate(3000 * MIB)


def crowded() -> None:
    """Another process has most of the device."""
    charged(own=100 * MIB, others=1800 * MIB)
    with contextlib.suppress(MemoryError):
        allocate(1200 * MIB)


def holds_it_all() -> None:
    """The process itself has most of the device."""
    weights = [load_weights(), load_weights()]
    charged(own=1900 * MIB)
    with contextlib.suppress(MemoryError):
        allocate(700 * MIB)
    assert weights


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    each.__name__: each
    for each in (
        *(leak, thread_leak, unbounded_cache, out_of_memory, asks_too_much, crowded, holds_it_all),
        *(recovers, healthy, training, server, bounded_cache, warm_up, cleared),
    )
}

if __name__ == "__main__":
    time.sleep(1.0)  # as one that imports a framework: by then its stacks can be walked
    PROGRAMS[sys.argv[1]]()
