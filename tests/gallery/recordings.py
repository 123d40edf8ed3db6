"""What was recorded of a program of the gallery, as a file: rules are tried on it without running the program again.

``python -m tests.gallery.recordings FILE ARGUMENT…`` is ``otelgpu diagnose stall ARGUMENT…``, which leaves what it
judged in ``FILE``: JSON, compressed by xz. Each stack is there once, paths are ``/app/…``, and times begin at
:data:`BEGIN_NS`.
"""

from __future__ import annotations

import lzma
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from otelgpu.diagnose.stall.diagnosis import diagnose
from otelgpu.diagnose.stall.observations import Frames, Observations, Seen, ThreadSeen
from otelgpu.diagnose.stall.surroundings import Surroundings
from otelgpu.diagnose.stall.verdicts import StallReport
from otelgpu.render.frames import Frame, Kind

BEGIN_NS: Final = 1_790_000_000_000_000_000
FOLDER: Final = Path(__file__).parent / "recorded"


class Row(Struct, frozen=True, array_like=True):
    """A :class:`Seen`: its time after the beginning, and the number of its stack."""

    type: str
    begin_ns: int
    length_ns: int
    stack: int
    state: str
    syscall: str
    file_call: str
    file_name: str
    count: int
    size_bytes: int
    call: str
    device: str = ""


class Thread(Struct, frozen=True):
    """A :class:`ThreadSeen`."""

    pid: int
    program: str
    tid: int
    name: str
    rows: Sequence[Row]


class Packed(Struct, frozen=True):
    """:class:`Observations`, each frame and each stack once. ``stacks``: numbers of ``frames``, the leaf first."""

    frames: Sequence[tuple[str, str, str, int]]
    stacks: Sequence[Sequence[int]]
    threads: Sequence[Thread]
    types: Sequence[str]


class Recording(Packed, frozen=True):
    """All of one run.

    ``date``: when it was recorded; ``load``: the machine's load average of a minute then, ``cpus``: what it had.
    """

    subjects: Sequence[int]
    surroundings: Mapping[int, Surroundings] | None
    date: str
    kernel: str
    cpus: int
    load: float


def save(
    path: Path, seen: Observations, subjects: Sequence[int], around: Mapping[int, Surroundings] | None
) -> None:
    """Write a recording; what the file holds is the same for the same observations."""
    packed = pack(seen)
    made = Recording(
        packed.frames,
        packed.stacks,
        packed.threads,
        packed.types,
        sorted(subjects),
        around,
        date=datetime.now(UTC).date().isoformat(),
        kernel=platform.release().partition("-")[0],
        cpus=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
    )
    path.write_bytes(lzma.compress(msgspec.json.encode(made)))


def begin_of(seen: Observations) -> int:
    """When the first thing was seen, Unix nanoseconds: :data:`BEGIN_NS` of a recording."""
    return min((row.begin_ns for thread in seen.threads for row in thread.rows), default=0)


def pack(seen: Observations) -> Packed:
    """The same for the same observations."""
    frames: dict[tuple[str, str, str, int], int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    begin = begin_of(seen)

    def stack(of: Frames) -> int:
        plain = ((frame.kind.value, frame.name, _anywhere(frame.file), frame.line) for frame in of)
        return stacks.setdefault(tuple(frames.setdefault(each, len(frames)) for each in plain), len(stacks))

    threads = [
        Thread(
            thread.pid,
            thread.program,
            thread.tid,
            thread.name,
            [
                Row(
                    *(row.type, row.begin_ns - begin, row.length_ns, stack(row.frames), row.state),
                    *(
                        row.syscall,
                        row.file_call,
                        row.file_name,
                        row.count,
                        row.size_bytes,
                        row.call,
                        row.device,
                    ),
                )
                for row in thread.rows
            ],
        )
        for thread in seen.threads
    ]
    return Packed(list(frames), list(stacks), threads, sorted(seen.types))


def read(path: Path) -> Recording:
    """What :func:`save` wrote."""
    return msgspec.json.decode(lzma.decompress(path.read_bytes()), type=Recording)


def judge(made: Recording) -> StallReport:
    """What is said of it now."""
    return diagnose(observations(made), subjects=made.subjects, surroundings=made.surroundings)[0]


def observations(made: Packed) -> Observations:
    """As they were."""
    frames = [Frame(Kind(kind), name, file, line) for kind, name, file, line in made.frames]
    stacks = [tuple(frames[number] for number in stack) for stack in made.stacks]
    threads = [
        ThreadSeen(
            pid=thread.pid,
            program=thread.program,
            tid=thread.tid,
            name=thread.name,
            rows=[_seen(row, stacks) for row in thread.rows],
        )
        for thread in made.threads
    ]
    return Observations(threads=threads, types=frozenset(made.types), rejected={})


def _seen(row: Row, stacks: Sequence[Frames]) -> Seen:
    return Seen(
        row.type,
        BEGIN_NS + row.begin_ns,
        row.length_ns,
        stacks[row.stack],
        state=row.state,
        syscall=row.syscall,
        file_call=row.file_call,
        file_name=row.file_name,
        count=row.count,
        size_bytes=row.size_bytes,
        call=row.call,
        device=row.device,
    )


def _anywhere(path: str) -> str:
    """Without the folders of the machine that it was recorded on."""
    own, _, rest = path.rpartition("/tests/gallery/")
    if own:
        return f"/app/{rest}"
    for mark in ("/lib/python3", "/site-packages/"):
        before, _, rest = path.rpartition(mark)
        if before:
            return f"/usr{mark}{rest}" if mark.startswith("/lib") else f"/usr/lib/python3{mark}{rest}"
    name = path.rpartition("/")[2]
    if not path.startswith("/"):
        return path
    if name.startswith("python"):
        return f"/usr/bin/{name}"
    return f"/usr/lib/{name}" if ".so" in name else f"/app/{name}"


def main(path: Path, arguments: Sequence[str]) -> None:
    """The command, which keeps what it judges."""
    from otelgpu.cli import stall
    from otelgpu.cli.main import main as program

    def keep(seen: Observations, *, subjects: Any = (), surroundings: Any = None) -> Any:
        save(path, seen, list(subjects), surroundings)
        return diagnose(seen, subjects=subjects, surroundings=surroundings)

    stall.diagnose = keep
    sys.argv = ["otelgpu", "diagnose", "stall", *arguments]
    program()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
