"""What each process and each container may take of something that all share: bytes, time, series. Pure.

In: who takes how much, and gives it back. Out: whether he may. A process may hold as much as is still free, and a
container twice as much (Choudhury and Hahne, Dynamic Queue Length Thresholds, 1998, with factors of 1 and 2): a bound
that nobody need configure. A process that holds little may have it also where others of its container took its share.

Invariants: what is held is never below zero, nor above the capacity in all but by :meth:`Share.charge`; a process alone
holds half at most, all of one container two thirds, with those that hold little four fifths: the rest is for others.

>>> pool = Pool(30)
>>> flood, victim = pool.share_of(1, 10), pool.share_of(2, 20)
>>> [flood.reserve(10), flood.reserve(10), flood.reserve(5), victim.reserve(7)]
[True, False, True, True]
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from otelgpu.model.process_numbers import process_id

OF_CONTAINER: Final = 2
"""How often what is free a container may hold; a process once."""
WITH_LITTLE: Final = 4
"""The same, for processes that hold little."""
LITTLE: Final = 64
"""Little is this part of the whole."""
MOST_OWNERS: Final = 256
"""Of those that were refused, remembered until they are reported."""
REPORT_EVERY_NS: Final = 60_000_000_000

_Key = TypeVar("_Key")


class _Account:
    """What one has."""

    __slots__ = ("__weakref__", "held")

    def __init__(self) -> None:
        self.held = 0


class Headroom:
    """What part of a capacity there is now, ``capacity >> steps``: the whole, or less while memory is short."""

    MOST_STEPS: Final = 4
    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


class Pool:
    """``capacity`` of something, for all. Shares last as long as somebody has them.

    ``floor``: what a process and its container may have even where others took more than there was. ``headroom``: how
    much of the capacity there is now; with less, more may be held than there is until it is given back.
    """

    def __init__(self, capacity: int, *, floor: int = 0, headroom: Headroom | None = None) -> None:
        self._capacity, self._headroom = capacity, headroom or Headroom()
        self.held = 0
        self.little = capacity // LITTLE
        self.floor = floor
        self._containers: WeakValueDictionary[int | str, _Account] = WeakValueDictionary()
        self._shares: WeakValueDictionary[int, Share] = WeakValueDictionary()

    @property
    def free(self) -> int:
        """What nobody holds; below zero: more is held than there is."""
        return (self._capacity >> self._headroom.steps) - self.held

    def most_first(self) -> list[Share]:
        """The shares of processes, those with most first."""
        return sorted(self._shares.values(), key=lambda share: share.held, reverse=True)

    def held_by(self, process: int) -> int:
        """How much a process holds."""
        share = self._shares.get(process)
        return share.held if share is not None else 0

    def share_of(self, process: int, container: int | str) -> Share:
        """That of a process; its container is the one that it was seen in first."""
        share = self._shares.get(process)
        if share is None:
            share = self._shares[process] = self.new_share(process, container)
        return share

    def new_share(self, process: int, container: int | str) -> Share:
        """One more of a process: what its container may hold is the same."""
        account = self._containers.get(container)
        if account is None:
            account = self._containers[container] = _Account()
        return Share(self, account, process, container)


class Share:
    """What a process may have of a pool. ``container`` is its cgroup, by number or in words."""

    __slots__ = ("__weakref__", "_account", "_pool", "container", "held", "process")

    def __init__(self, pool: Pool, account: _Account, process: int, container: int | str) -> None:
        self.process, self.container = process, container
        self.held = 0
        self._pool, self._account = pool, account

    def reserve(self, size: int) -> bool:
        """Take ``size``; False where that is more than the share of the process, or of its container."""
        left, own, of_container = self._pool.free - size, self.held + size, self._account.held + size
        if (own > left or of_container > OF_CONTAINER * left) and (
            own > self._pool.little or of_container > WITH_LITTLE * left
        ):
            return False
        self.charge(size)
        return True

    def release(self, size: int) -> None:
        """Give back what was reserved or charged."""
        self.charge(-size)

    def charge(self, size: int) -> None:
        """Take ``size``, asked or not."""
        self.held += size
        self._account.held += size
        self._pool.held += size

    @property
    def left(self) -> int:
        """How much the process may take now, if nobody else takes anything meanwhile; below zero: it has too much."""
        pool, held, of_container = self._pool, self.held, self._account.held
        free = pool.free
        usual = min((free - held) // 2, (OF_CONTAINER * free - of_container) // (OF_CONTAINER + 1))
        if usual >= pool.little:
            return usual
        little = min(pool.little - held, (WITH_LITTLE * free - of_container) // (WITH_LITTLE + 1))
        return max(usual, little, pool.floor - of_container)


class Remembered(Generic[_Key]):
    """Keys of things that ended: the latest, ``capacity`` of all owners together; who has most loses his own oldest.

    An owner is a container: a cgroup, or in words.

    >>> ended = Remembered(3)
    >>> [ended.add(7, "a"), ended.add(8, "b"), ended.add(7, "c"), ended.add(7, "d"), ended.add(7, "e")]
    [None, None, None, 'a', 'c']
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys: set[_Key] = set()
        self._of_owner: dict[int | str, deque[_Key]] = {}  # oldest first
        self._by_count: dict[int, dict[int | str, None]] = {}  # how many keys → owners with so many
        self._most = 0

    def __contains__(self, key: _Key) -> bool:
        return key in self._keys

    def add(self, owner: int | str, key: _Key) -> _Key | None:
        """Remember a key, where it is not yet; what was forgotten for it."""
        if key in self._keys:
            return None
        keys = self._of_owner.get(owner)
        is_full = len(self._keys) >= self._capacity
        if is_full and keys and len(keys) == self._most:  # he loses his oldest, and still has most
            self._keys.add(key)
            keys.append(key)
            with_most = self._by_count[self._most]
            if len(with_most) > 1:
                with_most[owner] = with_most.pop(owner)  # the last of those with so many
            oldest = keys.popleft()
            self._keys.discard(oldest)
            return oldest
        forgotten = self._forget_one(owner) if is_full else None
        self._keys.add(key)
        keys = self._of_owner.setdefault(owner, deque())
        keys.append(key)
        self._recount(owner, len(keys) - 1, len(keys))
        self._most = max(self._most, len(keys))
        return forgotten

    def _forget_one(self, for_owner: int | str) -> _Key:
        with_most = self._by_count[self._most]
        owner = for_owner if for_owner in with_most else next(iter(with_most))
        keys = self._of_owner[owner]
        key = keys.popleft()
        self._keys.discard(key)
        self._recount(owner, len(keys) + 1, len(keys))
        if self._most not in self._by_count:
            self._most -= 1  # the owner that has lost one has so many, or none is left
        if not keys:
            del self._of_owner[owner]
        return key

    def _recount(self, owner: int | str, before: int, now: int) -> None:
        if before:
            del self._by_count[before][owner]
            if not self._by_count[before]:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, {})[owner] = None


