"""Hints → attributes of the spans of steps and of requests. Pure.

In: evidence of a step, or the operations of requests. Out: ``otelgpu.hints`` and the share that raised each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.hints import hints
from otelgpu.correlate.steps_evidence import evidence_of
from otelgpu.correlate.steps_rules import Role, StepCalls
from otelgpu.model.codes import order_of
from otelgpu.model.operations import Operations
from otelgpu.model.steps import Evidence
from otelgpu.signals import step_names


def hint_values(evidence: Evidence, elapsed_ns: int) -> dict[str, Any]:
    """The attributes of one span."""
    raised = hints(evidence, elapsed_ns)
    if not raised:
        return {}
    shares = {step_names.HINT_EVIDENCE + name: share for name, share in raised.items()}
    return {step_names.HINTS: tuple(raised), **shares}


def request_hints(
    rows: Operations, request: npt.NDArray[np.int64], requests: int, calls: StepCalls
) -> list[dict[str, Any]]:
    """The attributes of each request; ``rows`` are their operations, ``request`` (n,) in ``range(requests)`` whose.

    Shares of time are of the time from a request's first call to the return of its last one, for it need not have
    worked with the GPU before and after. Its thread is the one that launched most.
    """
    if not len(rows):
        return [{}] * requests
    order = order_of(request, requests)
    ends = np.cumsum(np.bincount(request, minlength=requests))
    return [_hints_of(rows.take(mine), calls) for mine in np.split(order, ends[:-1])]


def _hints_of(rows: Operations, calls: StepCalls) -> dict[str, Any]:
    roles = calls.roles(rows)
    launching = rows["tid"][roles == Role.LAUNCH]
    if not len(launching):
        return {}
    tids, counts = np.unique(launching, return_counts=True)
    elapsed_ns = int((rows["start_ns"] + rows["duration_ns"]).max()) - int(rows["start_ns"].min())
    return hint_values(evidence_of(rows, roles, int(tids[counts.argmax()])), elapsed_ns)
