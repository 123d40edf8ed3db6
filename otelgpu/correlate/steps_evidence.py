"""What the host calls of a stretch of work tell of how it used the GPU: sums for :mod:`~otelgpu.correlate.hints`. Pure.

In: operations of a step, or of a request, with their roles. Out: :class:`~otelgpu.model.steps.Evidence`.
"""

from __future__ import annotations

import numpy as np

from otelgpu.correlate.steps_rules import WAITS, Role, Roles, is_one_of
from otelgpu.model.operations import Operations
from otelgpu.model.steps import Evidence

_SYNCHRONISATIONS = (Role.WAIT_EVENT, Role.WAIT_STREAM, Role.WAIT_DEVICE)
_UPLOADS = (Role.UPLOAD, Role.UPLOAD_QUEUED)


def evidence_of(rows: Operations, roles: Roles, tid: int) -> Evidence:
    """``tid``: the thread that launched; what follows what is told of its calls only."""
    durations = rows["duration_ns"].astype(np.int64)
    waits = is_one_of(roles, WAITS)
    mine = np.flatnonzero(rows["tid"] == tid)
    mine = mine[np.argsort(rows["start_ns"][mine], kind="stable")]
    ordered, took = roles[mine], durations[mine]
    after_upload = is_one_of(ordered[1:], _SYNCHRONISATIONS) & is_one_of(ordered[:-1], _UPLOADS)
    uploads = ordered == Role.UPLOAD
    return Evidence(
        calls=len(rows),
        launches=int(np.count_nonzero(roles == Role.LAUNCH)),
        host_ns=int(took.sum()),
        wait_ns=int(durations[waits].sum()),
        blocking_copies=int(np.count_nonzero(uploads) + np.count_nonzero(after_upload)),
        blocking_copy_ns=int(took[uploads].sum() + took[1:][after_upload].sum()),
        waited_launches=int(
            np.count_nonzero((ordered[:-1] == Role.LAUNCH) & is_one_of(ordered[1:], _SYNCHRONISATIONS))
        ),
    )