class Owner(NamedTuple):
    """Whose share it is. ``container``: a cgroup, by number or in words. 0, "": not known, or all of the other."""

    process: int
    container: int | str


class Refusals:
    """Who was refused since that was reported, of at most :data:`MOST_OWNERS`."""

    def __init__(self) -> None:
        self._counts: Counter[Owner] = Counter()
        self._next_ns = 0

    def add(self, process: int, container: int | str, count: int = 1) -> None:
        """Somebody wanted more than his share."""
        owner = Owner(process, container)
        if owner in self._counts or len(self._counts) < MOST_OWNERS:
            self._counts[owner] += count

    def due(self, now_ns: int) -> Sequence[tuple[Owner, int]]:
        """Who was, and how often, the worst first; nobody where the last report was less than a minute ago."""
        if not self._counts or now_ns < self._next_ns:
            return ()
        self._next_ns = now_ns + REPORT_EVERY_NS
        found, self._counts = self._counts.most_common(), Counter()
        return found


def described(refused: Sequence[tuple[Owner, int]]) -> str:
    """The worst of them, for a line of the log."""
    (process, container), _ = refused[0]
    others = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    named = [f"process {process_id(process)}"] if process else []
    named += [f"cgroup {container}" if isinstance(container, int) else container] if container else []
    return " of ".join(named) + others
