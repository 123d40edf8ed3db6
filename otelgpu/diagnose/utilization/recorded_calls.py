"""Calls of CUDA in the spans of a file, as OTLP/JSON has them. Pure.

In: lines, whoever wrote them. Out: :class:`GpuCalls` and :class:`DeviceTimes`; what cannot be read is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from otelgpu.diagnose.utilization.gpu_calls import MOST_CALLS, DeviceTimes, GpuCalls, kind_of
from otelgpu.otlp_json.reader import Reader, attributes, time_ns

_SCOPE = "otelgpu.cuda"
_MARK = b'"otelgpu.cuda"'
_LARGEST = 1 << 62


def recorded_calls(lines: Iterable[bytes | None], rejected: dict[str, int]) -> tuple[GpuCalls, DeviceTimes]:
    """All of a file. ``rejected``: reason → how many, added to."""
    reader = Reader()
    calls: list[tuple[int, ...]] = []
    times: list[tuple[int, ...]] = []
    beyond = merged = 0
    for document in reader.documents(lines, containing=_MARK):
        for of_resource in document.resource_spans:
            pid = _pid(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                if scope.scope.name != _SCOPE or pid is None:
                    continue
                for span in reader.spans(scope):
                    try:
                        described = attributes(span.attributes)
                        begin, end = time_ns(span.start_time_unix_nano), time_ns(span.end_time_unix_nano)
                    except ValueError as error:
                        reader.skip("spans_unreadable", error)
                        continue
                    if len(calls) + len(times) >= MOST_CALLS or end < begin:
                        beyond += 1
                    elif "cuda.call.delay" in described:
                        times.append((begin, end, pid, int(span.name not in ("memcpy", "memset"))))
                    elif described.get("otelgpu.merged") is True:
                        merged += _number(described, "otelgpu.count", 1)
                    else:
                        calls.append(_call(span.name, described, begin, end, pid))
    for reason, count in reader.skips.counts.items():
        rejected[reason] = rejected.get(reason, 0) + count
    for reason, count in (("calls_left_out", beyond), ("calls_merged", merged)):
        if count:
            rejected[reason] = rejected.get(reason, 0) + count
    return _calls(calls), _times(times)


def _pid(raw: object) -> int | None:
    try:
        pid = attributes(raw).get("process.pid")  # type: ignore[arg-type]
    except ValueError:
        return None
    return pid if isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < _LARGEST else None


def _number(described: Mapping[str, object], key: str, missing: int = -1) -> int:
    """``missing``: of an attribute that is none, or out of range."""
    value = described.get(key)
    return value if isinstance(value, int) and 0 <= value < _LARGEST else missing


def _call(name: str, described: Mapping[str, object], begin: int, end: int, pid: int) -> tuple[int, ...]:
    grid = [min(_number(described, f"cuda.grid.{axis}"), 1 << 20) for axis in "xyz"]
    blocks = grid[0] * max(grid[1], 1) * max(grid[2], 1) if grid[0] > 0 else -1
    return (
        begin,
        end,
        kind_of(name.partition(" ")[0]),
        pid,
        _number(described, "thread.id"),
        max(_number(described, "otelgpu.count", 1), 1),
        _number(described, "cuda.size"),
        int(described.get("cuda.memcpy.kind") == "MemcpyDeviceToHost"),
        blocks,
        _number(described, "cuda.device.index"),
    )


def _calls(rows: list[tuple[int, ...]]) -> GpuCalls:
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, len(GpuCalls.__struct_fields__))
    columns = {name: table[:, at] for at, name in enumerate(GpuCalls.__struct_fields__)}
    return GpuCalls(**{**columns, "to_host": columns["to_host"] != 0})


def _times(rows: list[tuple[int, ...]]) -> DeviceTimes:
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)
    return DeviceTimes(begin_ns=table[:, 0], end_ns=table[:, 1], pid=table[:, 2], is_kernel=table[:, 3] != 0)
