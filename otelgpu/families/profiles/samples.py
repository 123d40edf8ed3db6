"""Samples of threads into rows of profiles: which kinds and sample types each makes. Pure.

In: :data:`~otelgpu.model.samples.Samples` as they are decoded. Out:
:class:`~otelgpu.engine.profile_rows.ProfileRows`. Calls of libraries are not its business: see
:mod:`otelgpu.families.profiles.operations`.

A wait is reported with the stack of the thread that ended it where that is known: the two samples name the same
thread and the same time, and may come in either order, so that what is left over is held for a tick.

Example: 40 samples of the clock at 99 Hz are 40 rows of ``cpu`` of 10.1 ms each; when ``python`` is asked for too, 40
of ``python_cpu`` besides, under the same stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.profile_rows import Label, ProfileRows, Rows, profile_rows
from otelgpu.families.profiles import names
from otelgpu.families.profiles.storage.profile_rows import NameOf, storage_rows
from otelgpu.families.profiles.syscalls import syscall_rows
from otelgpu.model.codes import values_of
from otelgpu.model.profiles import ValueType
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.row_bytes import copied
from otelgpu.model.samples import SampleKind, Samples, concatenated

WAITS_HELD: Final = 65_536
"""Waits that wait for their wakers, and the other way round: more are reported as they are."""

_SAME: Final = (
    *("time_ns", "tgid", "tid", "stack", "value", "trace_id", "span_id", "context_source", "trace_flags"),
    "name",
)
_SECOND_NS: Final = 1_000_000_000


class SampleProfiles:
    """One session's, for the kinds that were asked for.

    ``probe_name`` says what a user's probe is called.
    """

    def __init__(
        self,
        settings: ProfileSettings,
        *,
        probe_name: Callable[[int], str] = lambda number: f"probe {number}",
    ) -> None:
        self._kinds: Collection[ProfileKind] = settings.kinds
        self._period_ns = _SECOND_NS // max(settings.frequency_hz, 1)
        self._probe_name = probe_name
        self._name_of: NameOf = lambda kind, number: ""
        self._fresh: list[Samples] = []
        self._waits: list[Samples] = []  # since the last tick
        self._held: Samples | None = None  # waits of the tick before, whose wakers did not come yet
        self._wakers: Samples | None = None

    def take(self, samples: Samples, name_of: NameOf | None = None) -> None:
        """What was sampled; ``name_of`` says the file or device of a sample's ``other``, until the next call."""
        self._name_of = name_of or self._name_of
        waits = (samples["kind"] == SampleKind.OFF_CPU) | (samples["kind"] == SampleKind.WAKER)
        if waits.any():
            self._waits.append(samples.compress(waits))
            samples = samples.compress(~waits)
        if len(samples):
            self._fresh.append(samples)

    @property
    def waits_for_tick(self) -> bool:
        """Whether something is held until the next one."""
        return bool(self._fresh or self._waits or self._held is not None or self._wakers is not None)

    def report(self, *, final: bool) -> list[ProfileRows]:
        """At a tick: all rows that are complete."""
        found: list[ProfileRows] = []
        if self._fresh:
            samples, self._fresh = concatenated(self._fresh), []
            for kind in values_of(np.ascontiguousarray(samples["kind"])):
                found += self._of_kind(kind, samples.compress(samples["kind"] == kind))
        found += self._report_waits(final=final)
        return [each for each in found if len(each)]

    def _of_kind(self, kind: int, samples: Samples) -> list[ProfileRows]:
        rows = _rows(samples)
        if kind == SampleKind.CPU:
            return self._python(rows, names.PYTHON_CPU, clock=True) + self._asked(
                ProfileKind.CPU, names.CPU, rows, clock=True
            )
        if kind == SampleKind.SYSCALL:
            return syscall_rows(samples, rows) if ProfileKind.SYSCALL in self._kinds else []
        if kind in (SampleKind.FILE, SampleKind.BLOCK):
            asked = ProfileKind.FILE if kind == SampleKind.FILE else ProfileKind.BLOCK
            return storage_rows(samples, rows, self._name_of) if asked in self._kinds else []
        if kind == SampleKind.USER:
            labels = self._labelled(rows, samples["other"], names.PROBE, self._probe_name)
            return [ProfileRows(kind=ProfileKind.CPU, sample_type=names.USER, rows=rows, labels=labels)]
        return []

    def _asked(
        self,
        kind: ProfileKind,
        sample_type: ValueType,
        rows: Rows,
        *,
        labels: tuple[Label, ...] = (),
        clock: bool = False,
    ) -> list[ProfileRows]:
        if kind not in self._kinds:
            return []
        return [self._of(kind, sample_type, rows, labels, clock=clock)]

    def _python(self, rows: Rows, sample_type: ValueType, *, clock: bool = False) -> list[ProfileRows]:
        return self._asked(ProfileKind.PYTHON, sample_type, rows, clock=clock) + self._asked(
            ProfileKind.PYTHON, names.PYTHON_WALL, rows
        )

    def _of(
        self, kind: ProfileKind, sample_type: ValueType, rows: Rows, labels: tuple[Label, ...], *, clock: bool
    ) -> ProfileRows:
        return ProfileRows(
            kind=kind,
            sample_type=sample_type,
            rows=rows,
            labels=labels,
            period_type=names.CPU if clock else sample_type,
            period=self._period_ns if clock else 1,
        )

    @staticmethod
    def _labelled(
        rows: Rows, numbers: npt.NDArray[np.uint64], key: str, name: Callable[[int], str]
    ) -> tuple[Label, ...]:
        """Labels of the rows, which are set: one for each number."""
        found, codes = np.unique(numbers, return_inverse=True)
        rows["label"] = codes.reshape(-1) + 1
        return tuple(((key, name(number)),) for number in found.tolist())

    # -- waits ------------------------------------------------------------------------------------

    def _report_waits(self, *, final: bool) -> list[ProfileRows]:
        fresh = concatenated(self._waits) if self._waits else None
        self._waits = []
        if fresh is None and self._held is None:
            self._wakers = None
            return []
        new_waits = new_wakers = None
        if fresh is not None:
            is_wait = fresh["kind"] == SampleKind.OFF_CPU
            new_waits, new_wakers = fresh.compress(is_wait), fresh.compress(~is_wait)
        waits = concatenated([each for each in (self._held, new_waits) if each is not None])
        wakers = concatenated([each for each in (self._wakers, new_wakers) if each is not None])
        old = len(self._held) if self._held is not None else 0
        rows = _rows(waits)
        rows["state"] = waits["state"]
        woken = _join_wakers(waits, wakers, rows)
        ready = woken.copy()
        ready[:old] = True
        if final or len(waits) > WAITS_HELD or ProfileKind.OFFCPU not in self._kinds:
            ready[:] = True
        self._held = waits.compress(~ready) if not ready.all() else None
        self._wakers = new_wakers[-WAITS_HELD:] if new_wakers is not None and len(new_wakers) else None
        if not ready.all():
            rows = rows.compress(ready)
        found = self._asked(ProfileKind.OFFCPU, names.OFF_CPU, rows)
        if ProfileKind.PYTHON in self._kinds:
            alone = copied(rows) if found else rows
            alone["waker_stack"] = 0
            alone["waker_tgid"] = 0
            found += self._asked(ProfileKind.PYTHON, names.PYTHON_WALL, alone)
        return found


def _rows(samples: Samples) -> Rows:
    rows = profile_rows(len(samples))
    for name in _SAME:
        rows[name] = samples[name]
    return rows


def _join_wakers(waits: Samples, wakers: Samples, rows: Rows) -> npt.NDArray[np.bool_]:
    """Set whose stack ended each wait: of (thread, time when it left the CPU). Which waits have one."""
    found = np.zeros(len(waits), dtype=np.bool_)
    if not len(wakers) or not len(waits):
        return found
    key = np.dtype([("tid", "<u8"), ("time_ns", "<u8")])
    known = np.zeros(len(wakers), dtype=key)
    known["tid"], known["time_ns"] = wakers["other"], wakers["time_ns"]
    asked = np.zeros(len(waits), dtype=key)
    asked["tid"], asked["time_ns"] = waits["tid"], waits["time_ns"]
    order = np.argsort(known, order=("tid", "time_ns"), kind="stable")
    place = np.minimum(np.searchsorted(known[order], asked), len(wakers) - 1)
    match = order[place]
    found = known[match] == asked
    rows["waker_stack"][found] = wakers["stack"][match[found]]
    rows["waker_tgid"][found] = wakers["tgid"][match[found]]
    return np.asarray(found)
