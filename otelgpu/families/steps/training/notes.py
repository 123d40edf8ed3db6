"""What the calls of a training process are to its period: narrow notes, kept also of calls that are not held. Pure.

In: operations with their roles. Out: rows of :data:`NOTE`, and in the order in which the calls returned
:data:`COLLECTIVE` (what the period is made of) and :data:`MARK` (what may be a boundary).

Example: launch, copy 8 MiB to the device, copy 64 B, launch, AllReduce: a mark of 8 MiB and one of 64 B of one ``run``,
both of the ``stretch`` before collective 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.call_roles import H2D_COPIES, Role, Roles, is_one_of
from otelgpu.model.files import FileCall
from otelgpu.model.ids import combine
from otelgpu.model.operations import OperationKind, Operations, SequenceSource

Notes = npt.NDArray[np.void]

_APIS: Final = 1 << 16
_ENDS_KEPT: Final = 256
_LAUNCHES_KEPT: Final = 64


class Nature(IntEnum):
    """What a call moves among ranks, as far as it distinguishes training from serving, or whether it writes a file."""

    NONE = 0
    OTHER = 1
    REDUCE = 2  # every rank gets the sum
    REDUCE_PART = 3  # a rank gets its part of the sum, or one rank all
    SEND = 4
    RECEIVE = 5
    WRITE = 6  # moves nothing among ranks: it writes a file


_NATURES: Final[Sequence[tuple[re.Pattern[str], Nature]]] = tuple(
    (re.compile(rf"p?\w*ccl(?:{names})(?:Config)?|(?:gloo::|MPI_)(?i:{names})"), nature)
    for names, nature in (
        ("AllReduce", Nature.REDUCE),
        ("ReduceScatter|Reduce|Reduce_scatter|Reduce_scatter_block", Nature.REDUCE_PART),
        ("Send|Ssend|PutSignal", Nature.SEND),
        ("Recv|WaitSignal", Nature.RECEIVE),
    )
)

_RUNS: Final = re.compile(r"(?:gloo::|MPI_)\w+")
"""Functions that return when the collective has ended for their rank."""

NOTE: Final = np.dtype(
    [
        ("start_ns", "<u8"),
        ("end_ns", "<u8"),
        ("symbol", "<u8"),  # collectives: what it is; 0: no collective
        ("stream", "<u8"),  # that the call queues work on, or waits for; of files: which
        ("size_bytes", "<u8"),
        ("tid", "<u4"),
        ("peer", "<i4"),
        ("role", "u1"),
        ("nature", "u1"),
        ("run", "?"),  # a collective that has ended when the call returns; False: was queued
    ]
)
"""Shape (n,). One row per call that has a role or is a collective or a send or receive."""

COLLECTIVE: Final = np.dtype(
    [
        *NOTE.descr,
        ("ordinal", "<i8"),
        ("launched", "<i8"),
        ("h2d_copies", "?"),
        ("waits", "?"),
        ("beside", "?"),
    ]
)
"""``ordinal``: of the process's collectives, from 0. ``launched``: launches before. ``h2d_copies``, ``waits``: whether
there was any :data:`MARK` of that kind since the collective before. ``beside``: the last launch was on another
stream."""

MARK: Final = np.dtype(
    [
        *(("start_ns", "<u8"), ("end_ns", "<u8"), ("before_ns", "<u8"), ("size_bytes", "<u8")),
        *(("stretch", "<i8"), ("launched", "<i8"), ("tid", "<u4"), ("h2d_copy", "?")),
    ]
)
"""A copy to the device, or a wait; of programs that drive no device a wait for a batch of data, as a copy of one byte,
or a backward pass; where it calls its collectives itself (MPI) the return of any. ``before_ns``: when the last call
before it had returned, on whatever thread. ``stretch``: the ordinal of the next collective. ``launched``: launches
before; host-to-device copies of one stretch between which nothing was launched are a *run*."""

_HANDLES: Final = (Role.WAIT_STREAM, Role.FILE)
_WAITS: Final = (Role.D2H_COPY, Role.WAIT_STREAM, Role.WAIT_DEVICE, Role.BACKWARD)
"""Waits for events are none: libraries that keep few collectives under way wait for an event at each layer."""


class TrainingCalls:
    """What a session's functions move among ranks. ``apis``: by position of the family, code → exported name."""

    def __init__(self, apis: Sequence[Mapping[int, str]]) -> None:
        self._natures = np.full((max(len(apis), 1), _APIS), Nature.OTHER, dtype=np.uint8)
        self._runs = np.zeros((max(len(apis), 1), _APIS), dtype=np.bool_)
        for family, names in enumerate(apis):
            for code, name in names.items():
                self._runs[family, code] = _RUNS.fullmatch(name) is not None
                self._natures[family, code] = next(
                    (nature for pattern, nature in _NATURES if pattern.fullmatch(name)), Nature.OTHER
                )

    def notes(self, rows: Operations, roles: Roles) -> Notes:
        """Of the rows that matter, in their order. A call that failed moved nothing, nor one noted into a graph."""
        moves = communicates(rows)
        moves &= ~((rows["status"] != 0) & (rows["returned"] == 1))
        moves &= rows["sequence_source"] != SequenceSource.CAPTURED
        chosen = np.flatnonzero(moves | (roles != Role.OTHER))
        mine = rows.take(chosen)
        notes = np.zeros(len(mine), dtype=NOTE)
        notes["start_ns"] = mine["start_ns"]
        notes["end_ns"] = np.maximum(mine["start_ns"] + mine["duration_ns"], mine["start_ns"])
        notes["tid"], notes["role"] = mine["tid"], roles[chosen]
        notes["stream"] = np.where(is_one_of(notes["role"], _HANDLES), mine["handle"], mine["stream"])
        notes["size_bytes"] = mine["size_bytes"]
        writes = (mine["kind"] == OperationKind.FILE) & (mine["api"] == FileCall.WRITE)
        notes["nature"][writes] = Nature.WRITE
        moving = np.flatnonzero(moves[chosen])
        if len(moving):
            calls = mine.take(moving)
            families = np.minimum(calls["family"], len(self._natures) - 1)
            notes["nature"][moving] = self._natures[families, calls["api"]]
            notes["run"][moving] = self._runs[families, calls["api"]]
            notes["peer"][moving] = calls["peer"]
            notes["symbol"][moving] = _symbols(calls)
        return notes


