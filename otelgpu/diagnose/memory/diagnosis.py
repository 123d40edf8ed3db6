"""From snapshots, levels and events to a report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from otelgpu.diagnose.memory.accounting import Accounted, account, devices_of
from otelgpu.diagnose.memory.categories import ACTIVATIONS, CACHE, UNKNOWN, is_of_allocator, purpose_of
from otelgpu.diagnose.memory.failed import has_recovered, is_failure, remarks_of, verdicts_of
from otelgpu.diagnose.memory.growth import Growth, growths
from otelgpu.diagnose.memory.levels import ALLOCATED, LIMIT, RESERVED, USAGE, Levels
from otelgpu.diagnose.memory.observations import (
    DEVICE,
    Observations,
    Place,
    ProcessSeen,
    Snapshot,
)
from otelgpu.diagnose.memory.verdicts import (
    GROWTH,
    INCONCLUSIVE,
    MEMORY,
    CategoryHeld,
    DeviceHeld,
    HeldAt,
    MemoryEvidence,
    MemoryReport,
    MemorySummary,
    MemoryVerdict,
    PlaceHeld,
)
from otelgpu.diagnose.stall.verdicts import Line
from otelgpu.model.events import Event
from otelgpu.model.quantities import duration, size
from otelgpu.render.frames import Kind

MOST_PLACES: Final = 12
MOST_EVIDENCE: Final = 3
MOST_STACK: Final = 24
MOST_PYTHON: Final = 4
RETURNED: Final = 1.5
"""So many times what it held at most has to pass through a place before it has a lifetime."""
MOST_VERDICTS: Final = 10
CACHED: Final = 0.3
"""Of what an allocator has reserved: from there on its cache is remarked on."""
LEAST_CACHED: Final = 64 << 20
"""Of less that is cached nothing is said."""
KEPT_LOOKS: Final = 6
"""Looks, of fewer it is not known whether what a forward pass made is kept."""
_TYPES: Final = frozenset(("device_memory_allocated", "tensor_memory_allocated", "device_memory_in_use"))


class Seen(Struct, frozen=True, kw_only=True):
    """All that was observed. ``subjects``: processes that were asked for; empty: all."""

    profiles: Observations
    levels: Levels
    events: Sequence[Event] = ()
    subjects: Collection[int] = ()


def diagnose(seen: Seen) -> MemoryReport:
    """The report."""
    processes = [each for each in seen.profiles.processes if not seen.subjects or each.pid in seen.subjects]
    devices = [held for each in processes for held in _devices(each, seen.levels)]
    verdicts = verdicts_of(seen.events)
    for process in processes:
        verdicts += [_growing(process, each, devices) for each in growths(process)]
    verdicts = verdicts[:MOST_VERDICTS]
    failures = [each for each in seen.events if is_failure(each)]
    if not verdicts and not devices and not failures:
        verdicts = [_lacking(seen)]
    times = [each.time_ns for process in processes for each in process.snapshots]
    rejected = Counter(seen.profiles.rejected)
    if seen.levels.rejected:
        rejected["points_not_read"] += seen.levels.rejected
    return MemoryReport(
        verdicts=verdicts,
        input=MemorySummary(
            processes=len(processes),
            snapshots=len(times),
            seconds=(max(times) - min(times)) / 1e9 if times else 0.0,
            failures=len(failures),
            recovered=sum(map(has_recovered, failures)),
            rejected=dict(sorted(rejected.items())),
        ),
        devices=devices,
        remarks=[*remarks_of(seen.events), *_cache_remarks(devices)],
        limits=_limits(devices),
    )


# -- what is held ------------------------------------------------------------------------------------


def _devices(process: ProcessSeen, levels: Levels) -> list[DeviceHeld]:
    found = []
    for device in devices_of(process.snapshots):
        reported = [_accounted(each, process, device, levels) for each in process.snapshots]
        last = max(range(len(reported)), key=lambda at: process.snapshots[at].time_ns)
        peak = max(range(len(reported)), key=lambda at: reported[at].total)
        now = process.snapshots[last]
        found.append(
            DeviceHeld(
                pid=process.pid,
                program=process.program,
                device=device,
                total=_of_hardware(LIMIT, process.pid, device, levels, now.time_ns),
                free=_free(process.pid, device, levels, now.time_ns),
                now=_held(process, now, reported[last], "exit" if now.at_exit else "last look", levels),
                peak=_held(process, process.snapshots[peak], reported[peak], "peak", levels),
                places=_places(process, process.snapshots[peak], device),
            )
        )
    return found


def _accounted(snapshot: Snapshot, process: ProcessSeen, device: int, levels: Levels) -> Accounted:
    name = f"cuda:{device}"
    return account(
        snapshot,
        device,
        reserved=levels.at(RESERVED, process.pid, name, snapshot.time_ns),
        allocated=levels.at(ALLOCATED, process.pid, name, snapshot.time_ns),
        category=lambda place: _purpose(process, place)[0],
    )


def _purpose(process: ProcessSeen, place: Place) -> tuple[str, str]:
    """By its frames, and by whether it passes: what a forward pass made once and keeps is no activation."""
    category, evidence = purpose_of(place.frames)
    if category == ACTIVATIONS and _is_kept(process, place):
        return UNKNOWN, f"{evidence}: made once, and kept"
    return category, evidence


def _is_kept(process: ProcessSeen, place: Place) -> bool:
    """Whether it was allocated in the first third of the time, and neither before nor since was anything freed."""
    snapshots = [each for each in process.snapshots if not each.at_exit]
    if len(snapshots) < KEPT_LOOKS or place not in process.flow:
        return False
    begin, end = snapshots[0].time_ns, snapshots[-1].time_ns
    latest = max(time for time, _ in process.flow[place])
    sizes = {each.sizes[place] for each in snapshots if each.time_ns > latest}
    return latest < begin + (end - begin) / 3 and len(sizes) == 1


def _held(process: ProcessSeen, snapshot: Snapshot, reported: Accounted, when: str, levels: Levels) -> HeldAt:
    charged = _charged(process.pid, reported.device, levels, snapshot.time_ns)
    total = reported.total
    evidence = _evidence(process, snapshot, reported.device)
    return HeldAt(
        time_unix_s=snapshot.time_ns / 1e9,
        when=when,
        bytes=total,
        ledger=reported.ledger,
        older=reported.older,
        reserved=reported.reserved,
        charged=charged,
        context=None if charged is None else charged - total,
        categories=[
            CategoryHeld(
                category=name,
                bytes=held,
                share=held / total if total else 0.0,
                evidence=[*evidence.get(name, ()), *(reported.remarks if name == UNKNOWN else ())],
            )
            for name, held in sorted(reported.categories.items(), key=lambda each: -each[1])
        ],
    )


def _evidence(process: ProcessSeen, snapshot: Snapshot, device: int) -> dict[str, list[str]]:
    sums: dict[str, Counter[str]] = {}
    for place, held in snapshot.sizes.items():
        if place.device == device and held:
            category, evidence = _purpose(process, place)
            if evidence:
                sums.setdefault(category, Counter())[evidence] += held
    return {name: [text for text, _ in texts.most_common(MOST_EVIDENCE)] for name, texts in sums.items()}


def _hardware(pid: int, device: int, levels: Levels, time: int) -> str:
    """The driver's id of a process's ordinal, where the process is charged for one device alone."""
    charged = dict(levels.charged(pid, time))
    return next(iter(charged)) if len(charged) == 1 and device <= 0 else ""


def _charged(pid: int, device: int, levels: Levels, time: int) -> int | None:
    return dict(levels.charged(pid, time)).get(_hardware(pid, device, levels, time))


def _of_hardware(name: str, pid: int, device: int, levels: Levels, time: int) -> int | None:
    identity = _hardware(pid, device, levels, time)
    return levels.at(name, 0, identity, time) if identity else None


def _free(pid: int, device: int, levels: Levels, time: int) -> int | None:
    total = _of_hardware(LIMIT, pid, device, levels, time)
    used = _of_hardware(USAGE, pid, device, levels, time)
    return None if total is None or used is None else max(total - used, 0)


def _places(process: ProcessSeen, snapshot: Snapshot, device: int) -> list[PlaceHeld]:
    """The largest; where tensors are seen, they stand for the pieces that the allocator took."""
    has_tensors = any(place.level != DEVICE and place.device == device for place in snapshot.sizes)
    own = [
        (place, held)
        for place, held in snapshot.sizes.most_common()
        if held and place.device == device
        if not (has_tensors and place.level == DEVICE and is_of_allocator(place.frames))
    ]
    return [_place(process, snapshot, place, held) for place, held in own[:MOST_PLACES]]


def _place(process: ProcessSeen, snapshot: Snapshot, place: Place, held: int) -> PlaceHeld:
    category, evidence = _purpose(process, place)
    passed = sum(allocated for _, allocated in process.flow.get(place, ()))
    return PlaceHeld(
        level=place.level,
        bytes=held,
        allocations=snapshot.counts.get(place),
        passed=passed,
        lifetime_s=_lifetime_s(process, place),
        category=category,
        evidence=evidence,
        kind=place.kind,
        line=line_of(place),
        python=_python(place),
        stack=[frame.label for frame in place.frames[:MOST_STACK]],
    )


def _lifetime_s(process: ProcessSeen, place: Place) -> float | None:
    snapshots = [each for each in process.snapshots if not each.at_exit]
    if len(snapshots) < 2:
        return None
    begin, end = snapshots[0].time_ns, snapshots[-1].time_ns
    passed = sum(allocated for time, allocated in process.flow.get(place, ()) if begin < time <= end)
    sizes = [each.sizes[place] for each in snapshots]
    if passed <= RETURNED * max(sizes):
        return None  # hardly anything came back
    return sum(sizes) / len(sizes) * (end - begin) / 1e9 / passed


def _python(place: Place) -> list[str]:
    return [frame.label for frame in place.frames if frame.kind is Kind.PYTHON][:MOST_PYTHON]


def line_of(place: Place) -> Line | None:
    """The innermost line of Python."""
    for frame in place.frames:
        if frame.kind is Kind.PYTHON:
            return Line(file=frame.file, line=frame.line, function=frame.name)
    return None


# -- what is said ------------------------------------------------------------------------------------


def _growing(process: ProcessSeen, growth: Growth, devices: Sequence[DeviceHeld]) -> MemoryVerdict:
    place = growth.place
    category, reason = _purpose(process, place)
    seconds = (growth.end_ns - growth.begin_ns) / 1e9
    evidence = [
        MemoryEvidence(
            name="growth",
            text=f"{size(growth.grown)} more in {duration(seconds * 1e9)}, "
            f"up in {growth.rising:.0%} of the steps and down in none",
            value=growth.grown,
            unit="By",
        )
    ]
    if reason:
        evidence.append(MemoryEvidence(name="category", text=f"{category}: {reason}"))
    free = next(
        (each.free for each in devices if (each.pid, each.device) == (process.pid, place.device)), None
    )
    if free:
        left = free / growth.bytes_per_s
        evidence.append(
            MemoryEvidence(
                name="left",
                text=f"{size(free)} are free: they last for {duration(left * 1e9)}",
                value=left,
                unit="s",
            )
        )
    return MemoryVerdict(
        klass=MEMORY,
        cause=GROWTH,
        pid=process.pid,
        program=process.program,
        device=place.device,
        line=line_of(place),
        python=_python(place),
        stack=[frame.label for frame in place.frames[:MOST_STACK]],
        bytes=growth.grown,
        bytes_per_s=growth.bytes_per_s,
        category=category,
        confidence=round(growth.rising, 3),
        evidence=evidence,
        next="find what keeps a reference to it (a list that grows, a loss that was not detached); a cache that fills "
        "looks the same, and stops",
        start_unix_s=growth.begin_ns / 1e9,
        end_unix_s=growth.end_ns / 1e9,
    )


def _lacking(seen: Seen) -> MemoryVerdict:
    """Why nothing can be said."""
    recorded = bool(seen.profiles.types & _TYPES)
    if not recorded and not seen.profiles.processes:
        text = "no device memory was allocated or held that could be seen"
        following = "attach before the program allocates: -- PROGRAM; or record otelgpu profile -t mem --export file:F"
    else:
        text = "what is held was not looked at often enough: nothing was held at any look"
        following = "record for longer: -d 30"
    return MemoryVerdict(
        klass=INCONCLUSIVE,
        confidence=1.0,
        evidence=[MemoryEvidence(name="missing", text=text)],
        next=following,
    )


def _cache_remarks(devices: Sequence[DeviceHeld]) -> list[str]:
    found = []
    for each in devices:
        cached = next((part.bytes for part in each.peak.categories if part.category == CACHE), 0)
        if each.peak.reserved and cached >= max(CACHED * each.peak.reserved, LEAST_CACHED):
            found.append(
                f"{each.program} (PID {each.pid}): at the peak {size(cached)} of {size(each.peak.reserved)} that "
                "the framework's allocator had were used by no tensor: expandable_segments:True, and fewer different "
                "sizes, make it less"
            )
    return found


def _limits(devices: Sequence[DeviceHeld]) -> list[str]:
    limits = [
        "the largest free block is not known: neither the driver nor a caching allocator says it",
        "categories are estimates by the names of frames; what was allocated before the observation is in none",
    ]
    if any(each.now.charged is None for each in devices):
        limits.append(
            "what the driver charges to the process is not known (no NVML, or several devices): nor is its context"
        )
    return limits
