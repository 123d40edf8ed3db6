"""Calls of collectives while they wait to be reported: rows and what was found out of each. Pure.

Two arrays side by side: the operations as they came, and :data:`FOUND`. Ids are made of nothing but what all ranks
know (communicator hash, function, number, rank), with no seed of a session: agents that never heard of each other
thus report one trace.
"""

from __future__ import annotations

from typing import Final, Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.families.nccl.collective_names import COLLECTIVE, RECEIVE, SEND
from otelgpu.families.nccl.numbering import Numbered, Numbers
from otelgpu.model.codes import Codes
from otelgpu.model.ids import span_ids, trace_ids
from otelgpu.model.operations import OPERATION, OperationKind, Operations, concatenate
from otelgpu.model.sampling import RANDOM_BITS, threshold

FOUND = np.dtype(
    [
        ("trace_id", "u1", 16),
        ("span_id", "u1", 8),
        ("parent", "u1", 8),  # zeros: none
        ("key", "<u8"),  # low word of the trace id
        ("hash", "<u8"),
        ("number", "<u8"),
        ("place", "<u8"),
        ("arrived_ns", "<u8"),  # the tick with which it came
        ("wait_start_ns", "<u8"),
        ("wait_end_ns", "<u8"),  # 0: nothing waited for it yet
        ("device_ns", "<u8"),  # 0: not measured
        ("launch_end_ns", "<u8"),  # what this thread launched until then is this call's
        ("owner", "<i8"),
        ("rank", "<i4"),  # -1: not known
        ("ranks", "<i4"),  # -1: not known
        ("wait_count", "<u4"),  # collectives that the wait was for; 0: the wait is another's
        ("wait_tid", "<u4"),
        ("wait_api", "<u2"),
        ("function", "<u2"),  # index into the session's functions
        ("source", "u1"),  # Numbered
        ("way", "i1"),
        ("shared", "?"),  # other ranks' calls are in the same trace
        ("waited", "?"),
        ("wait_family", "u1"),
        ("run", "?"),  # the call returned when the collective had ended for its rank
        ("spare", "u1", 6),
    ]
)
"""Shape (n,). What was found out of a call."""

_FOUND_BYTES: Final = np.dtype((np.void, FOUND.itemsize))

_TRACE_SALT: Final = 0x6E63636C
_SPAN_SALT: Final = 0x6E637370
_ROOT_SALT: Final = 0x6E63726F
_OWN_SALT: Final = 0x6E636F77
_OWN_SPAN_SALT: Final = 0x6E636F73
_WAIT_SALT: Final = 0x6E637774

Found = npt.NDArray[np.void]


class Calls(Struct):
    """n calls. Both arrays have n rows."""

    rows: Operations
    found: Found

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def none(cls) -> Self:
        """Of length 0."""
        return cls(np.zeros(0, dtype=OPERATION), np.zeros(0, dtype=FOUND))

    def joined(self, more: Calls) -> Calls:
        """Both, one after the other."""
        if not len(more):
            return self
        if not len(self):
            return more
        plain = [part.view(_FOUND_BYTES) for part in (self.found, more.found)]
        return Calls(concatenate([self.rows, more.rows]), np.concatenate(plain).view(FOUND))

    def take(self, chosen: Codes) -> Calls:
        """The rows at some positions."""
        return Calls(self.rows.take(chosen), self.found.view(_FOUND_BYTES).take(chosen).view(FOUND))

    def ends_ns(self) -> npt.NDArray[np.uint64]:
        """Where each call's host time ends."""
        ends: npt.NDArray[np.uint64] = self.rows["start_ns"] + self.rows["duration_ns"]
        return ends


def found_of(
    rows: Operations,
    numbers: Numbers,
    functions: Codes,
    called: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]],
    owners: npt.NDArray[np.int64],
    *,
    seed: int,
    now_ns: int,
) -> Found:
    """``called``: the way of each row's function, and the word of its name."""
    way, words = called
    found = np.zeros(len(rows), dtype=FOUND)
    found["hash"], found["number"], found["place"] = numbers.hash, numbers.number, numbers.place
    found["rank"], found["ranks"], found["source"] = (
        np.maximum(numbers.rank, -1),
        numbers.ranks,
        numbers.source,
    )
    found["way"], found["function"], found["owner"] = way, functions, owners
    found["arrived_ns"] = now_ns
    found["launch_end_ns"] = rows["start_ns"] + rows["duration_ns"]
    found["shared"] = np.isin(numbers.source, [source for source in Numbered if source.shared])
    shared = np.flatnonzero(found["shared"])
    _set_shared(rows, found, shared, words[shared], seed)
    _set_own(rows, found, np.flatnonzero(~found["shared"]), seed)
    return found


