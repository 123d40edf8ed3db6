"""FLOPs of matrix products, from the shapes that cuBLAS and cuBLASLt are called with. Pure.

In: hits of the probes of ``matrix_probes.json`` (:mod:`otelgpu.families.user_probes`), as spans with their arguments.
Out: :class:`MatrixProducts`. A product of m×k by k×n takes 2·m·n·k FLOPs, of complex numbers four times as many (cuBLAS
library guide, 2.8). cuBLASLt has shapes in layouts, which are made before: those that a thread made since its last
product are the ones of A, B, C, and D if there are four. The root of the three areas mk·kn·mn is mnk, whichever is
transposed. A batch in a layout is counted as one, as is a graph that is replayed: FLOPs are a lower bound.

Example: layouts of 4096×1024, 4096×512 and 1024×512, then a product: 2·√(4096·1024 · 4096·512 · 1024·512) = 4.3 GFLOP.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.model.spans import SpanColumns, Text, plain

MOST_HITS: Final = 1_000_000
"""Of a diagnosis; what is beyond is counted and left out."""
LARGEST: Final = 1 << 31
"""Of a dimension: what is larger, or negative, is no shape."""
UNKNOWN: Final = ""
"""Data type of products whose call does not say it."""

_SCOPE: Final = "otelgpu.probe"
_ARGUMENT: Final = "otelgpu.probe.argument."
_VALUES: Final = ("m", "n", "k", "batches", "type")
_LAYOUT: Final = ("cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutInit_internal")
_PRODUCT: Final = "cublasLtMatmul"
_BY_LETTER: Final[Mapping[str, str]] = {"H": "fp16", "S": "tf32", "D": "fp64", "C": "tf32", "Z": "fp64"}
_BY_NUMBER: Final[Mapping[int, str]] = {
    **{0: "tf32", 1: "fp64", 2: "fp16", 3: "int8"},
    **{14: "bf16", 28: "fp8", 29: "fp8"},
}
"""cudaDataType, of library_types.h: CUDA_R_32F and so on. 32 bits may be computed as TF32, which is faster."""
_TYPED: Final = re.compile(r"cublas([HSDCZ])gemm(?!Ex)")
_COMPLEX: Final = "CZ"


class MatrixProducts(Struct, kw_only=True):
    """``flops``: by data type as peaks call it, :data:`UNKNOWN` where it is not known; ``calls``: that they are of.

    ``unknown``: calls whose shapes were not seen.
    """

    flops: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    unknown: int = 0

    def seconds_at(self, tflops: Mapping[str, float]) -> float:
        """How long they would take at the peak; of a type that has none, at that of bf16 or the highest."""
        other = tflops.get("bf16") or max(tflops.values())
        return sum(flops / (tflops.get(dtype, other) * 1e12) for dtype, flops in self.flops.items())


class _Hit(Struct, frozen=True):
    begin_ns: int
    end_ns: int
    name: str
    values: tuple[int, ...]  # of _VALUES; −1: absent


def matrix_products(batches: Iterable[SpanColumns], rejected: Counter[str]) -> MatrixProducts:
    """All of them. ``rejected``: reason → hits, added to."""
    threads: dict[tuple[int, int], list[_Hit]] = defaultdict(list)
    taken = 0
    for batch in batches:
        pid = batch.resource.get("process.pid")
        if batch.scope != _SCOPE or not isinstance(pid, int):
            continue
        if taken + len(batch) > MOST_HITS:
            rejected["products_beyond_limit"] += len(batch)
            continue
        taken += len(batch)
        for tid, hit in _hits(batch):
            threads[pid, tid].append(hit)
    found = MatrixProducts()
    for hits in threads.values():
        hits.sort(key=lambda hit: (hit.begin_ns, -hit.end_ns))
        _add(found, hits)
    return found


def _hits(batch: SpanColumns) -> Iterable[tuple[int, _Hit]]:
    attributes = {each.key: each for each in batch.attributes}
    tids = _column(attributes.get("thread.id"), len(batch))
    values = np.stack([_column(attributes.get(_ARGUMENT + name), len(batch)) for name in _VALUES], axis=1)
    names = [plain(each) for each in batch.name.table]
    rows = zip(
        tids.tolist(),
        batch.start_unix_ns.tolist(),
        batch.end_unix_ns.tolist(),
        batch.name.codes.tolist(),
        values.tolist(),
        strict=True,
    )
    for tid, begin, end, name, row in rows:
        if names[name].startswith("cublas"):
            yield tid, _Hit(begin, end, names[name], tuple(row))


def _column(attribute: Any, rows: int) -> npt.NDArray[np.int64]:
    """−1 where it is absent, no number, or negative."""
    if attribute is None or isinstance(attribute.values, Text) or attribute.values.dtype.kind not in "iu":
        return np.full(rows, -1, dtype=np.int64)
    values = np.clip(attribute.values, -1, LARGEST).astype(np.int64)
    return values if attribute.present is None else np.where(attribute.present, values, -1)


def _add(found: MatrixProducts, hits: list[_Hit]) -> None:
    """One thread's, in order: what is called inside another call of cuBLAS is that call's."""
    layouts: list[tuple[int, int]] = []  # area, type
    until_ns = 0
    for hit in hits:
        if hit.begin_ns < until_ns:
            continue
        if hit.name.startswith(_LAYOUT):
            rows, columns = hit.values[:2]
            layouts.append((max(rows, 0) * max(columns, 0), hit.values[4]))
            continue
        if hit.name.startswith(_PRODUCT):
            flops, dtype = _of_layouts(layouts)
            layouts = []
        else:
            flops, dtype = _of_shape(hit)
        until_ns = hit.end_ns
        if flops:
            found.flops[dtype] = found.flops.get(dtype, 0.0) + flops
            found.calls += 1
        else:
            found.unknown += 1


def _of_layouts(layouts: list[tuple[int, int]]) -> tuple[float, str]:
    """0 FLOPs where it is not sure which are A's, B's and C's."""
    areas = [area for area, _ in layouts]
    if len(areas) == 4 and areas[2] == areas[3]:
        areas.pop()  # C and D are of one shape
    if len(areas) != 3 or any(not 0 < area < LARGEST**2 for area in areas):
        return 0.0, UNKNOWN
    a, b, c = (sqrt(area) for area in areas)
    return 2.0 * a * b * c, _BY_NUMBER.get(layouts[0][1], UNKNOWN)


def _of_shape(hit: _Hit) -> tuple[float, str]:
    *sizes, batches, number = hit.values
    if any(not 0 < size < LARGEST for size in sizes) or batches >= LARGEST:
        return 0.0, UNKNOWN
    m, n, k = map(float, sizes)
    letter = typed[1] if (typed := _TYPED.match(hit.name)) else ""
    each = 8.0 if letter and letter in _COMPLEX else 2.0
    dtype = _BY_LETTER[letter] if letter else _BY_NUMBER.get(number, UNKNOWN)
    return each * m * n * k * max(batches, 1), dtype
