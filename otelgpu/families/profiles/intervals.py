"""Profiles of a session, from rows to columns: what the pipeline asks, in the order in which it asks. Pure.

In: rows (:mod:`otelgpu.engine.profile_rows`), named stacks, processes as they end. Out, for each interval: one
:class:`~otelgpu.model.profiles.ProfileColumns` per process and sample type.

An interval ends when the link of each of its rows is known (which request did the thread work for: it may not have been
answered) and its stacks have their names, or when it has been waited for as long again. A row that is reported later
than its interval (a wait is reported when it is over) is of the oldest that is open, at the beginning of that.

Bounds. ``limit`` rows are held. When there are more, those that are equal but for their time are summed, and have no
time any more; when there are still more, their stacks become one.

Example: at 99 Hz two threads run for 10 s: 1,980 rows, of 40 stacks; at the end of the interval they are one batch of
1,980 values, and, without times, of as many as there are different (stack, thread, span).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine.profile_rows import PROFILE_ROW, Label, ProfileRows
from otelgpu.families.profiles import names
from otelgpu.families.profiles.span_links import LINKED_ROW, LinkedRows, LinkState, SpanLinks
from otelgpu.families.profiles.stacks import StackTable
from otelgpu.families.profiles.sums import summed
from otelgpu.families.profiles.tables import BEYOND, BatchTables
from otelgpu.families.profiles.torch_operators import operators
from otelgpu.model.codes import codes_of_bytes, distinct, examples, values_of
from otelgpu.model.losses import Reasons
from otelgpu.model.profiles import Links, ProfileColumns, ValueType
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.resource import Resource
from otelgpu.model.row_bytes import joined
from otelgpu.model.samples import Frame, StackNamed, ThreadState
from otelgpu.model.spans import Attribute, Text

ROWS_HELD: Final = 262_144
"""By default: 36 MB of rows."""
LATE_NS: Final = 500_000_000
"""So long after its end an interval waits for what is on its way."""

REASONS: Final = Reasons(
    "profile",
    {
        "stack_not_kept": "an observation's stack was taken, and its names were lost: it is reported under "
        "`[stack not kept]`",
        "profile_times_summed": "an observation has no time of its own: there were too many, and equal ones "
        "were summed",
        "profile_stacks_summed": "observations of a stack are reported under `[too many stacks]`: more than are held",
        "profile_links_waited_for": "an observation's request was not answered by the end of the profile: it "
        "links to the "
        "span that is to come",
    },
)
"""What is counted → what one count means."""

_Value = TypeVar("_Value", bound=Hashable)


class _Series(Struct, frozen=True):
    """What rows of one batch have in common, but for their process."""

    kind: ProfileKind
    sample_type: ValueType
    period_type: ValueType
    period: int
    has_operators: bool


class _Table(Generic[_Value]):
    """Values by number, from ``first`` on."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._numbers: dict[_Value, int] = {}
        self.values: list[_Value] = []

    def number(self, value: _Value) -> int:
        found = self._numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found + self._first

    def renumbered(self, codes: npt.NDArray[np.uint32], values: Sequence[_Value]) -> npt.NDArray[np.uint32]:
        """Codes from 1 on of ``values``, 0 being none, as numbers of this table; of what is beyond them, 0."""
        renumber = np.zeros(len(values) + 1, dtype=np.uint32)
        renumber[1:] = [self.number(value) for value in values]
        return renumber[np.where(codes <= len(values), codes, 0)]

    def replace(self, before: _Value, after: _Value) -> None:
        """What is reported as ``before`` is ``after`` from here on."""
        number = self._numbers.pop(before, None)
        if number is not None:
            self.values[number] = after
            self._numbers.setdefault(after, number)

    def prune(self, columns: list[npt.NDArray[np.void]], name: str) -> None:
        """Keep only what the rows name, and give it new numbers there."""
        before = self.values
        self._numbers, self.values = {}, []
        renumber = np.zeros(len(before) + self._first, dtype=np.uint32)
        for rows in columns:
            for used in values_of(np.ascontiguousarray(rows[name])) if len(rows) else ():
                if used >= self._first:
                    renumber[used] = self.number(before[used - self._first])
        for rows in columns:
            rows[name] = renumber[rows[name]]


