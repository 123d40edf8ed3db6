"""``python -m tests.gallery.memory_programs NAME``: programs that hold device memory, on the fake runtime, by ctypes.

Code of a framework is made here, under the names of files and functions that the framework itself has for it.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
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


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    each.__name__: each for each in (leak, out_of_memory, recovers, healthy, training, server)
}

if __name__ == "__main__":
    time.sleep(1.0)  # as one that imports a framework: by then its stacks can be walked
    PROGRAMS[sys.argv[1]]()
