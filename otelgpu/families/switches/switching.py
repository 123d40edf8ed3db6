"""Annotations of pods → for which pods more detail is reported, until when. Pure, bounded, and told the time.

One value of one pod is decided once, while it stays there: what was refused or is over begins by another value, a word
behind it say (``all 5m again``). One that was written before the agent began has what is left of its time.

>>> switching = Switching(Limits(), "ops")
>>> asked = PodSwitch(uid="a", namespace="n", pod="p", value="all 5m")
>>> [(each.state, each.reason) for each in switching.read([asked], 1000.0)]
[('began', '')]
>>> [(each.state, each.reason) for each in switching.turn(1301.0)], switching.read([asked], 1302.0)
([('ended', 'over')], [])
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from otelgpu.engine.attribution.unattributed import GRACE_NS, WINDOW_NS
from otelgpu.families.switches import names
from otelgpu.model.settings import Detail
from otelgpu.model.switches import PodSwitch

_WISH: Final = re.compile(r"(ops|all) ([1-9][0-9]{0,4})([sm])(?: [A-Za-z0-9-]{1,32})?", re.ASCII)
SETTLE_S: Final = (WINDOW_NS + GRACE_NS) / 1e9 + 1
"""A window of work outside of requests, what it waits for those who are late, and a turn of the agent."""
_MORE: Final[dict[str, int]] = {"phases": 0, "ops": 1, "all": 2}


class Limits(Struct, frozen=True, kw_only=True):
    """What nobody may exceed: seconds of one, pods at once on a node, seconds between two of a pod."""

    longest_s: float = 600.0
    at_once: int = 2
    pause_s: float = 60.0


class Wish(NamedTuple):
    """What a value asks for."""

    detail: Detail
    seconds: float


class Change(NamedTuple):
    """What became of a switch."""

    state: str
    switch: PodSwitch
    reason: str = ""
    wish: Wish | None = None


class _Active(NamedTuple):
    switch: PodSwitch
    wish: Wish
    ends_s: float


def wish_of(value: str) -> Wish | None:
    """None: it is none."""
    found = _WISH.fullmatch(value)
    if found is None:
        return None
    seconds = float(found[2]) * (60 if found[3] == "m" else 1)
    return Wish("all" if found[1] == "all" else "ops", seconds)


def is_more(detail: Detail, than: Detail) -> bool:
    """Whether it reports more."""
    return _MORE[detail] > _MORE[than]


class Switching:
    """Of one node. ``usual``: what all pods have. Times are Unix seconds."""

    def __init__(self, limits: Limits, usual: Detail) -> None:
        self.limits, self.usual = limits, usual
        self._active: dict[str, _Active] = {}
        self._decided: dict[str, str] = {}  # value by pod
        self._began: dict[str, float] = {}
        self._settling: dict[str, tuple[Detail, float]] = {}  # until when, by pod

    @property
    def active(self) -> frozenset[str]:
        """Pods of which a switch has begun and not ended."""
        return frozenset(self._active)

    def raised(self, now_s: float) -> dict[str, Detail]:
        """By the uid of the pod; never less than what all have, which may have changed meanwhile.

        For :data:`SETTLE_S` after its end, too: calls that were made before it are reported when their window is over.
        """
        self._settling = {uid: each for uid, each in self._settling.items() if now_s < each[1]}
        wanted = {uid: detail for uid, (detail, _) in self._settling.items()}
        wanted |= {uid: each.wish.detail for uid, each in self._active.items()}
        return {uid: detail for uid, detail in wanted.items() if is_more(detail, self.usual)}

    def read(self, switches: Sequence[PodSwitch], now_s: float) -> list[Change]:
        """All annotations that there are: what begins, is refused, or ended because its own is gone."""
        asked = {each.uid: each for each in switches}
        changes = self.turn(now_s)
        for uid, active in list(self._active.items()):
            if uid not in asked or asked[uid].value != active.switch.value:
                changes.append(self._end(uid, names.WITHDRAWN, now_s))
        self._decided = {uid: value for uid, value in self._decided.items() if uid in asked}
        self._began = {uid: at_s for uid, at_s in self._began.items() if now_s < at_s + self.limits.pause_s}
        for uid, switch in asked.items():
            if self._decided.get(uid) != switch.value:
                self._decided[uid] = switch.value
                changes.append(self._decide(switch, now_s))
        return changes

    def turn(self, now_s: float) -> list[Change]:
        """Those that are over."""
        over = [uid for uid, each in self._active.items() if each.ends_s <= now_s]
        return [self._end(uid, names.OVER, now_s) for uid in over]

    def close(self, now_s: float) -> list[Change]:
        """The agent ends."""
        return [self._end(uid, names.AGENT_ENDED, now_s) for uid in list(self._active)]

    def _end(self, uid: str, reason: str, now_s: float) -> Change:
        active = self._active.pop(uid)
        self._settling[uid] = active.wish.detail, min(now_s, active.ends_s) + SETTLE_S
        return Change(names.ENDED, active.switch, reason, active.wish)

    def _decide(self, switch: PodSwitch, now_s: float) -> Change:
        wish = wish_of(switch.value)
        if wish is None:
            return Change(names.REFUSED, switch, names.MALFORMED)
        begin_s = min(switch.written_unix_s or now_s, now_s)  # a clock ahead of ours has written it just now
        reason = self._reason_against(wish, switch.uid, begin_s, now_s)
        if reason:
            return Change(names.REFUSED, switch, reason, wish)
        self._began[switch.uid] = now_s
        self._active[switch.uid] = _Active(switch, wish, begin_s + wish.seconds)
        return Change(names.BEGAN, switch, "", wish)

    def _reason_against(self, wish: Wish, uid: str, begin_s: float, now_s: float) -> str:
        if wish.seconds > self.limits.longest_s:
            return names.TOO_LONG
        if begin_s + wish.seconds <= now_s:
            return names.PAST
        if not is_more(wish.detail, self.usual):
            return names.NOT_MORE
        if uid in self._began:
            return names.TOO_SOON
        if len(self._active) >= self.limits.at_once:
            return names.TOO_MANY
        return ""
