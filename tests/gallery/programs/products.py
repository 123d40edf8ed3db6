"""A program whose matrix products are known: by cuBLAS, one after the other and in a batch, and by cuBLASLt."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any, Final

from tests.gallery.programs.device import FAKES, Device, says
from tests.gallery.programs.steps import STEPS

EDGE: Final = 1024
BATCHES: Final = 8
BF16: Final = 14
FLOPS: Final = 2 * STEPS * 2 * EDGE * EDGE * (EDGE // 2) * (2 + BATCHES + 1)
"""Of all: two products, one batch, and one of layouts in each step."""
CALLS: Final = 2 * STEPS * 4


def matrix_products(folder: Path) -> None:
    """The second operand is transposed, which is no matter. It begins once probes are in place on what it loaded."""
    says()
    device = Device()
    blas: Any = ctypes.CDLL(str(FAKES / "libcublas.so.12"))
    lt: Any = ctypes.CDLL(str(FAKES / "libcublasLt.so.12"))
    null, stride = ctypes.c_void_p(), ctypes.c_longlong(0)
    time.sleep(2)
    shape = (null, 0, 1, EDGE, EDGE, EDGE // 2, null)
    for _ in range(2 * STEPS):
        for _ in range(2):
            blas.cublasGemmEx(*shape, null, BF16, 1, null, BF16, 1, null, null, BF16, 1, 68, 99)
        blas.cublasGemmStridedBatchedEx(
            *(*shape, null, BF16, 1, stride, null, BF16, 1, stride, null, null, BF16, 1, stride),
            *(BATCHES, 68, 99),
        )
        layouts = [_layout(lt, *each) for each in ((EDGE, EDGE // 2), (EDGE, EDGE // 2), (EDGE, EDGE))]
        a, b, c = layouts
        lt.cublasLtMatmul(
            *(
                null,
                null,
                null,
                null,
                a,
                null,
                b,
                null,
                null,
                c,
                null,
                c,
                null,
                null,
                ctypes.c_size_t(0),
                null,
            )
        )
        for each in layouts:
            lt.cublasLtMatrixLayoutDestroy(each)
        device.launch()
        device.wait()


def _layout(lt: Any, rows: int, columns: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    size = ctypes.c_uint64
    lt.cublasLtMatrixLayoutCreate(ctypes.byref(made), BF16, size(rows), size(columns), ctypes.c_int64(rows))
    return made
