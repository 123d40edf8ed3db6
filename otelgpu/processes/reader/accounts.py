"""Who pays for reading what observed processes wrote: a share of a processor for each owner, with some in advance.

Of a worker's time, and of this program's own where it reads itself. Who has spent it is refused until it has filled
again, which others do not notice.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from otelgpu.kernel.clock import working_time

Owner = tuple[str, int]
"""Whom reading is charged to: cgroup path and user id."""

NOBODYS: Final[Owner] = ("", 0)
"""Of what is this program's own, or of nobody that can be told: never refused, and bounded by time all the same."""

HOSTS: Final[Owner] = ("/", -2)
"""Of root's programs at the root of all cgroups that this program sees: the host's, in no container. Likewise."""

GONES: Final[Owner] = ("", -1)
"""Who pays for what processes left behind that have ended."""

_ROOT: Final = frozenset("/")
_KEPT_OWNERS: Final = 4096
_OWNER_S: Final = 1.0


def owner_of(tgid: int, *, proc: Path = Path("/proc")) -> Owner:
    """Whom reading what process ``tgid`` has is charged to; :data:`NOBODYS` when it is gone.

    A cgroup is the first that is listed. That of a container may be the root in some hierarchies, never in all.
    """
    folder = f"{proc}/{tgid}"
    try:
        user = os.stat(folder).st_uid
        with open(f"{folder}/cgroup", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return NOBODYS
    paths = [line.rpartition(":")[2] for line in lines]
    if user == 0 and set(paths) == _ROOT:
        return HOSTS
    return next(iter(paths), ""), user


class Owners:
    """Whose processes are, asked at most once a second for each; :data:`GONES` where one has ended."""

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, tuple[float, Owner]] = {}
        self._next_s = 0.0  # when those that hold no longer are forgotten

    def of(self, tgid: int) -> Owner:
        """Who pays for process ``tgid`` now."""
        now_s = time.monotonic()
        until_s, owner = self._known.get(tgid, (0.0, GONES))
        if now_s > until_s:
            found = owner_of(tgid, proc=self._proc)
            owner = GONES if found == NOBODYS else found
            if len(self._known) >= _KEPT_OWNERS:
                self._known.clear()
            elif now_s >= self._next_s:
                self._next_s = now_s + _OWNER_S
                self._known = {each: known for each, known in self._known.items() if known[0] >= now_s}
            self._known[tgid] = now_s + _OWNER_S, owner
        return owner


class Account:
    """A token bucket of seconds."""

    __slots__ = ("_advance_s", "_is_free", "_left_s", "_share", "_since_s")

    def __init__(self, *, share: float, advance_s: float, is_free: bool = False) -> None:
        self._share, self._advance_s, self._is_free = share, advance_s, is_free
        self._left_s = advance_s
        self._since_s = time.monotonic()

    def is_spent(self) -> bool:
        """Whether nothing is left now."""
        now_s = time.monotonic()
        self._left_s = min(self._left_s + (now_s - self._since_s) * self._share, self._advance_s)
        self._since_s = now_s
        return self._left_s <= 0 and not self._is_free

    def spend(self, seconds: float) -> None:
        """So much was taken; no debt is more than what there was in advance."""
        self._left_s = max(self._left_s - seconds, -self._advance_s)

    def stop(self, seconds: float) -> None:
        """Nothing is left for so long, at least."""
        self._left_s = min(self._left_s, 0.0)
        self.spend(seconds * self._share)


class Accounts:
    """Those of all owners; of who was not seen for longest, when there are too many, nothing is known.

    ``share``: of a processor that an owner may take in the long run; ``advance_s``: what it has at first.
    """

    def __init__(self, *, share: float, advance_s: float) -> None:
        self._share, self._advance_s = share, advance_s
        self._known: OrderedDict[Owner, Account] = OrderedDict()

    def of(self, owner: Owner) -> Account:
        """Its account, full at first."""
        account = self._known.get(owner)
        if account is None:
            account = Account(share=self._share, advance_s=self._advance_s, is_free=owner in (NOBODYS, HOSTS))
            self._known[owner] = account
            if len(self._known) > _KEPT_OWNERS:
                self._known.popitem(last=False)
        self._known.move_to_end(owner)
        return account

    @contextmanager
    def charged(self, owner: Owner, free_s: float = 0.0) -> Iterator[None]:
        """What this thread computes within is the owner's, beyond ``free_s``."""
        working = working_time()
        began_ns = working()
        try:
            yield
        finally:
            taken_s = (working() - began_ns) / 1e9 - free_s
            if taken_s > 0:
                self.of(owner).spend(taken_s)


class Turn:
    """One round in which several owners are served: how long each has kept the others waiting in it.

    Before the first one nobody waits: what runs when observation begins is looked at as a whole.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._has_begun = False
        self._taken_s: dict[Owner, float] = {}

    def begin(self) -> None:
        """The next round."""
        self._has_begun = True
        self._taken_s.clear()

    def is_over(self, owner: Owner) -> bool:
        """Whether it has to wait for the next round."""
        return self._has_begun and self._taken_s.get(owner, 0.0) >= self._most_s

    @contextmanager
    def kept(self, owner: Owner) -> Iterator[None]:
        """Everybody waits for this owner, within."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._taken_s[owner] = self._taken_s.get(owner, 0.0) + time.monotonic() - began_s
