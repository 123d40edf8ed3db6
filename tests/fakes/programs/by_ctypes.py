"""A program that binds the runtime with ctypes, as a Python engine does: functions come from dlsym.

Options as those of runtime.c: --library=PATH --launches=N --mallocs=N --wait=1. One JSON line on stdout.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections import Counter


class _Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


def main() -> None:
    """Wait if reported to, make the calls, say how many."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default="libcudart.so.12")
    parser.add_argument("--launches", type=int, default=23)
    parser.add_argument("--mallocs", type=int, default=7)
    parser.add_argument("--wait", type=int, default=0)
    options = parser.parse_args()
    if options.wait:
        print("ready", os.getpid(), file=sys.stderr, flush=True)
        sys.stdin.readline()
    library = ctypes.CDLL(options.library)
    calls: Counter[str] = Counter()

    def call(function: str, *arguments: object) -> None:
        calls[function] += 1
        status = getattr(library, function)(*arguments)
        if status:
            raise SystemExit(f"{function}: error {status}")

    pointer = ctypes.c_void_p()
    for _ in range(options.mallocs):
        call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(4096))
        call("cudaFree", pointer)
    stub = ctypes.c_void_p(ctypes.addressof(pointer))  # no function: a kernel without a name
    for _ in range(options.launches):
        call("cudaLaunchKernel", stub, _Dim3(3, 1, 1), _Dim3(64, 1, 1), None, ctypes.c_size_t(0), None)
    call("cudaDeviceSynchronize")
    print(json.dumps({"pid": os.getpid(), "calls": calls, "kernels": {}, "bytes": {}, "graph": {}}))


if __name__ == "__main__":
    main()
