"""What the host calls of a stretch of work show of how it used the GPU: sums for :mod:`~otelgpu.families.steps.hints`.

Pure.

In: operations of a step, or of a request, with their roles. Out: :class:`~otelgpu.families.steps.step.Evidence`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from otelgpu.engine.call_roles import H2D_COPIES, WAITS, Role, Roles, is_one_of
from otelgpu.families.steps.step import Evidence
from otelgpu.model.codes import order_of
from otelgpu.model.operations import Operations

_SYNCHRONISATIONS = (Role.WAIT_EVENT, Role.WAIT_STREAM, Role.WAIT_DEVICE)
# As plain numbers, for numpy asks a member of an enumeration what it is at each call.
_LAUNCH, _H2D_COPY = int(Role.LAUNCH), int(Role.H2D_COPY)

Groups = npt.NDArray[np.int64]


def evidence_of(rows: Operations, roles: Roles, tid: int) -> Evidence:
    """``tid``: the thread that launched; which call follows which is looked at among its calls only."""
    return evidence_by_group(rows, roles, np.zeros(len(rows), dtype=np.int64), np.array([tid]))[0]


def evidence_by_group(
    rows: Operations, roles: Roles, group: Groups, tids: npt.NDArray[np.int64]
) -> list[Evidence]:
    """The same of m stretches at once: ``group`` (n,) in ``range(m)``, ``tids`` (m,) the thread of each."""
    durations = rows["duration_ns"].astype(np.int64)
    waits = np.flatnonzero(is_one_of(roles, WAITS))
    mine = np.flatnonzero(rows["tid"] == tids[group])
    # Calls come in few runs that are in the order of time, which a stable sort is quick with.
    mine = mine[np.argsort(rows["start_ns"][mine], kind="stable")]
    mine = mine[order_of(group[mine], len(tids))]
    ordered, took, of = roles[mine], durations[mine], group[mine]
    h2d_copies = np.flatnonzero(ordered == _H2D_COPY)
    waited_for = np.flatnonzero(is_one_of(ordered[1:], _SYNCHRONISATIONS))  # by the call behind it
    waited_for = waited_for[of[waited_for] == of[waited_for + 1]]
    after_copy = waited_for[is_one_of(ordered[waited_for], H2D_COPIES)] + 1
    blocking = np.concatenate([h2d_copies, after_copy])

    def count(groups: Groups) -> list[int]:
        counted: list[int] = np.bincount(groups, minlength=len(tids)).tolist()
        return counted

    def total(groups: Groups, ns: npt.NDArray[np.int64]) -> list[int]:  # exact for 100 days
        summed: list[int] = np.bincount(groups, ns, len(tids)).astype(np.int64).tolist()
        return summed

    return [
        Evidence(
            calls=calls,
            launches=launches,
            host_ns=host_ns,
            wait_ns=wait_ns,
            blocking_copies=copies,
            blocking_copy_ns=copy_ns,
            waited_launches=waited_launches,
        )
        for calls, launches, host_ns, wait_ns, copies, copy_ns, waited_launches in zip(
            count(group),
            count(group[roles == _LAUNCH]),
            total(of, took),
            total(group[waits], durations[waits]),
            count(of[blocking]),
            total(of[blocking], took[blocking]),
            count(of[waited_for[ordered[waited_for] == _LAUNCH]]),
            strict=True,
        )
    ]
