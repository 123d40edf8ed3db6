"""A cgroup of one's own, as each container has one: who is in it can be observed, and nobody else."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.rig.llm_server import RigError

_LEAVE_TIMEOUT_S: Final = 10.0


@contextlib.contextmanager
def own_cgroup() -> Iterator[Path]:
    """An empty cgroup v2 directory, which must be empty again at the end. Raises `RigError` where none can be made."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    roots = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    if not roots:
        raise RigError("no cgroup v2 hierarchy is mounted: /proc/mounts has no cgroup2")
    folder = roots[0] / f"otelgpu-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        raise RigError(f"cannot make a cgroup: {error}") from error
    try:
        yield folder
    finally:
        remove_cgroup(folder)


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A cgroup that may have no more memory, of version 1 or 2. Raises `RigError` where none can be made."""
    legacy, root = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, file = (legacy, "memory.limit_in_bytes") if legacy.is_dir() else (root, "memory.max")
    folder = root / f"otelgpu-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        raise RigError(f"cannot make a cgroup: {error}") from error
    try:
        try:
            (folder / file).write_text(str(limit_bytes))
        except OSError as error:
            raise RigError(f"cannot limit memory of a cgroup: {error}") from error
        yield folder
    finally:
        remove_cgroup(folder)


def remove_cgroup(folder: Path) -> None:
    """Once everybody has left it. Raises OSError where somebody does not."""
    deadline = time.monotonic() + _LEAVE_TIMEOUT_S
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    folder.rmdir()


def in_cgroup(folder: Path) -> tuple[str, ...]:
    """What to write before a command that shall run in it."""
    return ("sh", "-c", 'echo $$ >"$0" && exec "$@"', str(folder / "cgroup.procs"))