def _set_shared(
    rows: Operations, found: Found, chosen: Codes, words: npt.NDArray[np.uint64], seed: int
) -> None:
    what = found["hash"][chosen], words, found["number"][chosen], found["place"][chosen]
    traces = trace_ids(_TRACE_SALT, *what)
    found["trace_id"][chosen] = traces
    found["key"][chosen] = _low_word(traces)
    way = found["way"][chosen]
    # A send's span is the root of its pair, so that it is reported once, by whoever sees the sender.
    role = np.where(way == RECEIVE, np.uint64(1), np.uint64(0))
    rank = found["rank"][chosen].astype(np.int64).view(np.uint64)
    spans = span_ids(_SPAN_SALT, *what, rank, role)
    nameless = np.flatnonzero(found["rank"][chosen] < 0)
    if len(nameless):  # there may be several, which only their addresses and times distinguish
        spans[nameless] = span_ids(seed ^ _OWN_SPAN_SALT, *_call_words(rows.take(chosen[nameless])))
    root = span_ids(_ROOT_SALT, *what)
    found["span_id"][chosen] = np.where((way == SEND)[:, None], root, spans)
    found["parent"][chosen] = np.where((way == SEND)[:, None], np.uint8(0), root)


def _set_own(rows: Operations, found: Found, chosen: Codes, seed: int) -> None:
    """Ids of a trace of its own, made as all others of a session are."""
    what = _call_words(rows.take(chosen))
    traces = trace_ids(seed ^ _OWN_SALT, *what)
    found["trace_id"][chosen] = traces
    found["key"][chosen] = _low_word(traces)
    found["span_id"][chosen] = span_ids(seed ^ _OWN_SPAN_SALT, *what)
    found["parent"][chosen] = 0
    found["shared"][chosen] = False


def _call_words(rows: Operations) -> tuple[npt.NDArray[np.uint64], ...]:
    """What distinguishes calls from all others of a host."""
    thread = (rows["tgid"].astype(np.uint64) << np.uint64(32)) | rows["tid"]
    return thread, rows["start_ns"].copy(), rows["handle"].copy()


def set_apart(calls: Calls, chosen: Codes, *, seed: int) -> None:
    """Give calls traces of their own, for their numbers are another's."""
    calls.found["source"][chosen] = Numbered.NONE
    _set_own(calls.rows, calls.found, chosen, seed)


def _low_word(traces: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(traces[:, 8:]).view(">u8").reshape(-1).astype(np.uint64)


def wait_ids(found: Found, *, seed: int) -> npt.NDArray[np.uint8]:
    """(n, 8) span ids of the waits for calls."""
    spans = np.ascontiguousarray(found["span_id"]).view(np.uint64).reshape(-1)
    return span_ids(seed ^ _WAIT_SALT, spans, found["wait_start_ns"], found["wait_tid"].astype(np.uint64))


def is_collective(rows: Operations, found: Found) -> npt.NDArray[np.bool_]:
    """Which calls are of a collective that other ranks are in as well."""
    kind = rows["kind"] == OperationKind.COLLECTIVE
    together: npt.NDArray[np.bool_] = found["shared"] & kind & (found["way"] == COLLECTIVE)
    return together


def keeps(found: Found, ratio: float) -> npt.NDArray[np.bool_]:
    """Which traces are reported, of a fraction: the same on every rank, for the trace id alone decides.

    OpenTelemetry's consistent probability sampling (OTEP 235): kept where the low 56 bits are at or above a threshold.
    """
    if ratio >= 1:
        return np.ones(len(found), dtype=np.bool_)
    kept: npt.NDArray[np.bool_] = (found["key"] & _RANDOM) >= np.uint64(threshold(ratio))
    return kept


_RANDOM: Final = np.uint64(RANDOM_BITS)
