"""What a device did, as it measured it itself, in columns: one numpy structured array whatever the vendor.

:data:`ACTIVITY` is what a source reports (laid out as ``struct cuda_activity``, so that decoding is looking at
the same bytes differently); :data:`DEVICE_WORK` is an activity joined to the host call that caused it. A row
of the latter begins as one of :data:`~otelgpu.model.operations.OPERATION` does and holds the *host call's*
start, thread, context and API function there: what asks which request a call was for, or holds calls until
it is answered, takes device work for the call (``rows.view(OPERATION)``).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.model.operations import OPERATION, OperationKind, Operations, concatenate


class Work(IntEnum):
    """What kind of work; the numbers are those of ``enum cuda_work``."""

    KERNEL = 1
    COPY = 2
    SET = 3


_CAUSES: Final = (OperationKind.LAUNCH, OperationKind.GRAPH_LAUNCH, OperationKind.COPY, OperationKind.SET)

_ACTIVITY: Final[tuple[tuple[str, Any, int], ...]] = (
    ("start_ns", "<u8", 0),  # CLOCK_MONOTONIC, on the device
    ("duration_ns", "<u8", 8),
    ("tgid", "<u4", 16),
    ("kind", "<u2", 56),
    ("name", "<u8", 64),  # kernels: what ActivityNames reports names by
    ("size_bytes", "<u8", 72),
    ("graph_node", "<u8", 80),
    ("slice_ns", "<u8", 88),
    ("correlation", "<u4", 96),
    ("graph", "<u4", 100),
    ("stream_id", "<u4", 104),
    ("context", "<u4", 108),
    ("detail", "<u4", 112),
    ("sampled", "<u4", 116),
    ("work", "<u2", 124),
    ("device", "<i2", 126),
)

_DEVICE_WORK: Final[tuple[tuple[str, Any, int], ...]] = (
    # As an operation: of the host call.
    ("start_ns", "<u8", 0),
    ("duration_ns", "<u8", 8),  # of the work, on the device
    ("tgid", "<u4", 16),
    ("tid", "<u4", 20),
    ("host_end_ns", "<u8", 24),  # of the host call; an operation has its control group here
    ("kind", "<u2", 56),  # OperationKind
    ("work", "u1", 58),  # Work; an operation has the CPU here, where no device's work ran
    ("context_source", "u1", 61),
    ("family", "u1", 63),
    # Of the work. `name`, `size_bytes`, `stream`, `api` and `device` lie where an operation has them.
    ("device_start_ns", "<u8", 64),
    ("name", "<u4", 72),  # index into the session's kernel names; 0 is "unknown"
    ("sampled", "<u4", 76),  # share of time that was measured before, in millionths
    ("size_bytes", "<u8", 80),  # copies and sets
    ("stream", "<u8", 88),  # the handle that the host call was given
    ("graph_node", "<u8", 96),  # 0: not of a graph
    ("name_id", "<u8", 104),
    ("stream_id", "<u4", 112),  # the number that the device's profiler gives streams
    ("graph", "<u4", 116),
    ("correlation", "<u4", 120),
    ("api", "<u2", 124),
    ("device", "<i2", 126),
)


def _dtype(fields: tuple[tuple[str, Any, int], ...]) -> np.dtype[np.void]:
    return np.dtype(
        {
            "names": [name for name, _, _ in fields],
            "formats": [form for _, form, _ in fields],
            "offsets": [offset for _, _, offset in fields],
            "itemsize": 128,
        }
    )


ACTIVITY = _dtype(_ACTIVITY)
"""Shape (n,). One row per piece of work, in no particular order."""

DEVICE_WORK = _dtype(_DEVICE_WORK)
"""Shape (n,). One row per piece of work whose host call is known."""

Activities = npt.NDArray[np.void]
DeviceWork = npt.NDArray[np.void]


def causes_work(rows: Operations) -> npt.NDArray[np.bool_]:
    """Which calls make the device work: shape (n,)."""
    return np.isin(rows["kind"], _CAUSES)


def correlations(rows: Operations) -> npt.NDArray[np.uint64]:
    """What each call's record says of its activities, 0 for nothing: shape (n,); see CORRELATION in cupti.h.

    To be asked before launches get their kernel names, which lie in the same bytes.
    """
    reported: npt.NDArray[np.uint64] = np.where(
        rows["kind"] == OperationKind.LAUNCH, rows["other"], rows["caller"]
    )
    if reported.any():  # nearly never, unless device time is measured
        reported[~causes_work(rows)] = 0
    return reported


def join_work(parts: Sequence[DeviceWork]) -> DeviceWork:
    """One after the other."""
    return concatenate([part.view(OPERATION) for part in parts]).view(DEVICE_WORK)
