"""Where the time of a training step went, by its host calls: parts that add up to it exactly. Pure.

In: the notes of the calls of steps. Out: :class:`~otelgpu.families.steps.training.step.StepParts`.

How. Several threads may drive one GPU (the backward pass has its own), so that calls overlap. Starts and ends of all
calls cut the step into pieces in each of which the same calls are under way; a piece is counted once, as the first
of: a call, a host-to-device copy, a wait for communication, another wait, a file, the data loader, and none of these.
So a wait counts only while no thread does anything else. Calls on threads that queue no work (a watchdog's, a data
loader's) are passed over.

In programs that drive no device their framework says which threads load data, compute and wait. Collectives that other
threads run for these (gloo's) are passed over: they take no time of the program but that in which it waits for them.

A wait is *for communication* where the last work that was queued on the stream it waits for (of a wait for the device:
on any) is a collective. How much of it the GPU computed is not known: the collective may have waited for a kernel.
Where kernels were queued behind a collective, as optimizers do, the wait is an ordinary one: only the device
knows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.call_roles import H2D_COPIES, STRETCHES, WAITS, WORK, Role, is_one_of
from otelgpu.families.steps.training.notes import Notes
from otelgpu.families.steps.training.step import StepParts
from otelgpu.model.codes import distinct

_CALL, _H2D_COPY, _COMMUNICATION, _WAIT, _FILE, _LOADER, _CLASSES = range(7)
_DEFAULT_STREAMS: Final = (0, 1, 2)  # cudaStreamLegacy, cudaStreamPerThread and NULL: one to us


Groups = npt.NDArray[np.int64]


def driving(notes: Notes, step: Groups) -> npt.NDArray[np.bool_]:
    """Which calls are on threads that queue work for a device in their step, or do it themselves: shape (n,)."""
    works = is_one_of(notes["role"], (*WORK, *STRETCHES)) | ((notes["symbol"] != 0) & ~notes["run"])
    worked = np.bincount(step[works], minlength=int(step.max(initial=0)) + 1) > 0
    works |= notes["run"] & ~worked[step]  # nobody else does
    tids, codes = distinct(notes["tid"])
    threads = step * len(tids) + codes
    working = np.bincount(threads[works], minlength=int(threads.max(initial=0)) + 1) > 0
    found: npt.NDArray[np.bool_] = working[threads]
    return found


def parts_of(
    notes: Notes, step: Groups, starts_ns: npt.NDArray[np.int64], ends_ns: npt.NDArray[np.int64]
) -> list[StepParts]:
    """Of m steps of one process, ascending: ``notes`` are of all calls that began in them, ``step`` (n,) which.

    What lasts longer than its step is cut there.
    """
    chosen = driving(notes, step) & (notes["role"] != Role.BACKWARD)  # in which the program computes
    notes, step = notes.compress(chosen), step[chosen]
    kinds = np.full(len(notes), _CALL, dtype=np.intp)
    kinds[is_one_of(notes["role"], H2D_COPIES)] = _H2D_COPY
    kinds[notes["role"] == Role.FILE] = _FILE
    kinds[notes["role"] == Role.DATA_LOADER] = _LOADER
    kinds[notes["run"] | (notes["role"] == Role.COMMUNICATION_WAIT)] = _COMMUNICATION
    waits = is_one_of(notes["role"], WAITS)
    kinds[waits] = np.where(waits_for_communication(notes, step)[waits], _COMMUNICATION, _WAIT)
    begins = np.clip(notes["start_ns"].astype(np.int64), starts_ns[step], ends_ns[step])
    ends = np.clip(notes["end_ns"].astype(np.int64), starts_ns[step], ends_ns[step])
    # Ends before starts at one time, so that what lies between them is empty.
    every = np.arange(len(starts_ns))
    times, of_step = np.concatenate([starts_ns, ends, begins]), np.concatenate([every, step, step])
    order = np.lexsort((times, of_step))
    times, of_step = times[order], of_step[order]
    lengths = np.diff(times, append=0)
    last = np.append(np.flatnonzero(of_step[1:] != of_step[:-1]), len(times) - 1)
    lengths[last] = ends_ns - times[last]
    changes = np.repeat([0, -1, 1], [len(every), len(ends), len(begins)])[order]
    kind = np.concatenate([np.full(len(every), _CLASSES), kinds, kinds])[order]
    taken = np.zeros(len(times), dtype=np.bool_)
    sums = []
    for each in range(_CLASSES):
        under_way = np.cumsum(np.where(kind == each, changes, 0)) > 0
        sums.append(_sums(lengths, of_step, under_way & ~taken, len(every)))
        taken |= under_way
    h2d_copies = np.concatenate([[0], np.cumsum((kind == _H2D_COPY) & (changes > 0))])
    gaps = ~taken & (lengths > 0)
    gaps[last] = False
    sums.append(_sums(lengths, of_step, _ended_by(gaps, h2d_copies, times, last[of_step]), len(every)))
    rest = ends_ns - starts_ns - np.sum(sums, axis=0)
    return [
        StepParts(
            call_ns=call,
            h2d_copy_ns=h2d_copy,
            communication_wait_ns=communication,
            other_wait_ns=wait,
            file_ns=file,
            data_loader_stall_ns=loader + stall,
            host_overhead_ns=overhead,
        )
        for call, h2d_copy, communication, wait, file, loader, stall, overhead in zip(
            *(each.tolist() for each in (*sums, rest)), strict=True
        )
    ]


def _sums(
    lengths: npt.NDArray[np.int64], of_step: Groups, chosen: npt.NDArray[np.bool_], steps: int
) -> npt.NDArray[np.int64]:
    # Doubles hold times of 100 days exactly.
    return np.bincount(of_step[chosen], weights=lengths[chosen], minlength=steps).astype(np.int64)


def _ended_by(
    gaps: npt.NDArray[np.bool_],
    h2d_copies: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    last: npt.NDArray[np.intp],
) -> npt.NDArray[np.bool_]:
    """Which pieces in no call end with the start of a host-to-device copy.

    Where several calls start at once, one will do. ``h2d_copies``: how many started before each piece, and in all.
    ``last``: the last piece of each one's step.
    """
    found = np.zeros(len(gaps), dtype=np.bool_)
    free = np.flatnonzero(gaps)
    following = times[free + 1]
    first = np.searchsorted(times, following, side="left")
    beyond = np.minimum(np.searchsorted(times, following, side="right"), last[free] + 1)
    found[free] = h2d_copies[beyond] > h2d_copies[first]
    return found


def waits_for_communication(notes: Notes, step: Groups) -> npt.NDArray[np.bool_]:
    """Shape (n,): which calls wait for a stream or the device whose last work of their step is a collective."""
    found = np.zeros(len(notes), dtype=np.bool_)
    moving = notes["symbol"] != 0
    waits = np.flatnonzero(is_one_of(notes["role"], WAITS))
    if not len(waits) or not moving.any():
        return found
    works = np.flatnonzero(is_one_of(notes["role"], WORK) | moving)
    works = works[np.argsort(notes["start_ns"][works], kind="stable")]
    moved = moving[works] | _within(notes, works, np.flatnonzero(moving))
    streams, wanted = _streams(notes["stream"][works]), _streams(notes["stream"][waits])
    of_device = notes["role"][waits] == Role.WAIT_DEVICE
    of_stream = is_one_of(notes["role"][waits], (Role.WAIT_STREAM, Role.D2H_COPY))
    choices = [(waits[of_device], np.arange(len(works)))]
    for stream in np.unique(wanted[of_stream]).tolist():
        choices.append((waits[of_stream & (wanted == stream)], np.flatnonzero(streams == stream)))
    for some, mine in choices:
        last = np.searchsorted(notes["start_ns"][works[mine]], notes["start_ns"][some], side="left") - 1
        some, last = some[last >= 0], mine[last[last >= 0]]
        found[some] = moved[last] & (step[works[last]] == step[some])
    return found


def _within(notes: Notes, works: npt.NDArray[np.intp], moving: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Which work was queued by a collective itself: the library launches its kernel in the call."""
    found = np.zeros(len(works), dtype=np.bool_)
    for tid in np.unique(notes["tid"][moving]).tolist():
        calls = moving[notes["tid"][moving] == tid]
        calls = calls[np.argsort(notes["start_ns"][calls], kind="stable")]
        mine = np.flatnonzero(notes["tid"][works] == tid)
        begins = notes["start_ns"][works[mine]]
        call = np.searchsorted(notes["start_ns"][calls], begins, side="right") - 1
        inside = begins < notes["end_ns"][calls[np.maximum(call, 0)]]
        found[mine] = (call >= 0) & inside
    return found


def _streams(handles: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return np.where(handles <= max(_DEFAULT_STREAMS), np.uint64(0), handles)
