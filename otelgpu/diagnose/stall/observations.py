"""Profiles by thread: what each was seen to do, when, for how long and under which stack. Pure.

In: :class:`~otelgpu.model.profiles.ProfileColumns` of kinds ``cpu``, ``offcpu``, ``syscall``, ``file`` and ``block``,
with times. Out: :class:`ThreadSeen`, of each thread its observations in the order of their beginnings. What comes from
a file may hold anything: rows without a time or a thread are counted and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, field, structs

from otelgpu.diagnose.profile_rows import frames_of, process_of, value_of
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import Attribute
from otelgpu.render.frames import Frame
from otelgpu.render.page_columns import clean

CPU: Final = "cpu"
OFF_CPU: Final = "off_cpu"
SYSCALL_TIME: Final = "syscall_time"
SYSCALLS: Final = "syscalls"
FILE_TIME: Final = "file_time"
FILE_BYTES: Final = "file_bytes"
BLOCK_TIME: Final = "block_time"
CALL_TIMES: Final = ("cuda_time", "hip_time", "nccl_time")
USED: Final = frozenset(
    (CPU, OFF_CPU, SYSCALL_TIME, SYSCALLS, FILE_TIME, FILE_BYTES, BLOCK_TIME, *CALL_TIMES)
)
"""Sample types that are looked at."""

MOST_ROWS: Final = 2_000_000
"""Rows of a diagnosis; what is beyond is counted and left out."""
_LONGEST_NS: Final = 1 << 62
_THREAD_ID: Final = "thread.id"
_THREAD_NAME: Final = "thread.name"
_STATE: Final = "otelgpu.thread.state"
_SYSCALL: Final = "otelgpu.syscall.name"
_FILE_CALL: Final = "otelgpu.file.call"
_FILE_NAME: Final = "file.name"
_FILE_PATH: Final = "file.path"
_CALL: Final = "otelgpu.call.name"
_DEVICE: Final = "otelgpu.block.device"
_OPERATION: Final = "otelgpu.block.operation"
_WRITTEN_BACK: Final = "otelgpu.block.written_back_for"

Frames = tuple[Frame, ...]


class Seen(Struct, frozen=True):
    """One observation. ``frames``: the leaf first. ``length_ns``: of a sample of the clock what it stands for.

    ``call``: the function of a vendor's library, or what a disk is asked for; ``device``: that disk. ``count``: calls
    that it stands for; ``size_bytes``: that a call on a file moved; -1: not known. ``span``: hexadecimal trace and span
    id, "" of none.
    """

    type: str
    begin_ns: int
    length_ns: int
    frames: Frames
    state: str = ""
    syscall: str = ""
    file_call: str = ""
    file_name: str = ""
    count: int = 1
    size_bytes: int = -1
    span: str = ""
    call: str = ""
    device: str = ""
    file_path: str = ""

    @property
    def end_ns(self) -> int:
        """When it was over."""
        return self.begin_ns + self.length_ns


class ThreadSeen(Struct):
    """All of one thread. Times are Unix nanoseconds."""

    pid: int
    program: str
    tid: int
    name: str = ""
    rows: list[Seen] = field(default_factory=list)

    def of(self, *types: str) -> list[Seen]:
        """Those of the types, in their order."""
        return [row for row in self.rows if row.type in types]


class WrittenBack(Struct, kw_only=True):
    """Requests that threads of the kernel made to a device for a control group."""

    group: str
    device: str
    requests: int = 0
    spent_ns: int = 0


class Observations(Struct, kw_only=True):
    """What profiles held. ``types``: sample types that there are; ``rejected``: reason → rows."""

    threads: list[ThreadSeen]
    types: frozenset[str]
    rejected: dict[str, int]
    written_back: list[WrittenBack] = field(default_factory=list)


def observe(batches: Sequence[ProfileColumns]) -> Observations:
    """Sort rows by thread."""
    threads: dict[tuple[int, int], ThreadSeen] = {}
    rejected: Counter[str] = Counter()
    extra: dict[tuple[str, int, int, int], int] = {}
    back: dict[tuple[str, str], WrittenBack] = {}
    types, taken = set(), 0
    for batch in batches:
        kind = batch.sample_type.type
        types.add(kind)
        if kind not in USED:
            continue
        if taken + len(batch) > MOST_ROWS:
            rejected["rows_beyond_limit"] += len(batch)
            continue
        taken += len(batch)
        if kind == BLOCK_TIME:
            _see_written_back(batch, back)
        pid, program = process_of(batch)
        for tid, name, row in _rows(batch, rejected):
            if kind in (SYSCALLS, FILE_BYTES):
                extra[kind, pid, tid, row.begin_ns] = row.length_ns
                continue
            thread = threads.setdefault((pid, tid), ThreadSeen(pid=pid, program=program, tid=tid))
            thread.name = name or thread.name
            thread.rows.append(row)
    for thread in threads.values():
        thread.rows = sorted((_with(row, thread, extra) for row in thread.rows), key=lambda row: row.begin_ns)
    return Observations(
        threads=list(threads.values()),
        types=frozenset(types),
        rejected=dict(rejected),
        written_back=list(back.values()),
    )


def _see_written_back(batch: ProfileColumns, back: dict[tuple[str, str], WrittenBack]) -> None:
    attributes = {each.key: each for each in batch.attributes}
    if _WRITTEN_BACK not in attributes:
        return
    for row in range(len(batch)):
        group, device = (_text(attributes.get(key), row) for key in (_WRITTEN_BACK, _DEVICE))
        value = int(batch.value[row])
        if group and 0 <= value < _LONGEST_NS:
            made = back.setdefault((group, device), WrittenBack(group=group, device=device))
            made.requests += 1
            made.spent_ns += value


def _with(row: Seen, thread: ThreadSeen, extra: dict[tuple[str, int, int, int], int]) -> Seen:
    """With what the row of the other sample type of the same call says."""
    if row.type == FILE_TIME:
        size = extra.get((FILE_BYTES, thread.pid, thread.tid, row.begin_ns), -1)
        return structs.replace(row, count=1, size_bytes=size)
    if row.type == SYSCALL_TIME:
        count = extra.get((SYSCALLS, thread.pid, thread.tid, row.begin_ns), 1)
        return structs.replace(row, count=count)
    return row


def _rows(batch: ProfileColumns, rejected: Counter[str]) -> Iterator[tuple[int, str, Seen]]:
    if batch.time_unix_ns is None:
        rejected["rows_without_time"] += len(batch)
        return
    attributes = {each.key: each for each in batch.attributes}
    stacks = [frames_of(batch, stack) for stack in batch.stacks]
    kind, period = batch.sample_type.type, max(batch.period, 1)
    for row in range(len(batch)):
        if _text(attributes.get(_WRITTEN_BACK), row):
            continue  # a thread of the kernel made it, for which nobody waits
        tid = value_of(attributes.get(_THREAD_ID), row)
        if not isinstance(tid, int) or tid <= 0:
            rejected["rows_without_thread"] += 1
            continue
        value, begin_ns = int(batch.value[row]), int(batch.time_unix_ns[row])
        if not (0 <= value < _LONGEST_NS and begin_ns < _LONGEST_NS):
            rejected["values_out_of_range"] += 1
            continue
        if kind == CPU:  # the clock strikes at the end of what a sample stands for
            begin_ns -= min(value or period, begin_ns)
        yield (
            tid,
            _text(attributes.get(_THREAD_NAME), row),
            Seen(
                kind,
                begin_ns,
                value,
                stacks[batch.stack[row]] if 0 <= batch.stack[row] < len(stacks) else (),
                state=_text(attributes.get(_STATE), row),
                syscall=_text(attributes.get(_SYSCALL), row),
                file_call=_text(attributes.get(_FILE_CALL), row),
                file_name=_text(attributes.get(_FILE_NAME), row),
                span=_span(batch, row),
                call=_text(attributes.get(_OPERATION if kind == BLOCK_TIME else _CALL), row),
                device=_text(attributes.get(_DEVICE), row),
                file_path=_text(attributes.get(_FILE_PATH), row),
            ),
        )


def _text(attribute: Attribute | None, row: int) -> str:
    value = value_of(attribute, row)
    return clean(value) if isinstance(value, str) else ""


def _span(batch: ProfileColumns, row: int) -> str:
    links = batch.links
    if links is None:
        return ""
    code = links.codes[row]
    span = links.span_id[code].tobytes().hex()
    return f"{links.trace_id[code].tobytes().hex()}-{span}" if span.strip("0") else ""