def communicates(rows: Operations) -> npt.NDArray[np.bool_]:
    """Collectives, sends and receives: shape (n,)."""
    kinds = rows["kind"]
    found: npt.NDArray[np.bool_] = kinds == OperationKind.COLLECTIVE
    found |= kinds == OperationKind.POINT_TO_POINT
    return found


def _symbols(calls: Operations) -> npt.NDArray[np.uint64]:
    """What a collective is, as one word: function, communicator, bytes, type and peer; never 0."""
    what = (calls["family"].astype(np.uint64) << np.uint64(32)) | (
        calls["api"].astype(np.uint64) << np.uint64(8)
    )
    what |= calls["datatype"]
    peers = calls["peer"].astype(np.uint32).astype(np.uint64)
    words = combine(0, what, calls["handle"].astype(np.uint64), calls["size_bytes"], peers)
    words[words == 0] = 1
    return words


def calls_itself(notes: Notes) -> npt.NDArray[np.bool_]:
    """Collectives, sends and receives for which the thread that works for the step waits: shape (n,)."""
    found: npt.NDArray[np.bool_] = (notes["role"] == Role.COMMUNICATION_WAIT) & (notes["symbol"] != 0)
    return found


class NoteReader:
    """Notes of one process in the order in which the calls returned → its collectives and marks.

    It is given nothing of files: to read the next batch is to be in no call.
    """

    def __init__(self) -> None:
        self._launched = 0
        self._ordinal = 0
        self._ends = np.zeros(0, dtype=np.uint64)  # of the last calls, ascending
        self._open = np.zeros(0, dtype=MARK)  # since the last collective
        self._launches = np.zeros(0, dtype=NOTE)  # the last ones

    def read(self, notes: Notes) -> tuple[Notes, Notes]:
        """The collectives, shape (c,), and the marks, shape (m,), of more notes, ascending by ``end_ns``."""
        launched = self._launched + np.cumsum(notes["role"] == Role.LAUNCH)
        moving = notes["symbol"] != 0
        counted = np.cumsum(moving)
        chosen = np.flatnonzero(moving)
        collectives = np.zeros(len(chosen), dtype=COLLECTIVE)
        for column in NOTE.names or ():
            collectives[column] = notes[column][chosen]
        collectives["ordinal"] = self._ordinal + np.arange(len(chosen))
        collectives["launched"] = launched[chosen]
        collectives["beside"] = self._beside(notes, collectives)
        marks = self._marks(notes, launched, counted)
        since = np.concatenate([self._open, marks])
        for column, h2d_copies in (("h2d_copies", True), ("waits", False)):
            stretches = since["stretch"][since["h2d_copy"] == h2d_copies]
            collectives[column] = np.isin(collectives["ordinal"], stretches)
        self._launched = int(launched[-1]) if len(launched) else self._launched
        self._ordinal += len(chosen)
        # One of each kind is enough to say that there was any.
        opened = since.compress(since["stretch"] == self._ordinal)
        _, first = np.unique(opened["h2d_copy"], return_index=True)
        self._open = opened[first]
        self._ends = np.concatenate([self._ends, notes["end_ns"]])[-_ENDS_KEPT:]
        return collectives, marks

    def _beside(self, notes: Notes, collectives: Notes) -> npt.NDArray[np.bool_]:
        """Whether the last launch that returned before each collective was called is on another stream."""
        launches = np.concatenate([self._launches, notes.compress(notes["role"] == Role.LAUNCH)])
        self._launches = launches[-_LAUNCHES_KEPT:]
        last = np.searchsorted(launches["end_ns"], collectives["start_ns"], side="right") - 1
        found: npt.NDArray[np.bool_] = last >= 0
        found[found] = launches["stream"][last[found]] != collectives["stream"][found]
        return found

    def _marks(self, notes: Notes, launched: npt.NDArray[np.int64], counted: npt.NDArray[np.int64]) -> Notes:
        loads = notes["role"] == Role.DATA_LOADER
        h2d_copies = is_one_of(notes["role"], H2D_COPIES) | loads
        chosen = np.flatnonzero(h2d_copies | is_one_of(notes["role"], _WAITS) | calls_itself(notes))
        marks = np.zeros(len(chosen), dtype=MARK)
        for column in ("start_ns", "end_ns", "size_bytes", "tid"):
            marks[column] = notes[column][chosen]
        marks["h2d_copy"] = h2d_copies[chosen]
        marks["launched"] = launched[chosen]
        marks["stretch"] = self._ordinal + counted[chosen]
        ends = np.concatenate([self._ends, notes["end_ns"]])
        before = np.searchsorted(ends, marks["start_ns"], side="right") - 1
        known = before >= 0
        marks["before_ns"] = np.where(
            known, ends[np.maximum(before, 0)] if len(ends) else 0, marks["start_ns"]
        )
        loads = loads[chosen]
        marks["before_ns"][loads], marks["size_bytes"][loads] = marks["start_ns"][loads], 1
        return marks
