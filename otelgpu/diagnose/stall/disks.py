"""Which disk a thread waited for while it stood still: its own requests to block devices. Pure.

In: requests of the thread (kind ``block``), and a stall's activities. What the kernel writes back later it asks for
itself: then a write has no request of its own, which is said. It is charged to the control group of who made the pages
dirty where the kernel does that (and its requests are counted), else it is of all who share the disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Final

from msgspec import Struct

from otelgpu.diagnose.stall.causes import FILE_SYNC, FILE_WRITE, FILES, PAGE_FAULTS
from otelgpu.diagnose.stall.gaps import Finding
from otelgpu.diagnose.stall.observations import BLOCK_TIME, Observations, Seen, ThreadSeen, WrittenBack
from otelgpu.diagnose.stall.sentences import shown_bytes
from otelgpu.diagnose.stall.surroundings import GroupWrites, Surroundings
from otelgpu.diagnose.stall.verdicts import StallEvidence
from otelgpu.model.quantities import duration

WRITTEN_BACK: Final = (
    "no write to a disk was its own: the page cache took what it wrote, and the kernel writes it back later, "
)
_MOST_WRITERS: Final = 3
_MOST_DISKS: Final = 3
_OF_DISKS: Final = (*FILES, PAGE_FAULTS)


class Disk(Struct, frozen=True, kw_only=True):
    """What was asked of one device during a stall: by operation (``read``, ``write``, ``discard``) how often."""

    device: str
    requests: Counter[str]
    spent_ns: int


def disk_of(finding: Finding, thread: ThreadSeen) -> Disk | None:
    """The device that most time went into; None where nothing was asked of one."""
    if finding.cause not in _OF_DISKS:
        return None
    rows = thread.of(BLOCK_TIME)
    begins = [row.begin_ns for row in rows]
    by_device: dict[str, list[Seen]] = defaultdict(list)
    for each in finding.activities:
        for row in rows[bisect_left(begins, each.begin_ns) : bisect_left(begins, each.end_ns)]:
            by_device[row.device].append(row)
    disks = [
        Disk(
            device=device,
            requests=Counter(row.call for row in made),
            spent_ns=sum(row.length_ns for row in made),
        )
        for device, made in by_device.items()
        if device
    ]
    return max(disks, key=lambda disk: disk.spent_ns, default=None)


def disk_evidence(
    finding: Finding, disk: Disk | None, seen: Observations, around: Surroundings | None
) -> list[StallEvidence]:
    """Where requests were not recorded, nothing is said of them."""
    found = []
    if disk is not None:
        each = duration(disk.spent_ns / disk.requests.total())
        asked = ", ".join(f"{name or 'request'} {count} times" for name, count in disk.requests.most_common())
        text = f"meanwhile it asked {disk.device}: {asked}; {each} each"
        value = float(disk.requests.total())
        found.append(StallEvidence(name="disk", text=text, value=value, unit="1"))
    is_written_back = finding.cause == FILE_WRITE and (disk is None or not disk.requests["write"])
    if is_written_back and BLOCK_TIME in seen.types:
        group = around.group_writes if around is not None else None
        whose = "for all who share the disk" if group is None else f"for its control group {group.group}"
        found.append(StallEvidence(name="disk", text=WRITTEN_BACK + whose))
    if finding.cause in (FILE_WRITE, FILE_SYNC) and around is not None:
        found += _dirtied(around)
        found += _charged(around.group_writes, around.dirtied_bytes)
    if finding.cause in (FILE_WRITE, FILE_SYNC):
        found += _requests(seen.written_back)
    return found


def _requests(made: list[WrittenBack]) -> list[StallEvidence]:
    """How long the disks took that most was written back to."""
    most = sorted(made, key=lambda each: -each.spent_ns)[:_MOST_DISKS]
    return [
        StallEvidence(
            name="group_requests",
            text=f"for control group {each.group} threads of the kernel wrote back to {each.device or 'a disk'} "
            f"meanwhile in {each.requests} requests, {duration(each.spent_ns / each.requests)} each",
            value=float(each.requests),
            unit="1",
        )
        for each in most
    ]


def _dirtied(around: Surroundings) -> list[StallEvidence]:
    """Whose the pages are that the kernel writes back: it charges them to who makes them dirty."""
    mine, others = around.dirtied_bytes, around.others_dirtied_bytes
    if not mine:
        return []
    most = ", ".join(
        f"{each.name} (PID {each.pid}) {shown_bytes(each.dirtied_bytes)}"
        for each in around.writers[:_MOST_WRITERS]
    )
    beside = f"; all others {shown_bytes(others)}: {most}" if others else "; no other that still runs any"
    text = (
        f"of what the kernel writes back it made {shown_bytes(mine)} dirty meanwhile, "
        f"{mine / (mine + others):.0%} of all{beside}"
    )
    return [StallEvidence(name="written_back", text=text, value=float(mine), unit="By")]


def _charged(writes: GroupWrites | None, mine: int | None) -> list[StallEvidence]:
    """What the kernel wrote for the control group, its writing back included, and whose part that is."""
    if writes is None or not mine:
        return []
    most = sorted(writes.bytes_by_device.items(), key=lambda item: -item[1])
    if not most:
        text = (
            f"nothing was written to a disk for control group {writes.group} meanwhile: the kernel has not begun "
            "to, or the file system does not say for whom it writes"
        )
        return [StallEvidence(name="group_writes", text=text, value=0.0, unit="By")]
    disks = ", ".join(f"{shown_bytes(size)} to {device}" for device, size in most[:_MOST_DISKS])
    others = writes.others_dirtied_bytes
    whose = (
        f"other processes made {others / (mine + others):.0%} of its dirty pages"
        if others
        else "no other that still runs made pages dirty there"
    )
    text = f"for control group {writes.group} the kernel wrote {disks} meanwhile; {whose}"
    return [StallEvidence(name="group_writes", text=text, value=float(most[0][1]), unit="By")]
