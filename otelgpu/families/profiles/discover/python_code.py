"""Python frames by name: code objects read from the memory of the process that runs them.

In: the address of a code object and an instruction in it, as the BPF program saw them some milliseconds ago. Out:
:class:`~otelgpu.model.samples.Frame` with the qualified name, the file and the line. What is read is checked (type,
lengths, kinds), because the object may be gone by now and its memory something else; what does not hold is counted.

A code object is read whole once. At each later use its head is read and compared: memory that was given to another
code object is noticed. Example: a function that is reloaded at the same address with the same first line but another
table of lines has another head.

A question to the worker that reads takes as long as it waits for a processor, so what some dozen stacks need is read
together (:meth:`CodeNames.expect`): the heads of all their code objects; of those that are new, where their parts are;
and these parts. Example: 64 stacks of a program that imports, with 300 code objects of which 200 are new, are three
questions.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct, field

from otelgpu.families.profiles.python.lines import LineTable, line_table
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame
from otelgpu.processes.memory import OpenMemory, ProcessMemory, Range, session_memory
from otelgpu.processes.reader.client import ReaderError
from otelgpu.symbols.cpython.layout import CodeHead, CPython, TextPlace, code_head, text_place

R = TypeVar("R")

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
_MAX_QUESTION_BYTES: Final = 4 << 20
_MAX_FRAMES_OF_CODE: Final = 1 << 10
_FIRST_ADDRESS: Final = 1 << 16  # vm.mmap_min_addr
_TYPE_NAME: Final = b"code\0"


class _Code(Struct):
    """One that was read. ``frames``: by line."""

    head: CodeHead
    name: str
    file: str
    lines: LineTable
    frames: dict[int, Frame] = field(default_factory=dict)


class _Failure(Exception):
    """A code object is not known."""


class _Gone(_Failure):
    """The memory cannot be read."""


class _Implausible(_Failure):
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
        self._expected: dict[tuple[int, int], _Code | _Failure] = {}  # what is named next, as it was just now
        self._known: set[int] = set()  # processes that have codes

    def expect(self, tgid: int, layout: CPython, code_type: int | None, addresses: Iterable[int]) -> None:
        """These code objects of a process are named next: they are as they are now. Otherwise as :meth:`name`."""
        places = tuple(dict.fromkeys(addresses))
        found = self._codes_at(tgid, layout, code_type, places)
        self._expected = {(tgid, place): each for place, each in zip(places, found, strict=True)}

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
        found = self._expected.get((tgid, address))
        if found is None:
            (found,) = self._codes_at(tgid, layout, code_type, [address])
        if isinstance(found, _Failure):
            raise found
        return found

    def _codes_at(
        self, tgid: int, layout: CPython, code_type: int | None, places: Sequence[int]
    ) -> list[_Code | _Failure]:
        """What is at each address now, or why that is not known."""
        found: dict[int, _Code | _Failure] = {}
        new: dict[int, CodeHead] = {}
        heads = self._read(tgid, [((place, layout.code_bytes),) for place in places])
        for place, data in zip(places, heads, strict=True):
            known = self._codes.get((tgid, place))
            head = code_head(layout, data[0]) if isinstance(data, tuple) else None
            if known is not None and (isinstance(data, _Gone) or head == known.head):
                # It may have ended, or have freed this: nothing else can be there.
                found[place] = known
                self._codes.move_to_end((tgid, place))
            elif isinstance(data, _Failure):
                found[place] = data
            elif head is None or not head.is_plausible() or code_type not in (None, head.type):
                found[place] = _Implausible()
            else:
                new[place] = head
        for place, code in zip(new, self._read_codes(tgid, layout, code_type, new.values()), strict=True):
            found[place] = code
            if isinstance(code, _Code):
                self._keep(tgid, place, code)
        return [found[place] for place in places]

    def _keep(self, tgid: int, place: int, code: _Code) -> None:
        self._known.add(tgid)
        self._codes[(tgid, place)] = code
        self._codes.move_to_end((tgid, place))
        if len(self._codes) > _MAX_CODES:
            self._codes.popitem(last=False)

    def _read_codes(
        self, tgid: int, layout: CPython, code_type: int | None, heads: Iterable[CodeHead]
    ) -> list[_Code | _Failure]:
        """What heads refer to: where the parts are, and then the parts."""
        unread = [_Unread(layout, head) for head in heads]
        of_places = self._read(tgid, [each.places(code_type) for each in unread])
        wanted = [_attempt(each.parts, data) for each, data in zip(unread, of_places, strict=True)]
        self._counters[LINES_CUT] += sum(each.is_cut for each in unread)
        of_parts = self._read(tgid, wanted)
        return [_attempt(each.code, data) for each, data in zip(unread, of_parts, strict=True)]

    def _read(
        self, tgid: int, asked: Sequence[tuple[Range, ...] | _Failure]
    ) -> list[tuple[bytes, ...] | _Failure]:
        """All ranges of each that is asked for, whole, or why not; what has failed already is passed on."""
        found: list[tuple[bytes, ...] | _Failure] = []
        for some in _in_questions(asked):
            ranges = [each for one in some if isinstance(one, tuple) for each in one]
            try:
                parts = iter(self._parts(tgid, *ranges) if ranges else ())
            except _Gone as gone:
                found += [gone if isinstance(one, tuple) else one for one in some]
                continue
            for one in some:
                if isinstance(one, tuple):
                    mine = tuple(islice(parts, len(one)))
                    found.append(mine if _are_whole(mine, one) else _Gone())
                else:
                    found.append(one)
        return found

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


def _in_questions(
    asked: Sequence[tuple[Range, ...] | _Failure],
) -> Iterator[list[tuple[Range, ...] | _Failure]]:
    """In their order, as many at a time as may be asked for; ranges that no memory can have have failed."""
    some: list[tuple[Range, ...] | _Failure] = []
    left = _MAX_QUESTION_BYTES
    for one in asked:
        if isinstance(one, tuple) and not all(_is_address(address) for address, size in one if size):
            one = _Implausible()
        size = sum(size for _, size in one) if isinstance(one, tuple) else 0
        if some and size > left:
            yield some
            some, left = [], _MAX_QUESTION_BYTES
        some.append(one)
        left -= size
    if some:
        yield some


class _Unread:
    """A code object of which the head is known; the others of its parts are asked for in two steps."""

    def __init__(self, layout: CPython, head: CodeHead) -> None:
        self._layout, self._head = layout, head
        self.is_cut = False

    def places(self, code_type: int | None) -> tuple[Range, ...]:
        """What says how long the texts and the table are; and the type's name, if its address is not known."""
        layout, head = self._layout, self._head
        return (
            (head.name, layout.ascii_at),
            (head.filename, layout.ascii_at),
            (head.line_table + layout.size, 8),
            *(() if code_type is not None else ((head.type + layout.type_name, 8),)),
        )

    def parts(self, places: tuple[bytes, ...]) -> tuple[Range, ...]:
        """The texts and the table. Raises _Implausible."""
        layout, head = self._layout, self._head
        name_head, file_head, size, *type_name = places
        self._name, self._file = _text_place(layout, name_head), _text_place(layout, file_head)
        return (
            (head.name + self._name.offset, self._name.letters * self._name.letter_bytes),
            (head.filename + self._file.offset, self._file.letters * self._file.letter_bytes),
            (head.line_table + layout.bytes_at, self._table_bytes(size)),
            *((int.from_bytes(each, "little"), len(_TYPE_NAME)) for each in type_name),
        )

    def code(self, parts: tuple[bytes, ...]) -> _Code:
        """With them. Raises _Implausible."""
        name, file, lines, *kind = parts
        if not name or kind not in ([], [_TYPE_NAME]):
            raise _Implausible
        return _Code(
            head=self._head,
            name=_text(self._name, name),
            file=_text(self._file, file),
            lines=line_table(lines, self._head.first_line, self._layout.minor),
        )

    def _table_bytes(self, size: bytes) -> int:
        count = int.from_bytes(size, "little")
        if count >= 1 << 40:
            raise _Implausible
        self.is_cut = count > _MAX_TABLE_BYTES
        return min(count, _MAX_TABLE_BYTES)


def _attempt(step: Callable[[tuple[bytes, ...]], R], data: tuple[bytes, ...] | _Failure) -> R | _Failure:
    """The next step, or why there is none."""
    if isinstance(data, _Failure):
        return data
    try:
        return step(data)
    except _Failure as failure:
        return failure


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
