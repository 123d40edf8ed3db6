"""Annotations of pods → of which pod a profile is taken, and which are refused. Pure, bounded, and told the time.

One value of one pod is decided once, while it stays there, as for more detail (``families/switches/switching.py``).
What was decided is kept by the caller over a new start: a profile that ended this program is not taken again.

>>> requests = Requests(Limits())
>>> asked = PodSwitch(uid="a", namespace="n", pod="p", value="30s")
>>> [(each.state, each.seconds) for each in requests.read([asked], 1000.0)]
[('began', 30.0)]
>>> requests.end(1030.0, names.OVER).reason, requests.read([asked], 1031.0)
('over', [])
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct, field

from otelgpu.families.switches import names
from otelgpu.model.switches import LONGEST_VALUE, MOST_PODS, PodSwitch

_WISH: Final = re.compile(r"([1-9][0-9]{0,3})([sm])(?: [A-Za-z0-9-]{1,32})?", re.ASCII)
LATEST_S: Final = 60.0
"""So long ago may have been written what a profile begins for: an agent that is new does not begin old ones."""


class Limits(Struct, frozen=True, kw_only=True):
    """What nobody may exceed: seconds of one, and seconds from the end of one to the next of the node."""

    longest_s: float = 60.0
    pause_s: float = 60.0


class Kept(Struct, kw_only=True):
    """What outlives this program. ``decided``: value by uid of the pod; ``current``: what is being taken."""

    decided: Annotated[
        dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=LONGEST_VALUE + 1)]],
        Meta(max_length=MOST_PODS),
    ] = field(default_factory=dict)
    current: PodSwitch | None = None
    ended_unix_s: float = 0.0


class Change(NamedTuple):
    """What became of a request. ``seconds``: 0 where none were asked for."""

    state: str
    switch: PodSwitch
    reason: str = ""
    seconds: float = 0.0


def seconds_of(value: str) -> float:
    """For how long a value asks; 0: it asks for nothing."""
    found = _WISH.fullmatch(value)
    return float(found[1]) * (60 if found[2] == "m" else 1) if found is not None else 0.0


class Requests:
    """Of one node. Times are Unix seconds."""

    def __init__(self, limits: Limits, kept: Kept | None = None) -> None:
        self._limits = limits
        self.kept = kept or Kept()
        self.is_withdrawn = False
        """Whether the annotation that the current one is for, or its pod, is gone."""

    def read(self, switches: Sequence[PodSwitch], now_s: float) -> list[Change]:
        """All annotations that there are: what begins, or is refused. The caller ends what is withdrawn."""
        kept, asked = self.kept, {each.uid: each for each in switches}
        current = kept.current
        if current is not None:
            still = asked.get(current.uid)
            self.is_withdrawn |= still is None or still.value != current.value
        kept.decided = {uid: value for uid, value in kept.decided.items() if uid in asked}
        changes = []
        for uid, switch in asked.items():
            if kept.decided.get(uid) != switch.value:
                kept.decided[uid] = switch.value
                changes.append(self._decide(switch, now_s))
        return changes

    def end(self, now_s: float, reason: str) -> Change:
        """The current one has ended."""
        ended, self.kept.current = self.kept.current, None
        if ended is None:
            raise ValueError("no profile is being taken")
        self.kept.ended_unix_s, self.is_withdrawn = now_s, False
        return Change(names.ENDED, ended, reason, seconds_of(ended.value))

    def _decide(self, switch: PodSwitch, now_s: float) -> Change:
        seconds = seconds_of(switch.value)
        reason = self._reason_against(switch, seconds, now_s)
        if reason:
            return Change(names.REFUSED, switch, reason, seconds)
        self.kept.current = switch
        return Change(names.BEGAN, switch, "", seconds)

    def _reason_against(self, switch: PodSwitch, seconds: float, now_s: float) -> str:
        if not seconds:
            return names.MALFORMED
        if seconds > self._limits.longest_s:
            return names.TOO_LONG
        if switch.written_unix_s and switch.written_unix_s + LATEST_S < now_s:
            return names.PAST
        if self.kept.current is not None:
            return names.TOO_MANY
        # A clock that was set back does not keep anybody from it for longer than a pause.
        if 0 <= now_s - self.kept.ended_unix_s < self._limits.pause_s:
            return names.TOO_SOON
        return ""
