"""Who used the energy of which GPU: what each GPU read, and what processes worked on meanwhile. Pure.

In: readings of GPUs, who is on them, and :class:`~otelgpu.families.gpu.energy.work.Work`. Out: accounts of requests,
and of each GPU what was idle, for requests and nobody's. An interval is shared once all is known of it: steps of
engines are reported a while after they ended.

Invariant, at any time and for every GPU: what its counter grew by in the intervals that were shared is what was idle,
what is nobody's, what closed accounts were charged and what open ones are. All of it is whole nanojoules.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from otelgpu.families.gpu.energy.accounts import Account, Accounts
from otelgpu.families.gpu.energy.intervals import NS_PER_S, Energy, IdlePower, Interval
from otelgpu.families.gpu.energy.sharing import ProcessPart, Used, charges, covered_ns
from otelgpu.families.gpu.energy.signals import Use
from otelgpu.families.gpu.energy.work import REASONS as WORK_REASONS
from otelgpu.families.gpu.energy.work import Work
from otelgpu.model.devices import DeviceReadings, DeviceSeen, EnergyRead, ProcessDevices, Quantity
from otelgpu.model.losses import Reasons

REASONS: Final = Reasons(
    "energy",
    {
        **WORK_REASONS,
        "counter_resets": "a GPU's counter of energy began at zero again: what it used meanwhile is in none",
        "readings_implausible": "a GPU's counter of energy leapt further than a GPU can draw: left out",
        "readings_missing": "a GPU that was not read in time for a request that had ended: what the request is charged "
        "lacks that",
    },
)
"""What one count of (``energy``, reason) means."""

CALLS_KNOWN_NS: Final = NS_PER_S // 4
"""When calls of a time are known to be of their requests: whom a thread was given work by, the next tick finds out."""

STEPS_KNOWN_NS: Final = 1_300_000_000
"""When steps of a time are known, and their members: ``StepRules.grace_ns`` and some ticks."""

QUIET_KNOWN_NS: Final = STEPS_KNOWN_NS
"""When nobody is known to have been under way at a time: an agent that gets little CPU parses requests late."""

LONGEST_WAIT_NS: Final = 5 * NS_PER_S
"""For a step that is under way: its members are known once it has ended."""

GIVEN_UP_NS: Final = LONGEST_WAIT_NS + NS_PER_S
"""No request waits longer for a reading after its end."""

_PENDING: Final = 1024
_UNCLOSED_NS: Final = 10 * NS_PER_S
_LONGEST_WANTED_NS: Final = 600 * NS_PER_S


class _Gpu(Struct):
    idle: IdlePower
    energy: Energy = field(default_factory=Energy)
    pending: deque[Interval] = field(default_factory=deque)
    settled_ns: int = 0
    silent: bool = False  # nothing was read of it for so long that nobody waits
    processes: dict[int, int | None] = field(
        default_factory=dict
    )  # as the driver has it: utilisation in percent
    utilization: tuple[int, int] = (0, 0)  # when, and how much


class Ledger:
    """Of one session. ``idle_milliwatts``: what each GPU draws idle; 0: it is measured."""

    def __init__(self, work: Work, *, idle_milliwatts: int = 0) -> None:
        self.used: Counter[tuple[str, str]] = Counter()
        """Nanojoules by GPU and :class:`Use`, since they were taken last."""
        self._work = work
        self._idle_milliwatts = idle_milliwatts
        self._gpus: dict[str, _Gpu] = {}
        self._parents: dict[str, str] = {}  # MIG device → GPU
        self._visible: dict[int, tuple[str, ...]] = {}
        self._accounts = Accounts()
        self._counters: Counter[str] = Counter()
        self._drivers_known: tuple[int, set[int]] = (-1, set())  # when that was

    # -- what is learnt ------------------------------------------------------------------------

    def see(self, seen: DeviceSeen) -> None:
        """A MIG device has no counter of its own: what is on it is on its GPU."""
        if seen.parent:
            self._parents[seen.uuid] = seen.parent

    def lose(self, uuid: str) -> None:
        """A GPU is gone. What it used since its last reading is not known."""
        self._parents.pop(uuid, None)
        gpu = self._gpus.get(uuid)
        if gpu is not None:
            gpu.silent = True
            gpu.energy = _follow(gpu.energy)

    def note(self, readings: DeviceReadings) -> None:
        """Who is on a GPU, and how busy it is."""
        gpu = self._gpus.get(readings.uuid)
        if gpu is not None:
            gpu.processes = {each.tgid: each.utilization_percent for each in readings.processes}
            percent = readings.values.get(Quantity.UTILIZATION_PERCENT, 0)
            gpu.utilization = readings.time_ns, percent

    def show(self, devices: ProcessDevices) -> None:
        """What a process can see."""
        self._visible[devices.tgid] = tuple(self._parents.get(uuid, uuid) for uuid in devices.uuids)

    def read(self, read: EnergyRead) -> None:
        """A reading, in order of time."""
        gpu = self._gpus.get(read.uuid)
        if gpu is None:
            gpu = self._gpus[read.uuid] = _Gpu(IdlePower(self._idle_milliwatts))
            gpu.settled_ns = read.time_ns
        gpu.silent = False
        interval = gpu.energy.add(read)
        if interval is not None:
            if len(gpu.pending) >= _PENDING:
                self._share(read.uuid, gpu, gpu.pending.popleft())
            gpu.pending.append(interval)
        elif not gpu.pending:
            gpu.settled_ns = max(gpu.settled_ns, gpu.energy.until_ns)

    def forget_process(self, tgid: int) -> None:
        """It has ended. Requests of it that nobody closed are nobody's."""
        for key in self._work.forget_process(tgid):
            self.close(key, counts=False)
        self._visible.pop(tgid, None)
        for gpu in self._gpus.values():
            gpu.processes.pop(tgid, None)

    # -- what is asked -------------------------------------------------------------------------

    @property
    def counters(self) -> Counter[str]:
        """What was left out, by reason."""
        gpus = self._gpus.values()
        return self._counters + Counter(
            counter_resets=sum(gpu.energy.resets for gpu in gpus),
            readings_implausible=sum(gpu.energy.implausible for gpu in gpus),
        )

    @property
    def is_waiting(self) -> bool:
        """Whether intervals are to be shared yet, and requests wait for that."""
        return bool(self._work.flights) and any(gpu.pending for gpu in self._gpus.values())

    def wants_readings(self, now_ns: int) -> bool:
        """Whether requests are under way that use a GPU, or ended since the last reading."""
        if not self._gpus or not self._work.flights:
            return False
        until_ns = min((gpu.energy.until_ns for gpu in self._live()), default=now_ns)
        return any(
            each.end_ns > until_ns or (not each.end_ns and each.start_ns > now_ns - _LONGEST_WANTED_NS)
            for each in self._work.flights_of(self._drivers(now_ns))
        )

    def is_known(self, key: int, end_ns: int, now_ns: int) -> bool:
        """Whether a request that ended has been charged all that it ever will be."""
        late = [gpu for gpu in self._live() if gpu.settled_ns < end_ns]
        flight = self._work.flights.get(key)
        if not late or flight is None or flight.tgid not in self._drivers(now_ns):
            return True
        if now_ns < end_ns + GIVEN_UP_NS:
            return False
        for gpu in late:
            gpu.silent = gpu.energy.until_ns < end_ns
            self._counters["readings_missing"] += 1
        return True

    def close(self, key: int, *, counts: bool = True) -> Account | None:
        """What a request was charged; nothing is from here on. Not ``counts``: it is nobody's after all."""
        self._work.drop(key)
        account = self._accounts.close(key)
        if account is not None:
            use = Use.REQUESTS if counts else Use.UNATTRIBUTED
            for uuid, nanojoules in account.by_device.items():
                self.used[uuid, use] += nanojoules
        return account

    def take_used(self) -> list[tuple[tuple[str, str], int]]:
        """What is new in :attr:`used`."""
        found = [(place, nanojoules) for place, nanojoules in self.used.items() if nanojoules]
        self.used.clear()
        return found

    # -- sharing -------------------------------------------------------------------------------

    def settle(self, now_ns: int, *, hears_engines: bool, final: bool = False) -> None:
        """Share the intervals of which all is known by now."""
        wait_ns = STEPS_KNOWN_NS if hears_engines else CALLS_KNOWN_NS
        for uuid, gpu in self._gpus.items():
            while gpu.pending and (final or self._is_ready(uuid, gpu, gpu.pending[0], now_ns, wait_ns)):
                self._share(uuid, gpu, gpu.pending.popleft())
            if not gpu.pending:
                gpu.settled_ns = max(gpu.settled_ns, gpu.energy.until_ns)
        settled_ns = min((gpu.settled_ns for gpu in self._live()), default=now_ns)
        for key in self._work.forget_before(settled_ns - _UNCLOSED_NS):
            self.close(key, counts=False)

    def _is_ready(self, uuid: str, gpu: _Gpu, interval: Interval, now_ns: int, wait_ns: int) -> bool:
        end_ns = interval.end_ns
        if not self._is_under_way(interval.start_ns, end_ns):
            return now_ns >= end_ns + QUIET_KNOWN_NS
        if now_ns >= end_ns + LONGEST_WAIT_NS:
            return True
        if now_ns < end_ns + wait_ns:
            return False
        goes_on = self._is_under_way(end_ns, end_ns + 1)
        return not goes_on or all(self._work.is_known(tgid, end_ns) for tgid in self._on(uuid, gpu))

    def _is_under_way(self, start_ns: int, end_ns: int) -> bool:
        """Whether any request was, in a stretch of time."""
        return any(each.overlap(start_ns, end_ns) for each in self._work.flights.values())

    def _share(self, uuid: str, gpu: _Gpu, interval: Interval) -> None:
        gpu.settled_ns = interval.end_ns
        start_ns, end_ns = interval.start_ns, interval.end_ns
        found = {tgid: self._work.of_process(tgid, start_ns, end_ns) for tgid in self._on(uuid, gpu)}
        parts = {tgid: part for tgid, part in found.items() if part is not None}
        if not parts and not self._is_busy(gpu, found, interval):
            gpu.idle.quiet(interval)
            self.used[uuid, Use.IDLE] += interval.nanojoules
            return
        gpu.idle.busy()
        idle = gpu.idle.part_of(interval)
        self.used[uuid, Use.IDLE] += idle
        time_ns = covered_ns(*(part.spans for part in parts.values()))
        beyond = Used(interval.nanojoules - idle, time_ns)
        found_charges = charges(beyond, _weighted(parts, gpu.processes))
        nobodys = self._accounts.charge(
            uuid, found_charges, self._work.flights, idle_power=gpu.idle.how, source=interval.source
        )
        self.used[uuid, Use.UNATTRIBUTED] += nobodys

    def _is_busy(self, gpu: _Gpu, tgids: Iterable[int], interval: Interval) -> bool:
        """Whether somebody works on the GPU for no request that is known."""
        if any(self._work.has_called(tgid, interval.start_ns, interval.end_ns) for tgid in tgids):
            return True
        noted_ns, percent = gpu.utilization
        return percent > 0 and interval.start_ns < noted_ns <= interval.end_ns

    def _on(self, uuid: str, gpu: _Gpu) -> list[int]:
        """The processes on a GPU: as the driver has it, else those that call a device and can see this one."""
        listed = {tgid for each in self._gpus.values() for tgid in each.processes}
        alone = len(self._gpus) == 1
        callers = [
            tgid
            for tgid in sorted(self._work.callers - listed)
            if uuid in self._visible.get(tgid, (uuid,) if alone else ())
        ]
        return [*sorted(gpu.processes), *callers]

    def _drivers(self, now_ns: int) -> set[int]:
        """Processes that call a device or that the driver finds on one, and those whose requests they work on."""
        if self._drivers_known[0] != now_ns:
            users = self._work.callers | {tgid for gpu in self._gpus.values() for tgid in gpu.processes}
            self._drivers_known = now_ns, self._work.drivers(users)
        return self._drivers_known[1]

    def _live(self) -> list[_Gpu]:
        return [gpu for gpu in self._gpus.values() if not gpu.silent]


def _weighted(parts: dict[int, ProcessPart], processes: dict[int, int | None]) -> list[ProcessPart]:
    """By utilisation where the driver knows that of each; others are on the GPU then, too. Else all alike."""
    percents = {tgid: processes.get(tgid) for tgid in parts}
    if not all(percents.values()):
        return list(parts.values())
    found = [replace(part, weight=percents[tgid] or 1) for tgid, part in parts.items()]
    others = sum(percent or 0 for tgid, percent in processes.items() if tgid not in parts)
    return [*found, ProcessPart(weight=others)] if others else found


def _follow(before: Energy) -> Energy:
    """A new beginning, with the old counts."""
    after = Energy()
    after.resets, after.implausible, after.until_ns = before.resets, before.implausible, before.until_ns
    return after
