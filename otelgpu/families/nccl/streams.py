"""What streams do to collectives: captures into graphs, waits of the host, work on the device. Pure.

In: calls of a device's API, collectives. Out: which collectives were only noted into a graph; which wait of the host
was for which collective.

A host call only queues a collective on a stream. The next synchronisation with that stream, or with the whole device,
by the same process waits for all that is queued there: its end is the first time at which the host knows that they
are done. The wait is the last one's, for the others had ended before it; it says how many it was for.

Example: AllReduce, AllReduce, AllGather on stream 7, cudaStreamSynchronize(7): the wait is AllGather's, for three.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from otelgpu.engine.call_roles import Role, StepCalls, is_one_of
from otelgpu.model.codes import Codes
from otelgpu.model.operations import OperationKind, Operations

_DEFAULT_STREAMS: Final = 2
"""Handles up to this one are each device's own default streams, and not the same on all devices."""

_MOST_STREAMS: Final = 1024
"""Streams of a process that are looked at; a program has a handful of them for collectives."""

_CAPTURES: Final = 1024
"""Captures that are under way at a time."""

Bools = npt.NDArray[np.bool_]


class StreamKey(NamedTuple):
    """A stream of a process. ``device`` is reported of default streams only."""

    tgid: int
    stream: int
    device: int


def key_of_stream(tgid: int, stream: int, device: int) -> StreamKey:
    """The stream_key of a call."""
    return StreamKey(tgid, stream, device if stream <= _DEFAULT_STREAMS else -1)


class Captures:
    """Which threads, or streams, are being captured into a graph."""

    def __init__(self, by: Literal["tid", "stream"]) -> None:
        self._by = by
        self._open: set[tuple[int, int]] = set()

    def captured(self, rows: Operations, calls: Operations, begins: Bools) -> Bools:
        """Which of ``rows`` are in a capture. ``calls``: its beginnings and ends since the last time."""
        found = np.zeros(len(rows), dtype=np.bool_)
        if not len(calls) and not self._open:
            return found
        marks: dict[tuple[int, int], list[tuple[int, bool]]] = {}
        for tgid, one, start, begin in zip(
            *(calls[name].tolist() for name in ("tgid", self._by, "start_ns")), begins.tolist(), strict=True
        ):
            if one:  # the legacy default stream cannot be captured
                marks.setdefault((tgid, one), []).append((start, begin))
        for key in marks.keys() | self._open:
            reported = sorted(marks.get(key, ()))
            mine = np.flatnonzero((rows["tgid"] == key[0]) & (rows[self._by] == key[1]))
            states = np.array([key in self._open, *(begin for _, begin in reported)], dtype=np.bool_)
            times = np.array([start for start, _ in reported], dtype=np.uint64)
            found[mine] = states[np.searchsorted(times, rows["start_ns"][mine], side="right")]
            (self._open.add if states[-1] else self._open.discard)(key)
        while len(self._open) > _CAPTURES:
            self._open.pop()
        return found

    def forget_process(self, tgid: int) -> None:
        """A process has ended."""
        self._open = {key for key in self._open if key[0] != tgid}


class DeviceCalls(NamedTuple):
    """Of calls of a device's API, those that say something of collectives."""

    waits: Operations
    of_device: Bools  # of each wait: for all streams
    captures: Operations
    begins: Bools  # of each of those: a capture begins


def device_calls(rows: Operations, calls: StepCalls) -> DeviceCalls:
    """Pick them from rows of any kind."""
    some = rows.compress(np.isin(rows["kind"], (OperationKind.SYNCHRONIZATION, OperationKind.GRAPH)))
    roles = calls.roles(some)
    waits = is_one_of(roles, (Role.WAIT_STREAM, Role.WAIT_DEVICE))
    captures = is_one_of(roles, (Role.CAPTURE_BEGIN, Role.CAPTURE_END))
    return DeviceCalls(
        waits=some.compress(waits),
        of_device=roles[waits] == Role.WAIT_DEVICE,
        captures=some.compress(captures),
        begins=roles[captures] == Role.CAPTURE_BEGIN,
    )


class StreamWaits(NamedTuple):
    """What was waited for on a stream, by k waits in order of time, each for some calls and under the last of them."""

    stream_key: StreamKey
    calls: Codes  # all that were waited for, by position
    waits: Codes  # (k,) positions
    last: Codes  # (k,) the last call that each was for
    counts: Codes  # (k,) how many each was for


def waits_of(reported: DeviceCalls, rows: Operations) -> Iterator[StreamWaits]:
    """The first wait after each of ``rows``, calls that nothing has waited for yet, stream_key by stream_key."""
    waits = reported.waits
    for tgid in np.unique(waits["tgid"]).tolist():
        mine = np.flatnonzero(rows["tgid"] == tgid)
        theirs = np.flatnonzero(waits["tgid"] == tgid)
        theirs = theirs[np.lexsort((waits["tid"][theirs], waits["start_ns"][theirs]))]
        starts, ends = waits["start_ns"][theirs], rows["start_ns"][mine] + rows["duration_ns"][mine]
        order = np.argsort(ends, kind="stable")
        mine, ends = mine[order], ends[order]
        for stream_key, places in _lanes(tgid, rows, mine):
            which = reported.of_device[theirs] | (waits["handle"][theirs] == stream_key.stream)
            if stream_key.device >= 0:
                which &= np.isin(waits["device"][theirs], (stream_key.device, -1))
            upto = np.searchsorted(ends[places], starts[which], side="right")
            counts = np.diff(upto, prepend=0)
            first = np.flatnonzero(counts)
            if len(first):
                calls = mine[places]
                yield StreamWaits(
                    stream_key, calls[: upto[-1]], theirs[which][first], calls[upto[first] - 1], counts[first]
                )


def _lanes(tgid: int, rows: Operations, mine: Codes) -> Iterator[tuple[StreamKey, Codes]]:
    """The stream_keys of calls, and the positions in ``mine`` of each one's."""
    devices = np.where(rows["stream"][mine] <= _DEFAULT_STREAMS, rows["device"][mine], -1).astype(np.int64)
    keys = np.stack([rows["stream"][mine].view(np.int64), devices], axis=1)
    stream_keys, codes = np.unique(keys, axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    for code, (stream, device) in enumerate(stream_keys[:_MOST_STREAMS].tolist()):
        yield StreamKey(tgid, stream % (1 << 64), device), np.flatnonzero(codes == code)
