"""Records of family ``process`` as a loaded family drains them one by one."""

from __future__ import annotations

import numpy as np

from otelgpu.kernel.loader import Single


def single(kind: str, record: np.void) -> Single:
    """Of one that has at least ``head`` with its times and ``tgid``."""
    time_ns, duration_ns, tgid = (int(record["head"][name]) for name in ("time_ns", "duration_ns", "tgid"))
    return Single(kind, record.dtype, time_ns, duration_ns, tgid, record.tobytes())
