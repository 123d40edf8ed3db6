"""Collectives of a session, from calls to traces: what the pipeline asks, in the order in which it asks.

In: calls of NCCL and its like, what is known of communicators, the host's waits, device work. Out: spans of which the
ranks' meet in one trace per collective, whoever reports them; metrics.

A collective waits until all of its ranks that live here have called it and waited for it, at most
:data:`SETTLED_NS`: then its arrival skew is known. So long after a rank came here others may be starting up of which
nothing is known yet, and all that the communicator has are waited for. A rank that comes later still is said how late
it was. With detail
``phases`` there are no spans of calls, and so none of these: everything is still measured.

Memory is bounded by :data:`CALLS`; of more, the oldest are reported with what is known of them, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.call_roles import StepCalls
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.families.nccl.calls import Calls, Found, found_of, is_collective, keeps, set_apart
from otelgpu.families.nccl.collective_names import COLLECTIVE, Function, function_of
from otelgpu.families.nccl.links import LinkFinder
from otelgpu.families.nccl.metrics import CollectiveMeter, Times
from otelgpu.families.nccl.numbering import KEPT_NS, Collectives, Numbered
from otelgpu.families.nccl.spans import CallLinks, Gatherings, SpanReport, call_spans, root_spans, wait_spans
from otelgpu.families.nccl.streams import (
    Captures,
    DeviceCalls,
    StreamKey,
    device_calls,
    key_of_stream,
    waits_of,
)
from otelgpu.model.codes import Codes, combine, distinct
from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.context import Context, Unsettled
from otelgpu.model.device_work import DeviceWork, Work
from otelgpu.model.losses import Reasons
from otelgpu.model.operations import OperationKind, Operations, SequenceSource, concatenate
from otelgpu.model.resource import Resource
from otelgpu.model.sampling import trace_state
from otelgpu.model.settings import SignalSettings
from otelgpu.model.spans import SpanColumns

SETTLED_NS: Final = 2_000_000_000
"""So long after the first of its calls came does a collective wait for the others, and for waits."""

LINKED_NS: Final = 6_000_000_000
"""So long does it wait to know the step that its calls were made in."""

_NONE_FORMING: Final[Mapping[int, int]] = MappingProxyType({})

CALLS: Final = 131_072
"""Calls that wait: 32 MiB."""

COUNTERS: Final = Reasons(
    "nccl",
    {
        "collectives_unnumbered": "a call's collective is not known: it is reported in a trace of its own",
        "collectives_captured": "a call was noted into a graph: it is reported in a trace of its own",
        "collectives_failed": "a call failed: it is reported in a trace of its own",
        "collectives_reported_early": "too many calls waited: a collective was reported before all its ranks had come",
        "collectives_sampled_out": "a call's collective is not in the sample: it was measured, and not reported",
        "ranks_late": "a rank's call came after its collective had been reported: its lateness is reported, and not "
        "in the skew",
        "rank_repeated": "two processes said that they are the same rank: the second is reported in a trace of its own",
        "rank_invalid": "a call's rank is not among its communicator's",
        "peer_invalid": "a call's peer is not among its communicator's ranks",
        "communicator_rank_invalid": "a communicator's rank is not among its ranks: neither is believed",
        "communicators_full": "a communicator beyond the bound: its calls are numbered only where they say "
        "it themselves",
        "sequence_absurd": "a count that cannot be was read of a communicator: the call is in a trace of its own",
        "sequence_behind": "a communicator's count was behind the calls it had taken: the next number was given",
        "sequence_not_counted": "a communicator that counts did not count this call: it is in a trace of its own",
    },
    intended=("collectives_sampled_out",),
)
"""Reason → what one count means."""

LOST: Final = frozenset(("ring_full", "calls_nested_too_deep", "thread_state_failed", "return_without_entry"))
"""Losses of the family by which its calls cannot be counted any more."""

_ALONE: Final = {Numbered.NONE: "unnumbered", Numbered.CAPTURED: "captured", Numbered.FAILED: "failed"}
_LATE: Final = 16_384  # collectives that were reported before all their ranks had come
_MOST_STREAMS: Final = 4096  # streams whose last collective was reported before anything waited for it
_MEASURING: Final = 4096  # processes

F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
U64 = npt.NDArray[np.uint64]


class CollectiveSession:
    """One session's. ``seed`` is for ids of what no other agent reports."""

    def __init__(
        self,
        metrics: Metrics,
        vocabulary: Vocabulary,
        calls: StepCalls,
        resource_of: Callable[[int], Resource],
        *,
        seed: int,
        settings: SignalSettings,
        request_context: Callable[[int], Context | None] = lambda _: None,
        step_at: Callable[[int, int, int], Context | Unsettled | None] = lambda *_: None,
        connections: Callable[[int, int], Sequence[Context]] = lambda *_: (),
    ) -> None:
        self._vocabulary, self._calls, self._resource_of = vocabulary, calls, resource_of
        self._seed = seed
        self.reconfigure(settings)
        self._collectives = Collectives()
        self._by_thread, self._by_stream = Captures("tid"), Captures("stream")
        self._meter = CollectiveMeter(metrics, resource_of)
        self._links = LinkFinder(request_context, step_at, connections)
        self._functions: list[Function] = []
        self._function_of: dict[tuple[int, int, int], int] = {}
        self._seen: list[CommunicatorSeen] = []
        self._taken: list[tuple[Operations, npt.NDArray[np.int64]]] = []
        self._device_calls: list[Operations] = []
        self._groups: list[Operations] = []
        self._work: list[DeviceWork] = []
        self._waiting = Calls.none()
        self._first_ns: dict[int, int] = {}  # of collectives that were reported, by key
        self._unwaited: dict[StreamKey, tuple[Calls, int]] = {}
        self._measuring: dict[int, None] = {}
        self._lost = False
        self._counters: Counter[str] = Counter()

    def reconfigure(self, settings: SignalSettings) -> None:
        """Report collectives as ``settings`` asks, from the next that is settled."""
        self._ratio = settings.collective_sample_ratio
        self._state = trace_state(self._ratio)
        self._spans = settings.detail != "phases"

    @property
    def counters(self) -> Counter[str]:
        """What was left out, or could not be known, by reason."""
        return self._counters + self._collectives.counters + self._links.counters

    # -- inputs -----------------------------------------------------------------------------------

    def learn(self, seen: Sequence[CommunicatorSeen]) -> None:
        """What was learnt of communicators."""
        self._seen += seen

    def take(self, rows: Operations, owners: npt.NDArray[np.int64]) -> None:
        """Calls of kinds COLLECTIVE and POINT_TO_POINT. ``owners``: the requests of their threads, ≤ 0 for none.

        The arrays are kept.
        """
        if len(rows):
            self._taken.append((rows, owners))

    def see_waits(self, rows: Operations) -> None:
        """Calls of a device's API of kinds SYNCHRONIZATION and GRAPH; others are passed over."""
        if len(rows):
            self._device_calls.append(rows)

    def see_groups(self, rows: Operations) -> None:
        """Calls of kind GROUP: where the members' work was launched, or that it was noted into a graph."""
        if len(rows):
            self._groups.append(rows)

    def see_device_work(self, work: DeviceWork) -> None:
        """Work whose host call is known, from any family; what no collective caused is passed over."""
        if len(work):
            self._work.append(work)

    def lose(self) -> None:
        """Records of calls were lost: what is counted until the next tick is not believed any more."""
        self._lost = True

    @property
    def is_active(self) -> bool:
        """Whether anything is known that time has an effect on."""
        return bool(self._seen) or bool(len(self._waiting)) or self._collectives.has_any

    def has_communicators(self, tgid: int) -> bool:
        """Whether a process's synchronisations are worth seeing."""
        return self._collectives.has(tgid) or any(seen.tgid == tgid for seen in self._seen)

    def forget_process(self, tgid: int, time_ns: int) -> None:
        """A process ended; what it called is still reported."""
        self._collectives.learn(self._seen)
        self._seen.clear()
        self._collectives.forget_process(tgid)
        self._by_thread.forget_process(tgid)
        self._by_stream.forget_process(tgid)
        self._measuring.pop(tgid, None)
        for stream_key in [stream_key for stream_key in self._unwaited if stream_key.tgid == tgid]:
            del self._unwaited[stream_key]

    # -- ticks ------------------------------------------------------------------------------------

    def report(self, now_ns: int, offset_ns: int, final: bool) -> list[SpanColumns]:
        """Collectives of which no more will be known, as of the tick at ``now_ns``."""
        given = (self._taken, self._seen, self._device_calls, self._groups, self._work)
        if not any(given) and not len(self._waiting) and not self._lost:
            self._collectives.forget_before(now_ns - KEPT_NS)
            return []
        self._collectives.learn(self._seen)
        self._seen.clear()
        if self._lost:
            self._collectives.doubt()
            self._lost = False
        device = device_calls(concatenate(self._device_calls), self._calls)
        self._device_calls.clear()
        groups = concatenate(self._groups)
        self._groups.clear()
        fresh = self._numbered(device, groups, now_ns)
        self._waiting = self._waiting.joined(fresh)
        self._end_groups(groups)
        reporting = SpanReport(
            vocabulary=self._vocabulary,
            functions=self._functions,
            resource_of=self._resource_of,
            seed=self._seed,
            offset_ns=offset_ns,
            trace_state=self._state,
        )
        spans: list[SpanColumns] = []
        if len(device.waits):
            spans += self._wait(device, reporting)
        self._add_device_work()
        spans += self._settle(now_ns, reporting, final=final)
        self._collectives.forget_before(now_ns - KEPT_NS)
        return spans

    def _numbered(self, device: DeviceCalls, groups: Operations, now_ns: int) -> Calls:
        """The calls since the last tick, in order of time, with what they are."""
        taken, self._taken = self._taken, []
        rows = concatenate([some for some, _ in taken])
        owners = np.concatenate([np.zeros(0, dtype=np.int64), *(theirs for _, theirs in taken)])
        order = np.lexsort((rows["api"], rows["handle"], rows["tid"], rows["tgid"], rows["start_ns"]))
        rows, owners = rows.take(order), owners[order]
        captured = self._by_thread.captured(rows, device.captures, device.begins)
        captured |= self._by_stream.captured(rows, device.captures, device.begins)
        noted = groups.compress(groups["sequence_source"] == SequenceSource.CAPTURED)
        captured |= np.isin(_group_keys(rows), _group_keys(noted)) & (rows["group"] != 0)
        if not len(rows):
            return Calls.none()
        functions = self._codes(rows)
        ways = [function.way for function in self._functions]
        words = np.array([function.word for function in self._functions], dtype=np.uint64)
        numbers = self._collectives.number(rows, functions, captured, ways)
        lone = (rows["kind"] == OperationKind.POINT_TO_POINT) & (rows["handle"] == 0)  # as its library has it
        for source in (Numbered.NONE, Numbered.CAPTURED, Numbered.FAILED):
            if count := int(np.count_nonzero((numbers.source == source) & ~lone)):
                self._counters[f"collectives_{_ALONE[source]}"] += count
        called = np.array(ways, dtype=np.int64)[functions], words[functions]
        found = found_of(rows, numbers, functions, called, owners, seed=self._seed, now_ns=now_ns)
        self._end_run(rows, found)
        return Calls(rows, found)

    def _end_run(self, rows: Operations, found: Found) -> None:
        """Calls that run their collective: nobody waits for it but they."""
        runs = np.array([signals.runs_collectives for _, signals in self._vocabulary.families])
        run = runs[np.minimum(rows["family"], len(runs) - 1)] & (rows["returned"] == 1)
        found["run"] = found["waited"] = run
        found["wait_end_ns"][run] = (rows["start_ns"] + rows["duration_ns"])[run]

    def _codes(self, rows: Operations) -> Codes:
        """Of each row, its position among the functions."""
        keys = rows["family"].astype(np.int64) << 32 | rows["kind"].astype(np.int64) << 16 | rows["api"]
        values, inverse = np.unique(keys, return_inverse=True)
        known = np.array([self._code(value) for value in values.tolist()], dtype=np.intp)
        return known[inverse.reshape(-1)]

    def _code(self, key: int) -> int:
        family, kind, api = key >> 32, key >> 16 & 0xFFFF, key & 0xFFFF
        code = self._function_of.get((family, kind, api))
        if code is None:
            call = self._vocabulary.call_name(family, api)
            function = function_of(call, collective=kind == OperationKind.COLLECTIVE)
            if function not in self._functions:
                self._functions.append(function)
            code = self._function_of[family, kind, api] = self._functions.index(function)
        return code

    # -- waits and device work --------------------------------------------------------------------

    def _wait(self, device: DeviceCalls, reporting: SpanReport) -> list[SpanColumns]:
        """Give each wait its collective; the spans of those whose collective was reported before."""
        unwaited = np.flatnonzero(~self._waiting.found["waited"])
        done: set[StreamKey] = set()
        for found in waits_of(device, self._waiting.rows.take(unwaited)):
            self._waiting.found["waited"][unwaited[found.calls]] = True
            held = self._unwaited.get(found.stream_key)
            if held is not None:
                found.counts[0] += held[1]
            _set_waits(self._waiting, unwaited[found.last], device.waits.take(found.waits), found.counts)
            done.add(found.stream_key)
        late: list[Calls] = []
        for stream_key, (calls, count) in list(self._unwaited.items()):
            if stream_key in done:
                del self._unwaited[stream_key]
                continue
            for found in waits_of(device, calls.rows):
                _set_waits(calls, found.last, device.waits.take(found.waits), count)
                del self._unwaited[stream_key]
                late.append(calls)
        for calls in late:
            first = calls.found[0]
            function = self._functions[int(first["function"])]
            seconds = (int(first["wait_end_ns"]) - int(first["wait_start_ns"])) * 1e-9
            self._meter.measure_wait(int(calls.rows["tgid"][0]), function, int(first["hash"]), seconds)
        reported = [calls for calls in late if self._spans and keeps(calls.found, self._ratio)[0]]
        joined = Calls.none()
        for calls in reported:
            joined = joined.joined(calls)
        return list(wait_spans(reporting, joined)) if reported else []

    def _end_groups(self, groups: Operations) -> None:
        """A group launches at its end; of one call only it is known for whom."""
        ends = groups.compress((groups["extra"] == 1) & (groups["group"] != 0))
        calls = np.flatnonzero(self._waiting.rows["group"])
        if not len(ends) or not len(calls):
            return
        order = np.argsort(_group_keys(ends), kind="stable")
        ends = ends.take(order)
        keys, wanted = _group_keys(ends), _group_keys(self._waiting.rows.take(calls))
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        known = keys[at] == wanted
        ends_ns = ends["start_ns"] + ends["duration_ns"]
        self._waiting.found["launch_end_ns"][calls[known]] = ends_ns[at[known]]

    def _add_device_work(self) -> None:
        """Device time of the kernels that were launched inside a call, to that call."""
        batches, self._work = self._work, []
        for work in batches:
            kernels = work.compress(work["work"] == Work.KERNEL)
            for tgid in np.unique(work["tgid"]).tolist():
                self._measuring[tgid] = None
            if not len(kernels) or not len(self._waiting):
                continue
            rows = self._waiting.rows
            for tid in np.intersect1d(kernels["tid"], rows["tid"]).tolist():
                calls, theirs = np.flatnonzero(rows["tid"] == tid), np.flatnonzero(kernels["tid"] == tid)
                calls = calls[np.argsort(rows["start_ns"][calls], kind="stable")]
                launched = kernels["start_ns"][theirs]
                at = np.searchsorted(rows["start_ns"][calls], launched, side="right") - 1
                inside = at >= 0
                at, theirs, launched = calls[at[inside]], theirs[inside], launched[inside]
                inside = launched < self._waiting.found["launch_end_ns"][at]
                np.add.at(
                    self._waiting.found["device_ns"], at[inside], kernels["duration_ns"][theirs[inside]]
                )
        while len(self._measuring) > _MEASURING:
            del self._measuring[next(iter(self._measuring))]

    # -- reporting ----------------------------------------------------------------------------------

    def _settle(self, now_ns: int, reporting: SpanReport, *, final: bool) -> list[SpanColumns]:
        calls = self._waiting
        if not len(calls):
            return []
        keys, group = np.unique(calls.found["key"], return_inverse=True)
        group = group.reshape(-1)
        settled = self._is_settled(calls, group, len(keys), now_ns, final=final)
        if not settled.any():
            return []
        chosen = np.flatnonzero(settled[group])
        links, unsettled = self._links.find(calls.take(chosen))
        if unsettled.any() and not final:
            young = calls.found["arrived_ns"][chosen] + np.uint64(LINKED_NS) > now_ns
            held = np.zeros(len(keys), dtype=np.bool_)
            held[group[chosen[unsettled & young]]] = True
            excess = len(calls) - CALLS
            if excess > 0:
                held[group[:excess]] = False
            kept = ~held[group[chosen]]
            chosen, links = chosen[kept], links.take(np.flatnonzero(kept))
        rest = np.ones(len(calls), dtype=np.bool_)
        rest[chosen] = False
        reported = calls.take(chosen)
        self._waiting = calls.take(np.flatnonzero(rest))
        self._keep_unwaited(reported)
        return self._report(reported, links, reporting) if len(reported) else []

    def _is_settled(self, calls: Calls, group: Codes, count: int, now_ns: int, *, final: bool) -> Bools:
        """Of each collective, whether no more will be known, or is waited for."""
        if final:
            return np.ones(count, dtype=np.bool_)
        found = calls.found
        come = np.bincount(group, minlength=count)
        ready = found["waited"].copy()
        if self._measuring:
            ready &= (found["device_ns"] > 0) | ~np.isin(calls.rows["tgid"], list(self._measuring))
        finished = np.bincount(group, weights=ready, minlength=count) == come
        oldest = np.full(count, np.iinfo(np.uint64).max, dtype=np.uint64)
        np.minimum.at(oldest, group, found["arrived_ns"])
        forming = self._collectives.forming(max(now_ns - SETTLED_NS, 0))
        settled: Bools = (finished & (come >= self._expected(calls, group, count, forming))) | (
            oldest + np.uint64(SETTLED_NS) <= now_ns
        )
        excess = len(calls) - CALLS
        if excess > 0:
            early = np.unique(group[:excess])
            self._counters["collectives_reported_early"] += int(np.count_nonzero(~settled[early]))
            settled[early] = True
        return settled

    def _expected(
        self, calls: Calls, group: Codes, count: int, forming: Mapping[int, int] = _NONE_FORMING
    ) -> npt.NDArray[np.int64]:
        """How many calls of each collective this agent should see; ``forming``: may see of a communicator, by hash."""
        members = {hash_: len(ranks) for hash_, ranks in self._collectives.members().items()} | dict(forming)
        found = calls.found
        hashes, codes = np.unique(found["hash"], return_inverse=True)
        here = np.array([members.get(hash_, 1) for hash_ in hashes.tolist()], dtype=np.int64)
        here = np.where(found["shared"], here[codes.reshape(-1)], 1)
        here = np.where(found["way"] == COLLECTIVE, here, np.minimum(here, 2))
        expected = np.ones(count, dtype=np.int64)
        np.maximum.at(expected, group, here)
        return expected

    def _keep_unwaited(self, reported: Calls) -> None:
        """The last call of each stream that nothing has waited for yet."""
        left = np.flatnonzero(~reported.found["waited"] & (reported.found["source"] != Numbered.CAPTURED))
        if not len(left):
            return
        left = left[np.argsort(reported.rows["start_ns"][left], kind="stable")]
        some = reported.rows.take(left)
        streams, stream_codes = np.unique(some["stream"], return_inverse=True)
        coded = [distinct(np.ascontiguousarray(some[name])) for name in ("tgid", "device")]
        codes, stream_keys = combine(
            [(stream_codes.reshape(-1), len(streams)), *((code, len(values)) for values, code in coded)],
            len(some),
        )
        counts = np.bincount(codes, minlength=stream_keys).tolist()
        last = np.zeros(stream_keys, dtype=np.intp)
        np.maximum.at(last, codes, np.arange(len(some)))
        for count, row in zip(counts[-_MOST_STREAMS:], last[-_MOST_STREAMS:].tolist(), strict=True):
            stream_key = key_of_stream(
                int(some["tgid"][row]), int(some["stream"][row]), int(some["device"][row])
            )
            before = self._unwaited.pop(stream_key, None)
            self._unwaited[stream_key] = (
                reported.take(left[row : row + 1]),
                count + (before[1] if before else 0),
            )
        while len(self._unwaited) > _MOST_STREAMS:
            del self._unwaited[next(iter(self._unwaited))]

    def _report(self, reported: Calls, links: CallLinks, reporting: SpanReport) -> list[SpanColumns]:
        self._set_apart_repeated(reported)
        keys, group = np.unique(reported.found["key"], return_inverse=True)
        group = group.reshape(-1)
        together = is_collective(reported.rows, reported.found)
        gathered = _Gathered(reported, group, len(keys), together)
        self._remember(reported, keys, group, gathered, together)
        lateness = gathered.lateness(reported, group, together)
        times = Times(reported, self._functions)
        self._meter.measure(reported, times, lateness, self._functions)
        kept = keeps(reported.found, self._ratio)
        roots = np.flatnonzero(together & (reported.found["rank"] == 0))
        several = gathered.one[np.isfinite(gathered.skew) & (gathered.one >= 0)]
        self._meter.measure_skew(reported.take(several), gathered.skew[group[several]], self._functions)
        if not self._spans:
            return []
        if not kept.all():
            self._counters["collectives_sampled_out"] += int(np.count_nonzero(~kept))
        chosen = np.flatnonzero(kept)
        spans = list(
            call_spans(
                reporting,
                reported.take(chosen),
                lateness[chosen],
                times.of(chosen),
                links.take(chosen),
            )
        )
        waited = np.flatnonzero(kept & (reported.found["wait_count"] > 0))
        spans += wait_spans(reporting, reported.take(waited))
        roots = roots[kept[roots]]
        spans += root_spans(reporting, gathered.of(reported.take(roots), group[roots]))
        return spans

    def _set_apart_repeated(self, reported: Calls) -> None:
        """Two calls that say that they are the same rank's: the second is believed to be something else."""
        shared = np.flatnonzero(reported.found["shared"])
        spans = np.ascontiguousarray(reported.found["span_id"][shared]).view(np.uint64).reshape(-1)
        _, first = np.unique(spans, return_index=True)
        if len(first) == len(shared):
            return
        repeated = np.delete(shared, first)
        self._counters["rank_repeated"] += len(repeated)
        set_apart(reported, repeated, seed=self._seed)

    def _remember(
        self, reported: Calls, keys: U64, group: Codes, gathered: _Gathered, together: Bools
    ) -> None:
        """When collectives began of which more calls may come; and of those that came before."""
        if self._first_ns:
            for code, key in enumerate(keys.tolist()):
                earlier = self._first_ns.get(key)
                if earlier is not None and gathered.seen[code]:
                    gathered.first_ns[code] = min(earlier, int(gathered.first_ns[code]))
                    gathered.compared[code] = True
                    self._counters["ranks_late"] += int(gathered.seen[code])
        missing = np.flatnonzero(
            (gathered.seen > 0) & (gathered.seen < self._expected(reported, group, len(keys)))
        )
        for code in missing.tolist():
            self._first_ns.setdefault(int(keys[code]), int(gathered.first_ns[code]))
        while len(self._first_ns) > _LATE:
            del self._first_ns[next(iter(self._first_ns))]


