"""Python frames by name: code objects read from the memory of the process that runs them.

In: the address of a code object and an instruction in it, as the BPF program saw them some milliseconds ago. Out:
:class:`~otelgpu.model.samples.Frame` with the qualified name, the file and the line. What is read is checked (type,
lengths, kinds), because the object may be gone by now and its memory something else; what does not hold is counted.

A code object is read whole once. At each later use its head is read and compared: memory that was given to another
code object is noticed. Example: a function that is reloaded at the same address with the same first line but another
table of lines has another head. The heads of a stack's code objects are read in one go (:meth:`CodeNames.expect`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otelgpu.families.profiles.python.lines import LineTable, line_table
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame
from otelgpu.processes.memory import OpenMemory, ProcessMemory, Range, session_memory
from otelgpu.processes.reader.client import ReaderError
from otelgpu.symbols.cpython.layout import CodeHead, CPython, TextPlace, code_head, text_place

UNREADABLE: Final = "python_code_unreadable"
IMPLAUSIBLE: Final = "python_code_implausible"
LINES_CUT: Final = "python_lines_cut"
REASONS: Final[Mapping[str, str]] = {
    UNREADABLE: "a Python frame whose code object's memory was gone when it was to be named",
    IMPLAUSIBLE: "a Python frame whose code object's memory was something else when it was to be named",
    LINES_CUT: "a code object with a table of lines beyond the bound: lines behind it are wrong",
}

_MAX_CODES: Final = 1 << 15  # of all processes: a large service runs some thousands
_MAX_MEMORIES: Final = 64
_MAX_TABLE_BYTES: Final = 1 << 20
_MAX_FRAMES_OF_CODE: Final = 1 << 10
_FIRST_ADDRESS: Final = 1 << 16  # vm.mmap_min_addr
_TYPE_NAME: Final = b"code\0"


@dataclass(slots=True)
class _Code:
    """One that was read. ``frames``: by line."""

    head: CodeHead
    name: str
    file: str
    lines: LineTable
    frames: dict[int, Frame] = field(default_factory=dict)


class _Gone(Exception):
    """The memory cannot be read."""


class _Implausible(Exception):
    """It holds no code object."""


class CodeNames:
    """Code objects of all processes, those that were used last."""

    def __init__(
        self, counters: Counter[str], *, proc: Path = Path("/proc"), memory: ProcessMemory | None = None
    ) -> None:
        """Counts into ``counters``."""
        self._counters = counters
        self._proc = proc
        self._memory = memory or session_memory()
        self._codes: OrderedDict[tuple[int, int], _Code] = OrderedDict()
        self._memories: OrderedDict[int, OpenMemory] = OrderedDict()  # by tgid
        self._heads: dict[tuple[int, int], bytes] = {}  # of the codes that are named next
        self._known: set[int] = set()  # processes that have codes

    def expect(self, tgid: int, layout: CPython, addresses: Iterable[int]) -> None:
        """These code objects of a process are named next: their heads are as they are now."""
        places = [each for each in dict.fromkeys(addresses) if _is_address(each)]
        try:
            heads = self._parts(tgid, *((place, layout.code_bytes) for place in places))
        except _Gone:
            heads = (b"",) * len(places)
        self._heads = {(tgid, place): head for place, head in zip(places, heads, strict=True)}

    def name(
        self, tgid: int, layout: CPython, code_type: int | None, address: int, instruction: int
    ) -> Frame | None:
        """``code_type``: address of PyCode_Type, if it is known. ``instruction``: bytes into the code, 32 bits."""
        try:
            code = self._code(tgid, layout, code_type, address)
        except _Gone:
            self._counters[UNREADABLE] += 1
            return None
        except _Implausible:
            self._counters[IMPLAUSIBLE] += 1
            return None
        line = code.lines.line_at(instruction - (1 << 32) if instruction >> 31 else instruction)
        frame = code.frames.get(line)
        if frame is None:
            frame = Frame(type=FrameType.PYTHON, name=code.name, file=code.file, line=line)
            if len(code.frames) < _MAX_FRAMES_OF_CODE:
                code.frames[line] = frame
        return frame

    def release(self, tgid: int) -> None:
        """Let go of the process' memory; what was read of it stays known."""
        memory = self._memories.pop(tgid, None)
        if memory is not None:
            memory.close()

    def forget(self, tgid: int) -> None:
        """What was read is not of this process."""
        self.release(tgid)
        if tgid in self._known:
            self._known.discard(tgid)
            for key in [key for key in self._codes if key[0] == tgid]:
                del self._codes[key]

    def close(self) -> None:
        """Let go of the processes' memories."""
        while self._memories:
            self._memories.popitem()[1].close()

    # -- Reading -----------------------------------------------------------------------------------------------

    def _code(self, tgid: int, layout: CPython, code_type: int | None, address: int) -> _Code:
        known = self._codes.get((tgid, address))
        try:
            head = code_head(layout, self._head(tgid, layout, address))
        except _Gone:
            if known is None:
                raise
            return known  # it has ended, or freed this: nothing else can be there
        if head is None:
            raise _Implausible
        if known is not None and known.head == head:
            self._codes.move_to_end((tgid, address))
            return known
        if not head.is_plausible():
            raise _Implausible
        code = self._read_code(tgid, layout, code_type, head)
        self._known.add(tgid)
        self._codes[(tgid, address)] = code
        self._codes.move_to_end((tgid, address))
        if len(self._codes) > _MAX_CODES:
            self._codes.popitem(last=False)
        return code

    def _head(self, tgid: int, layout: CPython, address: int) -> bytes:
        head = self._heads.get((tgid, address))
        if head is None:
            (head,) = self._read(tgid, (address, layout.code_bytes))
        elif len(head) != layout.code_bytes:
            raise _Gone
        return head

    def _read_code(self, tgid: int, layout: CPython, code_type: int | None, head: CodeHead) -> _Code:
        """What a head refers to: where the parts are, and then the parts."""
        if code_type is not None and head.type != code_type:
            raise _Implausible
        name_head, file_head, size, *type_name = self._read(
            tgid,
            (head.name, layout.ascii_at),
            (head.filename, layout.ascii_at),
            (head.line_table + layout.size, 8),
            *(() if code_type is not None else ((head.type + layout.type_name, 8),)),
        )
        name_at, file_at = _text_place(layout, name_head), _text_place(layout, file_head)
        name, file, lines, *kind = self._read(
            tgid,
            (head.name + name_at.offset, name_at.letters * name_at.letter_bytes),
            (head.filename + file_at.offset, file_at.letters * file_at.letter_bytes),
            (head.line_table + layout.bytes_at, self._table_bytes(size)),
            *((int.from_bytes(each, "little"), len(_TYPE_NAME)) for each in type_name),
        )
        if not name or kind not in ([], [_TYPE_NAME]):
            raise _Implausible
        return _Code(
            head=head,
            name=_text(name_at, name),
            file=_text(file_at, file),
            lines=line_table(lines, head.first_line, layout.minor),
        )

    def _table_bytes(self, size: bytes) -> int:
        count = int.from_bytes(size, "little")
        if count >= 1 << 40:
            raise _Implausible
        if count > _MAX_TABLE_BYTES:
            self._counters[LINES_CUT] += 1
        return min(count, _MAX_TABLE_BYTES)

    def _read(self, tgid: int, *ranges: Range) -> tuple[bytes, ...]:
        """All of them, whole; raises _Gone."""
        if not all(_is_address(address) for address, size in ranges if size):
            raise _Implausible
        parts = self._parts(tgid, *ranges)
        if not _are_whole(parts, ranges):
            raise _Gone
        return parts

    def _parts(self, tgid: int, *ranges: Range) -> tuple[bytes, ...]:
        """What of each is there; raises _Gone where nothing can be read."""
        was_open = tgid in self._memories
        try:
            parts = self._opened(tgid).read(*ranges)
            if was_open and not _are_whole(parts, ranges):  # of the program before exec, perhaps
                self.release(tgid)
                parts = self._opened(tgid).read(*ranges)
        except ReaderError as error:
            raise _Gone from error
        except OSError as error:
            self.release(tgid)
            raise _Gone from error
        return parts

    def _opened(self, tgid: int) -> OpenMemory:
        memory = self._memories.get(tgid)
        if memory is None:
            memory = self._memories[tgid] = self._memory.keep_open(tgid, proc=self._proc)
            if len(self._memories) > _MAX_MEMORIES:
                self._memories.popitem(last=False)[1].close()
        else:
            self._memories.move_to_end(tgid)
        return memory


def _is_address(address: int) -> bool:
    return _FIRST_ADDRESS <= address < 1 << 47


def _are_whole(parts: Iterable[bytes], ranges: Iterable[Range]) -> bool:
    return all(len(part) == size for part, (_, size) in zip(parts, ranges, strict=True))


def _text_place(layout: CPython, head: bytes) -> TextPlace:
    place = text_place(layout, head)
    if place is None:
        raise _Implausible
    return place


def _text(place: TextPlace, data: bytes) -> str:
    text = place.decode(data)
    if place.ascii and not text.isascii():
        raise _Implausible
    return text
