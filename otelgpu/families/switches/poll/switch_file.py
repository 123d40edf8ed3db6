"""What ``otelgpu watch-pods`` wrote: annotations of the node's pods, in a file that both have.

In: JSON as of :class:`~otelgpu.model.switches.SwitchesWritten`. Out: its switches, whenever the file is another one. It
is one ``stat`` of a file system in memory, once a second, so it is done in the agent's own loop. What is written is
not believed: no link is followed, nothing but a file of the agent's own user or of root is read, and of that
:data:`LARGEST` bytes. A file that is no longer there withdraws nothing: what was begun ends by its time.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Final

import msgspec

from otelgpu.model.inputs import Input
from otelgpu.model.losses import Reasons
from otelgpu.model.switches import SwitchesRead, SwitchesWritten

INTERVAL_NS: Final = 1_000_000_000
LARGEST: Final = 1 << 18

REASONS: Final = Reasons(
    "switches",
    {
        "file_refused": "switch files that are no files of the agent's user or of root, or are larger than 256 KiB",
        "file_malformed": "switch files that are no JSON of `otelgpu watch-pods`",
        "watch_failed": "times that `otelgpu watch-pods` could not ask the API server for the node's pods, or write: "
        "its log says why",
    },
)
"""What one count of (``switches``, reason) means, beside those of the annotations."""


class SwitchFile:
    """Looks at ``path`` once a second; without a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counters: Counter[str] = Counter()
        self._seen: tuple[int, int, int] | None = None
        self._failures = 0
        self._due_ns = 0

    @property
    def counters(self) -> Mapping[str, int]:
        """See :data:`REASONS`."""
        return self._counters

    def collect(self, now_ns: int, users: Set[int] = frozenset()) -> Sequence[Input]:
        """All annotations, if the file has changed."""
        if now_ns < self._due_ns:
            return ()
        self._due_ns = now_ns + INTERVAL_NS
        content = self._read()
        if content is None:
            return ()
        try:
            written = msgspec.json.decode(content, type=SwitchesWritten)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # no JSON, or another document
            self._counters["file_malformed"] += 1
            return ()
        if written.failures < self._failures:
            self._failures = 0  # it has begun anew
        if written.failures > self._failures:
            self._counters["watch_failed"] += written.failures - self._failures
            self._failures = written.failures
        return [] if written.switches is None else [SwitchesRead(switches=written.switches)]

    def stop(self) -> None:
        """There is no thread."""

    def _read(self) -> bytes | None:
        """None: it is as it was, is not there, or is refused."""
        try:
            found = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._seen = None
            return None
        except OSError:
            self._counters["file_refused"] += self._seen != (0, 0, 0)
            self._seen = 0, 0, 0
            return None
        try:
            state = os.fstat(found)
            seen = state.st_ino, state.st_mtime_ns, state.st_size
            if seen == self._seen:
                return None
            self._seen = seen
            is_ours = stat.S_ISREG(state.st_mode) and state.st_uid in (0, os.geteuid())
            if is_ours and state.st_size <= LARGEST:
                return os.read(found, LARGEST)
        except OSError:
            pass
        finally:
            os.close(found)
        self._counters["file_refused"] += 1
        return None
