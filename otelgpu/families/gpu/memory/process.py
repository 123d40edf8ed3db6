"""What one process holds: its allocations by address and by handle, summed by device, kind and call site.

In: calls that succeeded, with the time of their effect, in this order but for frees that are reported late. Out:
:class:`Account` and :class:`Site`, whose numbers are true at any time. Pure; see otelgpu/families/gpu/memory/ledger.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from otelgpu.engine.contract import ContextStep
from otelgpu.families.gpu.memory.contexts import PRIMARY, Contexts
from otelgpu.families.gpu.memory.mappings import AddressSpace, Physical
from otelgpu.model.operations import DEVICE_MEMORY, DEVICE_UNKNOWN, LARGEST_SIZE, Memory

SITES: Final = 4_096
"""Call sites of one process that are distinguished."""

PIECES: Final = 1 << 16
"""Handles and mapped ranges of physical memory of one process."""

_LARGEST_DEVICE: Final = 255
_UNKNOWN_SITE: Final = 0
_UNKNOWN_MEMORY: Final = int(Memory.NONE)
_ADDRESSES, _REGISTERED, _HANDLES = range(3)  # numbers that mean different things
_MEMORY: Final = frozenset(map(int, Memory))
_ADDRESS: Final = int(Memory.ADDRESS)
_PHYSICAL: Final = int(Memory.PHYSICAL)
_OWN: Final = int(Memory.REGISTERED)
_IMPORTED: Final = int(Memory.IMPORTED)
# A held allocation is one number, for there may be many: when, how many bytes, index of its site.
_SITE_BITS: Final = 16
_SIZE_BITS: Final = 64
_TIME_SHIFT: Final = _SIZE_BITS + _SITE_BITS
_SITE_MASK: Final = (1 << _SITE_BITS) - 1
_SIZE_MASK: Final = (1 << _SIZE_BITS) - 1


class Account(Struct, kw_only=True):
    """What a process has of one kind of memory on one device. Sizes in bytes; sums since it was first seen."""

    device: int  # DEVICE_UNKNOWN when nobody reported
    memory: int  # Memory
    family: int = 0  # whose calls made it: position in the session
    live_bytes: int = 0
    live_allocations: int = 0
    peak_bytes: int = 0
    allocated_bytes: int = 0
    allocations: int = 0
    freed_bytes: int = 0
    frees: int = 0
    failures: int = 0
    requested_bytes: int = 0  # asked for in calls whose return was not probed: not known to be held


class Site(Struct, kw_only=True):
    """What was allocated alike: by one place in the code, in one account and context, under one stack."""

    index: int
    account: Account
    caller: int  # return address of the allocating call; 0 when unknown
    context: int
    stack: int = 0  # number of the stack that it was allocated under; 0 where stacks are not taken
    live_bytes: int = 0
    live_allocations: int = 0
    allocated: int = 0  # bytes in this window
    freed: bool = False  # anything in this window
    growing_windows: int = 0
    grown_bytes: int = 0  # in those windows


class AllocationSite(NamedTuple):
    """What calls report of where they allocate."""

    device: int
    memory: int
    caller: int
    stack: int = 0
    family: int = 0


class ProcessMemory:
    """One process. ``counters`` are the ledger's; at most ``limit`` allocations are followed."""

    def __init__(self, tgid: int, counters: Counter[str], limit: int) -> None:
        self.tgid = tgid
        self.accounts: dict[tuple[int, int, int], Account] = {}
        self.sites: list[Site] = []
        self._counters = counters
        self._limit = limit
        self._site_of: dict[tuple[int, int, int, int, int, int], Site] = {}
        self._held: tuple[dict[int, int], dict[int, int]] = (
            {},
            {},
        )  # by address; the program's own, registered
        self._space = AddressSpace()
        self._contexts = Contexts()
        self._owed: dict[tuple[int, int], tuple[int, int]] = {}  # meaning, number → frees to come, since when

    def held_by_stack(self) -> dict[tuple[int, int, int, int], tuple[int, int]]:
        """(stack, device, kind of memory, family) → bytes and allocations that are held now, where there are any."""
        held: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        for site in self.sites:
            if site.live_allocations:
                key = site.stack, site.account.device, site.account.memory, site.account.family
                size, count = held.get(key, (0, 0))
                held[key] = size + site.live_bytes, count + site.live_allocations
        return held

    def held_of(self, device: int) -> int:
        """Bytes of a device's memory that are held now."""
        return sum(
            account.live_bytes
            for account in self.accounts.values()
            if account.device == device and account.memory in DEVICE_MEMORY
        )

    # -- calls ------------------------------------------------------------------------------------

    def account(self, device: int, memory: int, family: int = 0) -> Account:
        """The account of one kind of memory on one device, of one family's calls."""
        device = device if 0 <= device <= _LARGEST_DEVICE else DEVICE_UNKNOWN
        memory = memory if memory in _MEMORY else _UNKNOWN_MEMORY
        found = self.accounts.get((device, memory, family))
        if found is None:
            found = Account(device=device, memory=memory, family=family)
            self.accounts[device, memory, family] = found
        return found

    def allocate(
        self,
        time_ns: int,
        tid: int,
        device: int,
        memory: int,
        number: int,
        size: int,
        caller: int,
        stack: int = 0,
        family: int = 0,
    ) -> None:
        """An allocation was given address or handle ``number``."""
        if memory == _ADDRESS:
            return  # nothing lies behind it
        if size > LARGEST_SIZE:
            self._counters["size_absurd"] += 1
            return
        context, device = self._contexts.place(tid, device)
        site = self._site_of.get((device, memory, caller, context, stack, family)) or self._site(
            device, memory, caller, context, stack, family
        )
        site.account.allocations += 1
        if memory == _PHYSICAL:
            self._create(time_ns, number, size, site)
            return
        if not number:
            return  # of no bytes
        meaning = _REGISTERED if memory == _OWN else _ADDRESSES
        table = self._held[meaning]
        before = table.get(number)
        if before is not None:
            if time_ns < before >> _TIME_SHIFT:  # its address has been given on meanwhile
                self._pass_through(site, size)
                return
            self._free(before)
            self._owe(meaning, number, time_ns)
        elif len(table) >= self._limit:
            self._counters["allocation_not_kept"] += 1
            return
        table[number] = (time_ns << _TIME_SHIFT) | (size << _SITE_BITS) | site.index
        self._hold(site, size)

    def free(self, time_ns: int, memory: int, number: int) -> None:
        """What was allocated at ``number`` by ``time_ns`` is free, whatever kind the freeing function names."""
        if not number or memory == _ADDRESS:
            return
        if memory == _PHYSICAL and not self._is_import(number):
            self._release(time_ns, number)
            return
        meaning = _REGISTERED if memory == _OWN else _ADDRESSES
        table = self._held[meaning]
        held = table.get(number)
        if held is not None and held >> _TIME_SHIFT <= time_ns:
            del table[number]
            self._free(held)
        elif not self._pay(meaning, number):
            self._counters["free_unknown"] += 1

    @property
    def has_contexts(self) -> bool:
        """Whether a thread works in a context other than the primary one."""
        return self._contexts.are_chosen

    def exchange(
        self,
        times: Sequence[int],
        places: Sequence[int],
        numbers: Sequence[int],
        sizes: Sequence[int],
        table: Sequence[AllocationSite],
    ) -> None:
        """What :meth:`allocate` and :meth:`free` do, for many calls in order at a quarter of the price.

        ``places`` index ``table``; -1 is a free. Only for memory that goes by its address, numbers other than 0
        and sizes of at most LARGEST_SIZE, and while no thread has chosen a context.
        """
        held, sites = self._held[_ADDRESSES], self.sites
        known: dict[int, Site] = {}
        for time_ns, place, number, size in zip(times, places, numbers, sizes, strict=True):
            before = held.get(number)
            if place >= 0 and before is None and len(held) < self._limit:
                site = known.get(place)
                if site is None:
                    device, memory, caller, stack, family = table[place]
                    site = self._site(device, memory, caller, PRIMARY, stack, family)
                    if (site.caller, site.stack) == (
                        caller,
                        stack,
                    ):  # else there is no room for more sites: each is counted
                        known[place] = site
                held[number] = (time_ns << _TIME_SHIFT) | (size << _SITE_BITS) | site.index
                account = site.account
                site.allocated += size
                site.live_bytes += size
                site.live_allocations += 1
                account.allocations += 1
                account.allocated_bytes += size
                account.live_allocations += 1
                live_bytes = account.live_bytes = account.live_bytes + size
                if live_bytes > account.peak_bytes:
                    account.peak_bytes = live_bytes
            elif place >= 0:
                device, memory, caller, stack, family = table[place]
                self.allocate(time_ns, 0, device, memory, number, size, caller, stack, family)
            elif before is not None and before >> _TIME_SHIFT <= time_ns:
                del held[number]
                site = sites[before & _SITE_MASK]
                account = site.account
                freed = (before >> _SITE_BITS) & _SIZE_MASK
                site.freed = True
                site.live_bytes -= freed
                site.live_allocations -= 1
                account.live_bytes -= freed
                account.live_allocations -= 1
                account.freed_bytes += freed
                account.frees += 1
            elif not self._pay(_ADDRESSES, number):
                self._counters["free_unknown"] += 1

    def retain(self, time_ns: int, handle: int, address: int) -> None:
        """One more reference to the physical memory that is mapped at ``address``, by ``handle``."""
        before, memory = self._space.handles.get(handle), self._space.at(address)
        if before is not None and memory is not None and before is not memory:
            self._forget(handle, time_ns)
        if not self._space.retain(handle, address, time_ns):
            self._counters["handle_unknown"] += 1

    def map(self, time_ns: int, address: int, size: int, handle: int) -> None:
        """Physical memory is mapped at ``address``, or with no ``handle`` no longer."""
        if size > LARGEST_SIZE:
            self._counters["size_absurd"] += 1
        elif not handle:
            self._end(self._space.unmap(address, size, time_ns))
        elif len(self._space) >= PIECES:
            self._counters["allocation_not_kept"] += 1
        else:
            ended, known = self._space.map(address, size, handle, time_ns)
            self._end(ended)
            if not known and not self._is_import(handle):
                self._counters["handle_unknown"] += 1

    def keep(self, device: int) -> None:
        """The runtime uses the primary context of a device, and holds on to it."""
        self._contexts.keep(device)

    def step(self, step: ContextStep, time_ns: int, tid: int, device: int, handle: int, other: int) -> None:
        """Something happened to a context or to a thread's choice of one."""
        match step:
            case ContextStep.RETAIN_DEVICE:
                self._contexts.retain(handle, other)
            case ContextStep.RELEASE_DEVICE:
                if self._contexts.release(other):
                    self._end_context(PRIMARY, other, time_ns)
            case ContextStep.RESET_DEVICE:
                self._reset(other, time_ns)
            case ContextStep.RESET_CURRENT:
                self._reset(self._contexts.place(tid, device)[1], time_ns)
            case ContextStep.DESTROY:
                if not self._contexts.is_known(handle):
                    self._counters["context_unknown"] += 1
                self._contexts.step(step, tid, handle)
                self._end_context(handle, None, time_ns)
            case _:
                self._contexts.step(step, tid, handle)
                if step is ContextStep.CREATE:
                    self._contexts.learn(handle, other)

    # -- time -------------------------------------------------------------------------------------

    def end(self) -> None:
        """The process ended: it holds nothing any more."""
        for account in self.accounts.values():
            account.live_bytes = account.live_allocations = 0
        for site in self.sites:
            site.live_bytes = site.live_allocations = site.growing_windows = site.grown_bytes = 0
        self._counters["free_missed"] += self.expire(1 << 64)

    def close_window(self) -> None:
        """Count the windows in which a site allocated and freed nothing."""
        for site in self.sites:
            if site.allocated and not site.freed:
                site.growing_windows += 1
                site.grown_bytes += site.allocated
            else:
                site.growing_windows = site.grown_bytes = 0
            site.allocated, site.freed = 0, False

    def expire(self, before_ns: int) -> int:
        """How many frees were owed since before then: their records are not to come."""
        overdue = [key for key, (_, since_ns) in self._owed.items() if since_ns < before_ns]
        return sum(self._owed.pop(key)[0] for key in overdue)

    # -- sums -------------------------------------------------------------------------------------

    def _site(self, device: int, memory: int, caller: int, context: int, stack: int, family: int) -> Site:
        account = self.account(device, memory, family)
        key = (account.device, account.memory, caller, context, stack, family)
        site = self._site_of.get(key)
        if site is None:
            if len(self.sites) >= SITES and (caller or context or stack):
                self._counters["site_not_kept"] += 1
                return self._site(account.device, account.memory, _UNKNOWN_SITE, PRIMARY, 0, family)
            site = Site(index=len(self.sites), account=account, caller=caller, context=context, stack=stack)
            self.sites.append(site)
            self._site_of[key] = site
        return site

    def _hold(self, site: Site, size: int) -> None:
        account = site.account
        site.allocated += size
        site.live_bytes += size
        site.live_allocations += 1
        account.allocated_bytes += size
        account.live_allocations += 1
        account.live_bytes += size
        if account.live_bytes > account.peak_bytes:
            account.peak_bytes = account.live_bytes

    def _let_go(self, site: Site, size: int) -> None:
        account = site.account
        site.freed = True
        site.live_bytes -= size
        site.live_allocations -= 1
        account.live_bytes -= size
        account.live_allocations -= 1
        account.freed_bytes += size
        account.frees += 1

    def _pass_through(self, site: Site, size: int) -> None:
        """It was allocated and has been freed."""
        site.account.allocated_bytes += size
        site.account.freed_bytes += size
        site.account.frees += 1

    def _site_of_held(self, held: int) -> Site:
        return self.sites[held & _SITE_MASK]

    def _free(self, held: int) -> None:
        self._let_go(self._site_of_held(held), (held >> _SITE_BITS) & _SIZE_MASK)

    def _owe(self, meaning: int, number: int, time_ns: int) -> None:
        if len(self._owed) >= self._limit:
            self._counters["free_missed"] += 1
            return
        frees, _ = self._owed.get((meaning, number), (0, 0))
        self._owed[meaning, number] = frees + 1, time_ns

    def _pay(self, meaning: int, number: int) -> bool:
        frees, since_ns = self._owed.pop((meaning, number), (0, 0))
        if frees > 1:
            self._owed[meaning, number] = frees - 1, since_ns
        return frees > 0

    def _is_import(self, handle: int) -> bool:
        """Whether a handle of physical memory is another process's."""
        held = self._held[_ADDRESSES].get(handle)
        if held is None or handle in self._space.handles:
            return False
        return self._site_of_held(held).account.memory == _IMPORTED

    # -- physical memory --------------------------------------------------------------------------

    def _create(self, time_ns: int, handle: int, size: int, site: Site) -> None:
        before = self._space.handles.get(handle)
        if before is not None:
            if time_ns < before.handles[handle].since_ns:
                self._pass_through(site, size)
                return
            self._forget(handle, time_ns)
        elif len(self._space) >= PIECES:
            self._counters["allocation_not_kept"] += 1
            return
        self._space.create(handle, Physical(size=size, origin=site.index), time_ns)
        self._hold(site, size)

    def _forget(self, handle: int, time_ns: int) -> None:
        """The number was given to another allocation: its releases are still to be reported."""
        ended, references = self._space.forget(handle)
        self._end(ended)
        for _ in range(references):
            self._owe(_HANDLES, handle, time_ns)

    def _release(self, time_ns: int, handle: int) -> None:
        memory = self._space.handles.get(handle)
        if memory is not None and memory.handles[handle].since_ns <= time_ns:
            self._end(self._space.release(handle))
        elif not self._pay(_HANDLES, handle):
            self._counters["free_unknown"] += 1

    def _end(self, ended: Collection[Physical]) -> None:
        for memory in ended:
            self._let_go(self.sites[memory.origin], memory.size)

    # -- contexts ---------------------------------------------------------------------------------

    def _reset(self, device: int, time_ns: int) -> None:
        self._contexts.reset(device)
        self._end_context(PRIMARY, device, time_ns)

    def _end_context(self, context: int, device: int | None, time_ns: int) -> None:
        """Free what a context held by then; ``device`` says whose, of a primary one."""
        ending = {
            site.index
            for site in self.sites
            if site.live_allocations and site.context == context and device in (None, site.account.device)
        }
        if not ending:
            return
        for table in self._held:
            there = [number for number, held in table.items() if held & _SITE_MASK in ending]
            for number in there:
                if table[number] >> _TIME_SHIFT <= time_ns:
                    self._free(table.pop(number))