class _Gathered:
    """Of each of the m collectives of some calls, what they are together."""

    def __init__(self, reported: Calls, group: Codes, count: int, together: Bools) -> None:
        mine = np.flatnonzero(together)
        starts, ends = (
            reported.rows["start_ns"],
            np.maximum(reported.ends_ns(), reported.found["wait_end_ns"]),
        )
        self.seen = np.bincount(group[mine], minlength=count)
        self.first_ns = np.full(count, np.iinfo(np.uint64).max, dtype=np.uint64)
        np.minimum.at(self.first_ns, group[mine], starts[mine])
        self.end_ns = np.zeros(count, dtype=np.uint64)
        np.maximum.at(self.end_ns, group[mine], ends[mine])
        # The last to arrive; of equals the one with the highest rank.
        order = mine[np.lexsort((reported.found["rank"][mine], starts[mine]))]
        self.one = np.full(count, -1, dtype=np.intp)
        self.one[group[order]] = order
        self.last_rank = np.where(self.one >= 0, reported.found["rank"][self.one], -1).astype(np.int64)
        last_ns = np.where(self.one >= 0, starts[self.one], 0)
        self.compared = self.seen > 1
        skew = (last_ns.astype(np.float64) - self.first_ns.astype(np.float64)) * 1e-9
        self.skew = np.where(self.compared, skew, np.nan)

    def lateness(self, reported: Calls, group: Codes, together: Bools) -> F64:
        """Of each call, seconds after the first of its collective; NaN where it is the only one known."""
        after = (reported.rows["start_ns"] - self.first_ns[group]).astype(np.int64) * 1e-9
        return np.where(together & self.compared[group], after, np.nan)

    def of(self, calls: Calls, group: Codes) -> Gatherings:
        """The collectives whose rank 0's calls are given."""
        return Gatherings(
            calls=calls,
            start_ns=self.first_ns[group],
            end_ns=self.end_ns[group],
            seen=self.seen[group],
            last_rank=self.last_rank[group],
            skew=self.skew[group],
        )


def _group_keys(rows: Operations) -> U64:
    """A word for each row's thread and group."""
    keys: U64 = (rows["tid"].astype(np.uint64) << np.uint64(32)) | rows["group"]
    return keys


def _set_waits(calls: Calls, chosen: Codes, waits: Operations, counts: Codes | int) -> None:
    found = calls.found
    found["waited"][chosen] = True
    found["wait_start_ns"][chosen] = waits["start_ns"]
    found["wait_end_ns"][chosen] = waits["start_ns"] + waits["duration_ns"]
    found["wait_tid"][chosen] = waits["tid"]
    found["wait_api"][chosen], found["wait_family"][chosen] = waits["api"], waits["family"]
    found["wait_count"][chosen] = counts
