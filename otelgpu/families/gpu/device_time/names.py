"""Kernel names of activities, put together from the pieces in which a process reports them.

In: records of ``struct cuda_activity_name``. Out: mangled names with what activities call them by. Pieces of a
name come in order and are reported again in every slice; a gap leaves the name unknown until then. Bounded: a
name by the length that its record can report, names under way by :data:`UNDER_WAY`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from otelgpu.model.inputs import Records

UNDER_WAY: Final = 1024
"""Names that lack pieces, of all processes; the one begun first is given up for another."""


class ActivityNames:
    """One session's. ``counters`` grow: what could not be put together, by reason."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], bytearray] = {}
        self.counters: Counter[str] = Counter()

    def feed(self, records: Records) -> list[tuple[int, int, str]]:
        """(tgid, id, mangled name) of each name that is whole now."""
        whole = []
        for tgid, name, offset, length, text in zip(
            records["head"]["tgid"].tolist(),
            records["name"].tolist(),
            records["offset"].tolist(),
            records["length"].tolist(),
            records["text"],
            strict=True,
        ):
            key = (tgid, name)
            part = self._parts.pop(key, bytearray()) if offset else bytearray()
            if offset != len(part) or offset >= length:
                self.counters["activity_names_with_gaps"] += 1
                continue
            part += bytes(text)[: length - offset]
            if len(part) == length:
                whole.append((tgid, name, part.decode("utf-8", "backslashreplace")))
                continue
            if len(self._parts) >= UNDER_WAY:
                self._parts.pop(next(iter(self._parts)))
                self.counters["activity_names_given_up"] += 1
            self._parts[key] = part
        return whole

    def forget_process(self, tgid: int) -> None:
        """A process has ended: its number may be given out again."""
        for key in [key for key in self._parts if key[0] == tgid]:
            del self._parts[key]
