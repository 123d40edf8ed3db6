"""What a call is to a step: a table of names, the same for CUDA, HIP, runtime and driver. Pure.

In: operations and the exported names of their functions. Out: a :class:`Role` for each. Functions of all vendors
share their words (``cudaEventRecord``, ``cuEventRecord``, ``hipEventRecord``), so that the table has no vendor.

Example: ``cudaMemcpyAsync`` device to host is a D2H_COPY_QUEUED, ``cuMemcpyDtoH_v2`` a D2H_COPY, which waits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.operations import CopyDirection, OperationKind, Operations
from otelgpu.model.stretches import Stretch

Roles = npt.NDArray[np.uint8]

_MS: Final = 1_000_000
_APIS: Final = 1 << 16


class Role(IntEnum):
    """What a call is to a step."""

    OTHER = 0
    LAUNCH = 1  # of a kernel or a graph
    COPY = 2  # queued work that is no launch: between devices, a fill
    H2D_COPY = 3  # to the device; came back when it was done
    H2D_COPY_QUEUED = 4
    D2H_COPY = 5  # to the host; came back when it was done: a wait
    D2H_COPY_QUEUED = 6
    RECORD = 7  # an event
    WAIT_EVENT = 8
    WAIT_STREAM = 9
    WAIT_DEVICE = 10
    CAPTURE_BEGIN = 11  # of a graph: what the thread queues from here on is noted, not done
    CAPTURE_END = 12
    FILE = 13  # a file read, written or synced
    DATA_LOADER = 14  # the program asked for its next batch, until it had it
    BACKWARD = 15  # a backward pass, which computes on the thread that it is on
    COMMUNICATION_WAIT = 16  # a wait for collectives that other threads run; of MPI the collective itself


STRETCHES: Final = (Role.DATA_LOADER, Role.BACKWARD, Role.COMMUNICATION_WAIT)
"""What frameworks say of threads that compute themselves."""

H2D_COPIES: Final = (Role.H2D_COPY, Role.H2D_COPY_QUEUED)
"""Host-to-device copies."""

WORK: Final = (Role.LAUNCH, Role.COPY, *H2D_COPIES, Role.D2H_COPY, Role.D2H_COPY_QUEUED)
"""What a step may begin with."""

WAITS: Final = (Role.D2H_COPY, Role.WAIT_EVENT, Role.WAIT_STREAM, Role.WAIT_DEVICE)
"""What may end one."""

MARKS: Final = (*WAITS, Role.D2H_COPY_QUEUED, Role.RECORD)
"""What is looked at one by one: few calls of a step."""

_NAMES: Final[Sequence[tuple[re.Pattern[str], Role]]] = tuple(
    (re.compile(rf"(?:cuda|cu|hip)(?:{names})(?:WithFlags)?(?:_v\d+)?(?:_(?:ptsz|ptds|spt))?"), role)
    for names, role in (
        ("EventRecord", Role.RECORD),
        ("EventSynchronize", Role.WAIT_EVENT),
        ("StreamSynchronize", Role.WAIT_STREAM),
        ("(?:Device|Thread|Ctx|ExecutionCtx)Synchronize", Role.WAIT_DEVICE),
        ("StreamBegin(?:Rec|C)apture(?:ToGraph)?", Role.CAPTURE_BEGIN),
        ("StreamEndCapture", Role.CAPTURE_END),
    )
)

_COPIES: Final = np.full((256, 2), Role.COPY, dtype=np.uint8)
"""By direction and whether the function is asynchronous; a direction that the caller left open says nothing."""
_COPIES[CopyDirection.HOST_TO_DEVICE] = Role.H2D_COPY, Role.H2D_COPY_QUEUED
_COPIES[CopyDirection.DEVICE_TO_HOST] = Role.D2H_COPY, Role.D2H_COPY_QUEUED

_KINDS: Final = np.full(256, Role.OTHER, dtype=np.uint8)
"""By kind, where that says it."""
_KINDS[[OperationKind.LAUNCH, OperationKind.GRAPH_LAUNCH]] = Role.LAUNCH
_KINDS[OperationKind.SET] = Role.COPY
_KINDS[OperationKind.FILE] = Role.FILE

_STRETCHES: Final = np.full(256, Role.OTHER, dtype=np.uint8)
"""By which it is."""
_STRETCHES[[Stretch.DATA_LOADER, Stretch.BACKWARD, Stretch.COMMUNICATION_WAIT]] = STRETCHES


# As plain numbers, for numpy asks a member of an enumeration what it is at each call.
_OTHER, _COPY, _STRETCH = int(Role.OTHER), int(OperationKind.COPY), int(OperationKind.STRETCH)


class StepRules(Struct, frozen=True, kw_only=True):
    """How steps of a kind of program are reported; serving and training differ by this table.

    ``reads_results``: from its first copy to the host on, a thread's step ends only with a wait for such a copy,
    for tokens must reach the host. False: any wait for launched work ends one.
    ``send_delay_ns``: longest time from a step's end to the write of the message that reports its tokens, where
    nothing else says the message's step.
    ``settle_ns``: how long a message may wait for later ones to show of which step it is.
    ``grace_ns``: how long after its end a step is reported; more than both together.
    ``longest_ns``: a step that takes longer loses its first operations to the unattributed.
    ``by_time``: a process that serves is taken for an engine, and what it streams for its steps' by the order of time.
    Off for serving: calls that may be of a step are held until that is known, which for a server that is none takes
    longer than what is nobody's waits to be reported.
    """

    reads_results: bool = True
    send_delay_ns: int = 50 * _MS
    settle_ns: int = 250 * _MS
    grace_ns: int = 1_000 * _MS
    longest_ns: int = 30_000 * _MS
    by_time: bool = False


SERVING: Final = StepRules()

TRAINING: Final = StepRules(reads_results=False, settle_ns=500 * _MS, longest_ns=60_000 * _MS)
"""``settle_ns``: the first step that is reported begins at least so long after the period was established; what was fed
until then has been passed on, with ticks that are a second apart, too (``otelgpu/pace.py``); further apart, the first
steps are not reported. ``send_delay_ns``, ``grace_ns`` and ``by_time`` say nothing: nobody is sent anything."""


class StepCalls:
    """The roles of a session's functions. ``apis``: by position of the family, code → exported name."""

    def __init__(self, apis: Sequence[Mapping[int, str]]) -> None:
        self._named = np.zeros((max(len(apis), 1), _APIS), dtype=np.uint8)
        self._queued = np.zeros((max(len(apis), 1), _APIS), dtype=np.bool_)
        for family, names in enumerate(apis):
            for code, name in names.items():
                self._named[family, code] = _role_of(name)
                self._queued[family, code] = "Async" in name

    def roles(self, rows: Operations) -> Roles:
        """Shape (n,). A call that failed is OTHER: it launched nothing and waited for nothing."""
        kinds = np.minimum(rows["kind"], 255)
        roles: Roles = _KINDS.take(kinds)
        rest = np.flatnonzero(roles == _OTHER)  # few, where most are launches
        if len(rest):
            roles[rest] = self._named[self._families(rows, rest), rows["api"][rest]]
        copies = np.flatnonzero(kinds == _COPY)
        if len(copies):
            queued = self._queued[self._families(rows, copies), rows["api"][copies]]
            roles[copies] = _COPIES[np.minimum(rows["direction"][copies], 255), queued.astype(np.intp)]
        stretches = np.flatnonzero(kinds == _STRETCH)
        if len(stretches):
            roles[stretches] = _STRETCHES[np.minimum(rows["api"][stretches], 255)]
        failed = np.flatnonzero(rows["status"])
        if len(failed):
            roles[failed[rows["returned"][failed] == 1]] = _OTHER
        return roles

    def _families(self, rows: Operations, chosen: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
        families: npt.NDArray[np.uint8] = np.minimum(rows["family"][chosen], len(self._named) - 1)
        return families


@lru_cache(maxsize=1024)  # engines and training each ask of all functions
def _role_of(name: str) -> Role:
    if name.startswith("MPI_"):
        return Role.COMMUNICATION_WAIT
    return next((role for pattern, role in _NAMES if pattern.fullmatch(name)), Role.OTHER)


def pass_over_captured(rows: Operations, roles: Roles, capturing: set[int]) -> None:
    """What a thread queued while it captured a graph is work of no step: its roles become OTHER, in place.

    ``capturing``: the threads that are in a capture before these rows, and, in the end, after them.
    """
    if not capturing and not (roles == Role.CAPTURE_BEGIN).any():
        return
    for tid in set(rows["tid"].tolist()):
        mine = np.flatnonzero(rows["tid"] == tid)
        mine = mine[np.argsort(rows["start_ns"][mine], kind="stable")]
        marks = np.flatnonzero(is_one_of(roles[mine], (Role.CAPTURE_BEGIN, Role.CAPTURE_END)))
        after = np.concatenate([[tid in capturing], roles[mine[marks]] == Role.CAPTURE_BEGIN])
        captured = np.repeat(after, np.diff(marks, prepend=0, append=len(mine)))
        captured[marks] = False
        roles[mine[captured]] = Role.OTHER
        (capturing.add if after[-1] else capturing.discard)(tid)


def is_one_of(roles: Roles, wanted: Sequence[Role]) -> npt.NDArray[np.bool_]:
    """Which roles are among the ``wanted``: shape (n,)."""
    found: npt.NDArray[np.bool_] = _among(tuple(wanted)).take(roles)
    return found


@cache
def _among(wanted: tuple[Role, ...]) -> npt.NDArray[np.bool_]:
    among = np.zeros(max(Role) + 1, dtype=np.bool_)
    among[list(wanted)] = True
    return among
