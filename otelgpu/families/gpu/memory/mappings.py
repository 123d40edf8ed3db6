"""Physical memory of the virtual-memory API: it lives until its handles are released and it is mapped nowhere.

In: cuMemCreate, cuMemRetainAllocationHandle, cuMemRelease, cuMemMap and cuMemUnmap of one process, in order of
their effect. Out: the allocations that came to their end. Pure.

>>> space = AddressSpace()
>>> space.create(7, Physical(size=4096, origin=0), 1)
>>> space.map(0x1000, 4096, 7, 2), space.release(7)  # still mapped: nothing ends
(([], True), [])
>>> [ended.size for ended in space.unmap(0x1000, 4096, 4)]
[4096]
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from msgspec import Struct, field


class Handle(Struct):
    """A number that an allocation goes by, until it was released as often as it was given."""

    since_ns: int
    references: int = 1


class Physical(Struct, kw_only=True, eq=False):
    """One allocation of physical memory."""

    size: int
    origin: int
    handles: dict[int, Handle] = field(default_factory=dict)  # by number
    pieces: int = 0  # of the address space that it is mapped at


class _Piece(Struct):
    end: int
    since_ns: int
    memory: Physical


class AddressSpace(Struct):
    """Handles and mappings of one process; mappings do not overlap."""

    handles: dict[int, Physical] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)  # sorted
    _pieces: dict[int, _Piece] = field(default_factory=dict)  # by start

    def __len__(self) -> int:
        return len(self.handles) + len(self._starts)

    def create(self, handle: int, memory: Physical, time_ns: int) -> None:
        """A new allocation goes by ``handle``, which must be free: see :meth:`forget`."""
        memory.handles[handle] = Handle(time_ns)
        self.handles[handle] = memory

    def forget(self, handle: int) -> tuple[list[Physical], int]:
        """The number was given to another allocation: so often has it been released unseen, which ended these.

        Other numbers of what it meant are not concerned.
        """
        memory = self.handles.pop(handle)
        references = memory.handles.pop(handle).references
        return _ended(memory), references

    def retain(self, handle: int, address: int, time_ns: int) -> bool:
        """One more reference to what is mapped at ``address``, by ``handle``; False if nothing is known there.

        The number must be free, or that allocation's own.
        """
        memory = self.at(address)
        if memory is None:
            return False
        known = memory.handles.get(handle)
        if known is not None:
            known.references += 1
        else:
            self.create(handle, memory, time_ns)
        return True

    def release(self, handle: int) -> list[Physical]:
        """One reference less by ``handle``, which must be known: what came to its end."""
        memory = self.handles[handle]
        known = memory.handles[handle]
        known.references -= 1
        if known.references:
            return []
        del self.handles[handle], memory.handles[handle]
        return _ended(memory)

    def map(self, address: int, size: int, handle: int, time_ns: int) -> tuple[list[Physical], bool]:
        """Map: what came to its end because it had lain there, and whether the handle is known."""
        ended = self.unmap(address, size, time_ns)
        memory = self.handles.get(handle)
        if memory is not None and size:
            insort(self._starts, address)
            self._pieces[address] = _Piece(address + size, time_ns, memory)
            memory.pieces += 1
        return ended, memory is not None

    def unmap(self, address: int, size: int, time_ns: int) -> list[Physical]:
        """Unmap what was mapped there by ``time_ns``, in parts if need be: what came to its end."""
        end = address + size
        first = bisect_left(self._starts, address)
        if first and self._pieces[self._starts[first - 1]].end > address:
            first -= 1
        last = bisect_left(self._starts, end)
        left: list[tuple[int, _Piece]] = []  # what stays, or stays in part
        touched: dict[int, Physical] = {}
        for start in self._starts[first:last]:
            piece = self._pieces.pop(start)
            if piece.since_ns > time_ns:  # mapped since
                left.append((start, piece))
                continue
            touched[id(piece.memory)] = piece.memory
            parts = [(start, min(piece.end, address)), (max(start, end), piece.end)]
            kept = [(a, _Piece(b, piece.since_ns, piece.memory)) for a, b in parts if a < b]
            piece.memory.pieces += len(kept) - 1
            left += kept
        self._starts[first:last] = [start for start, _ in left]
        self._pieces.update(left)
        return [memory for touched_one in touched.values() for memory in _ended(touched_one)]

    def at(self, address: int) -> Physical | None:
        """What is mapped at an address."""
        position = bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        piece = self._pieces[self._starts[position]]
        return piece.memory if address < piece.end else None


def _ended(memory: Physical) -> list[Physical]:
    """It, if nothing refers to it any more."""
    return [] if memory.handles or memory.pieces else [memory]