class ProfileSession:
    """One session's. ``resource_of`` says a process; ``links`` the spans that threads worked for."""

    def __init__(
        self,
        settings: ProfileSettings,
        resource_of: Callable[[int], Resource],
        links: SpanLinks,
        *,
        levels: Callable[[int], Sequence[ProfileRows]] = lambda time_ns: (),
        limit: int = ROWS_HELD,
        book: StackTable | None = None,
    ) -> None:
        """``levels``: what holds at a time, asked for once an interval, at its end: rows that have no span."""
        self._settings = settings
        self._resource_of, self._links = resource_of, links
        self._length_ns = max(int(settings.interval_s * 1e9), 1)
        self._limit, self._levels = limit, levels
        self._next_level_ns = 0
        self._book = book if book is not None else StackTable()
        self._unsettled: LinkedRows = np.zeros(0, dtype=LINKED_ROW)
        self._settled: list[LinkedRows] = []
        self._fresh: list[LinkedRows] = []
        self._resources: _Table[Resource] = _Table()
        self._series: _Table[_Series] = _Table()
        self._leaves: _Table[tuple[Frame, ...]] = _Table(first=1)
        self._labels: _Table[Label] = _Table(first=1)
        self._end_ns = 0  # of the interval that is reported
        self._look_again_ns = 0  # before, stacks that had no names have none
        self._start_ns = 0  # of the interval that is open; 0: nothing came yet
        self._untimed = 0  # rows before this time have lost theirs: they were summed
        self._gone: deque[tuple[int, int]] = deque()  # tgid, when
        self._ended: set[int] = set()  # processes, in this tick
        self._leaving: set[int] = set()  # in the one before it
        self._done: list[ProfileColumns] = []
        self._counters: Counter[str] = Counter()

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return self._counters + self._book.counters

    def __len__(self) -> int:
        """Rows that are held."""
        return len(self._unsettled) + sum(map(len, (*self._settled, *self._fresh)))

    def learn(self, named: StackNamed) -> None:
        """A stack is named."""
        self._book.learn(named)

    def take_rows(self, given: ProfileRows, *, linked: bool = True) -> None:
        """Rows, of which the session makes its own. ``linked``: False of those that have no span."""
        if not len(given):
            return
        period_type = given.period_type or given.sample_type
        series = self._series.number(
            _Series(given.kind, given.sample_type, period_type, given.period, given.has_operators)
        )
        rows = np.zeros(len(given), dtype=LINKED_ROW)
        for name in PROFILE_ROW.names or ():
            rows[name] = given.rows[name]
        rows["series"] = series
        rows["link"] = LinkState.NEW if linked else LinkState.SETTLED
        rows["leaf"] = self._leaves.renumbered(rows["leaf"], given.leaves) if given.leaves else 0
        rows["label"] = self._labels.renumbered(rows["label"], given.labels) if given.labels else 0
        tgids, codes = distinct(np.ascontiguousarray(rows["tgid"]))
        owners = [self._resources.number(self._resource_of(tgid)) for tgid in tgids.tolist()]
        rows["resource"] = np.array(owners, dtype=np.uint32)[codes]
        self._fresh.append(rows)

    def rename(self, before: Resource, after: Resource) -> None:
        """More is known of a process."""
        self._resources.replace(before, after)

    def end_process(self, tgid: int, time_ns: int) -> None:
        """A process ended, or became another program: what its threads worked for is not known for much longer."""
        self._gone.append((tgid, time_ns))
        self._ended.add(tgid)

    def report(self, now_ns: int, *, offset_ns: int, final: bool) -> None:
        """At a tick, after the requests and steps of it: end the intervals that can be."""
        if not self._start_ns:
            self._start_ns = self._begin(now_ns)
            self._next_level_ns = self._start_ns + self._length_ns
        if now_ns >= self._next_level_ns:  # of intervals that went by at once, the first
            self._take_levels(self._next_level_ns - 1)
            self._next_level_ns += ((now_ns - self._next_level_ns) // self._length_ns + 1) * self._length_ns
        if final:
            self._take_levels(now_ns)
        self._settle(now_ns, final=final)
        while final or now_ns >= self._start_ns + self._length_ns + LATE_NS:
            end_ns = self._start_ns + self._length_ns
            waited = now_ns >= end_ns + self._length_ns + LATE_NS
            if not (final or waited) and (
                (self._unsettled["time_ns"] < end_ns).any() or self._awaits_names(end_ns, now_ns)
            ):
                break
            last = final and now_ns < end_ns
            self._close(max(now_ns + 1, self._start_ns + 1) if last else end_ns, offset_ns)
            self._start_ns = end_ns
            if last or not len(self):
                break
        behind = (now_ns - self._start_ns) // self._length_ns
        if behind > 1 and not len(self):
            self._start_ns += (behind - 1) * self._length_ns

    @property
    def due_ns(self) -> int:
        """When there is something to do though no row comes; 0: at the next tick."""
        if not self._start_ns or self._fresh or len(self._unsettled) or self._ended or self._leaving:
            return 0
        return min(self._next_level_ns, self._start_ns + self._length_ns + LATE_NS)

    def take(self) -> list[ProfileColumns]:
        """What was reported since the last call."""
        done, self._done = self._done, []
        return done

    def _begin(self, now_ns: int) -> int:
        """When the first interval begins: with the first row, at most its length ago: a wait may have begun earlier."""
        times = [int(rows["time_ns"].min()) for rows in self._fresh]
        return max(min(times, default=now_ns), now_ns - self._length_ns, 1)

    def _take_levels(self, time_ns: int) -> None:
        for each in self._levels(time_ns):
            self.take_rows(each, linked=False)

    def _settle(self, now_ns: int, *, final: bool) -> None:
        for fresh in self._fresh:
            np.minimum(fresh["time_ns"], np.uint64(now_ns), out=fresh["time_ns"])
        rows = joined([self._unsettled, *self._fresh]) if self._fresh else self._unsettled
        self._fresh = []
        if len(rows):
            if self._leaving:
                leaving = np.flatnonzero(np.isin(rows["tgid"], list(self._leaving)))
                last = rows.take(leaving)
                self._links.leave(last)
                rows[leaving] = last
            settled = self._links.settle(rows, final=final)
            if settled.all():
                self._settled.append(rows)
                rows = np.zeros(0, dtype=LINKED_ROW)
            elif settled.any():
                self._settled.append(rows.compress(settled))
                rows = rows.compress(~settled)
        self._unsettled = rows
        self._leaving, self._ended = self._ended, set()
        if len(self) > self._limit:
            self._make_room()

    def _awaits_names(self, end_ns: int, now_ns: int) -> bool:
        """Whether a stack of the interval is not named yet: who names them has less of a busy machine than it needs."""
        if now_ns < self._look_again_ns:
            return True
        if not self._settled:
            return False
        rows = joined(self._settled)
        self._settled = [rows]
        mine = rows["time_ns"] < np.uint64(end_ns)
        for process, number in (("tgid", "stack"), ("waker_tgid", "waker_stack")):
            stacks = np.ascontiguousarray(rows[number])
            taken = mine & (stacks != 0) & (stacks != BEYOND)
            pairs = set(zip(rows[process][taken].tolist(), stacks[taken].tolist(), strict=True))
            if not all(map(self._book.has, pairs)):
                self._look_again_ns = now_ns + LATE_NS
                return True
        return False

    def _make_room(self) -> None:
        """Sum what is equal but for its time; where that is not enough, make it equal."""
        if len(self._unsettled) > self._limit // 2:
            self._links.settle(self._unsettled, final=True)
            self._settled.append(self._unsettled)
            self._unsettled = self._unsettled[:0]
        rows = joined(self._settled)
        held = len(rows)
        rows = summed(rows, self._start_ns, self._length_ns)
        self._counters["profile_times_summed"] += held - len(rows)
        if len(rows) > self._limit // 2:
            order = np.argsort(rows["value"], kind="stable")
            small = order[: len(rows) - self._limit // 4]  # the largest keep their stacks
            self._counters["profile_stacks_summed"] += len(small)
            for name, value in (
                ("stack", BEYOND),
                ("waker_stack", 0),
                ("waker_tgid", 0),
                ("leaf", 0),
                ("label", 0),
            ):
                rows[name][small] = value
            for name in ("tid", "name", "trace_id", "span_id", "state"):
                rows[name][small] = np.zeros((), dtype=rows.dtype[name])
            rows = summed(rows, self._start_ns, self._length_ns)
        self._untimed = max(self._untimed, int(rows["time_ns"].max()) + 1)
        self._settled = [rows]

    def _close(self, end_ns: int, offset_ns: int) -> None:
        """End the interval that begins at ``_start_ns``."""
        self._end_ns = end_ns
        waiting = self._unsettled["time_ns"] < np.uint64(end_ns)
        if waiting.any():
            late = self._unsettled.compress(waiting)
            self._links.settle(late, final=True)
            self._counters["profile_links_waited_for"] += len(late)
            self._settled.append(late)
            self._unsettled = self._unsettled.compress(~waiting)
        rows = joined(self._settled) if self._settled else self._unsettled[:0]
        mine = rows["time_ns"] < np.uint64(end_ns)
        rest = rows.compress(~mine)
        self._settled = [rest] if len(rest) else []
        self._report(rows.compress(mine), offset_ns)
        self._forget_until(end_ns)
        kept = [self._unsettled, *self._settled, *self._fresh]
        self._resources.prune(kept, "resource")
        self._series.prune(kept, "series")
        self._leaves.prune(kept, "leaf")
        self._labels.prune(kept, "label")
        self._book.compact()

    def _forget_until(self, time_ns: int) -> None:
        while self._gone and self._gone[0][1] < time_ns:
            self._book.forget_process(self._gone.popleft()[0])

    def _report(self, rows: LinkedRows, offset_ns: int) -> None:
        if not len(rows):
            return
        groups = rows["resource"].astype(np.int64) * len(self._series.values) + rows["series"]
        order = np.argsort(groups, kind="stable")
        cuts = np.flatnonzero(np.diff(groups[order])) + 1
        tgid_of_group = rows["tgid"][order[[0, *cuts.tolist()]]].tolist()
        for mine, tgid in zip(np.split(order, cuts), tgid_of_group, strict=True):
            some = rows.take(mine)
            of_one = some["tgid"] == tgid
            for one in [tgid] if of_one.all() else np.unique(some["tgid"]).tolist():
                theirs = some if of_one.all() else some.compress(some["tgid"] == one)
                columns = self._columns(theirs, one, offset_ns)
                if len(columns):
                    self._done.append(columns)

    def _columns(self, rows: LinkedRows, tgid: int, offset_ns: int) -> ProfileColumns:
        series = self._series.values[int(rows["series"][0])]
        owner = self._resources.values[int(rows["resource"][0])]
        is_timed = self._settings.keep_times and int(rows["time_ns"].min()) >= self._untimed
        if not is_timed:
            rows = summed(rows, 0, 1 << 62)
        tables = BatchTables(
            self._book,
            self._leaves.values,
            python_only=series.kind is ProfileKind.PYTHON,
            waits=series.sample_type in (names.OFF_CPU, names.PYTHON_WALL),
        )
        stack = tables.codes(tgid, rows)
        if tables.lost:
            self._counters["stack_not_kept"] += tables.lost
        if series.kind is ProfileKind.PYTHON:
            rows, stack = rows.compress(stack >= 0), stack[stack >= 0]
        first, last = np.uint64(self._start_ns), np.uint64(self._end_ns - 1)
        times = np.clip(rows["time_ns"], first, last) + np.uint64(offset_ns)
        return ProfileColumns(
            resource=owner,
            scope=names.SCOPE,
            sample_type=series.sample_type,
            period_type=series.period_type,
            period=series.period,
            start_unix_ns=self._start_ns + offset_ns,
            duration_ns=self._end_ns - self._start_ns,
            value=np.ascontiguousarray(rows["value"]),
            time_unix_ns=times if is_timed else None,
            stack=stack,
            stacks=tables.stacks,
            locations=tables.locations,
            functions=tables.functions,
            mappings=tables.mappings,
            links=_links(rows),
            attributes=(
                *self._attributes(rows),
                *(operators(tables, stack) if series.has_operators else ()),
            ),
        )

    def _attributes(self, rows: LinkedRows) -> Iterable[Attribute]:
        threads = np.ascontiguousarray(rows["tid"])
        if threads.any():
            yield Attribute(key=names.THREAD_ID, values=threads, present=_present(threads != 0))
        if (rows["name"] != b"").any():
            codes, size = codes_of_bytes(rows["name"])
            named = rows["name"][examples(codes, size)].tolist()
            text = Text(codes=codes, table=tuple(name.decode(errors="replace") for name in named))
            yield Attribute(key=names.THREAD_NAME, values=text, present=_present(rows["name"] != b""))
        if rows["state"].any():
            known = np.minimum(rows["state"], np.uint8(max(ThreadState)))
            text = Text(codes=known.astype(np.intp), table=tuple(each.name.lower() for each in ThreadState))
            yield Attribute(key=names.THREAD_STATE, values=text, present=_present(rows["state"] != 0))
        yield from self._labelled(np.ascontiguousarray(rows["label"]))

    def _labelled(self, codes: npt.NDArray[np.uint32]) -> Iterable[Attribute]:
        used = [each for each in values_of(codes) if each]
        if not used:
            return
        labels = {each: dict(self._labels.values[each - 1]) for each in used}
        place = np.zeros(max(used) + 1, dtype=np.intp)
        place[used] = np.arange(1, len(used) + 1)
        row = place[codes]
        for key in dict.fromkeys(key for label in labels.values() for key in label):
            values = [labels[each].get(key) for each in used]
            has = np.array([False, *(value is not None for value in values)], dtype=np.bool_)[row]
            if all(value is None or isinstance(value, int) for value in values):
                numbers = np.array([0, *(value or 0 for value in values)], dtype=np.int64)
                yield Attribute(key=key, values=numbers[row], present=_present(has))
            else:
                table = ("", *("" if value is None else str(value) for value in values))
                yield Attribute(key=key, values=Text(codes=row, table=table), present=_present(has))


def _present(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    return None if mask.all() else mask


def _links(rows: LinkedRows) -> Links | None:
    """The spans of the rows; None where no row has one."""
    if not rows["span_id"].any():
        return None
    ids = np.concatenate([rows["trace_id"], rows["span_id"]], axis=1)
    table, codes = np.unique(ids, axis=0, return_inverse=True)
    return Links(
        codes=codes.reshape(-1).astype(np.intp),
        trace_id=np.ascontiguousarray(table[:, :16]),
        span_id=np.ascontiguousarray(table[:, 16:]),
    )
