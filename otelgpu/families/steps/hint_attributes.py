"""Hints → attributes of the spans of steps and of requests. Pure.

In: evidence of a step, or the operations of requests. Out: ``otelgpu.hints`` and the share that raised each.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.call_roles import Role, StepCalls
from otelgpu.families.steps import names as step_names
from otelgpu.families.steps.evidence import evidence_by_group
from otelgpu.families.steps.hints import hints
from otelgpu.families.steps.step import Evidence
from otelgpu.model.codes import all_of, combine, distinct, examples
from otelgpu.model.operations import Operations

_LAUNCH: Final = int(Role.LAUNCH)  # numpy asks a member of an enumeration what it is at each call


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
    found: list[dict[str, Any]] = [{} for _ in range(requests)]
    roles = calls.roles(rows)
    launches = roles == _LAUNCH
    launching, tids = _launching(request[launches], rows["tid"][launches].astype(np.int64))
    if not len(launching):
        return found
    place = np.full(requests, -1, dtype=np.int64)
    place[launching] = np.arange(len(launching))
    group = place[request]
    theirs = group >= 0
    if not all_of(theirs):
        rows, roles, group = rows.compress(theirs), roles[theirs], group[theirs]
    first = np.full(len(launching), np.iinfo(np.int64).max)
    last = np.zeros(len(launching), dtype=np.int64)
    starts = rows["start_ns"].astype(np.int64)
    np.minimum.at(first, group, starts)
    np.maximum.at(last, group, starts + rows["duration_ns"].astype(np.int64))
    evidence = evidence_by_group(rows, roles, group, tids)
    for each, of, elapsed_ns in zip(launching.tolist(), evidence, (last - first).tolist(), strict=True):
        found[each] = hint_values(of, elapsed_ns)
    return found


def _launching(
    request: npt.NDArray[np.int64], tids: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of launches' requests and threads: which requests there are, ascending, and who launched most of each."""
    requests = int(request.max(initial=-1)) + 1
    one = np.full(requests, -1, dtype=np.int64)
    one[request] = tids
    if all_of(one[request] == tids):  # nearly always: each request has one thread that launches
        whose = np.flatnonzero(one >= 0)
        return whose, one[whose]
    values, threads = distinct(tids)
    pairs, count = combine([(request, requests), (threads, len(values))], len(request))
    some = examples(pairs, count)
    whose, launcher = request[some], tids[some]
    most = np.lexsort((launcher, -np.bincount(pairs, minlength=count), whose))
    whose, launcher = whose[most], launcher[most]
    firsts = np.flatnonzero(np.diff(whose, prepend=-1))
    return whose[firsts], launcher[firsts]
