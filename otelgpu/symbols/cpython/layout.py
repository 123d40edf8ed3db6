"""Where CPython keeps threads, frames and code objects, and how their texts are laid out, for 3.9 to 3.14.

In: a version, and for 3.13 and later the bytes at ``_PyRuntime``, where the interpreter reports its offsets itself
(``_Py_DebugOffsets``, Include/internal/pycore_runtime.h; from 3.14 on in pycore_debug_offsets.h). Out:
:class:`CPython`, and the parts of objects that were read. Opens nothing and raises nothing: what is unknown or
implausible is None.

The tables of 3.9 to 3.12 were compiled from the headers of each version (``offsetof`` with ``Py_BUILD_CORE``); a
minor version keeps its layout over all patch versions. They are of x86-64 builds without ``Py_DEBUG`` (before 3.9 of
no interest) and ``Py_TRACE_REFS``; free-threaded builds are laid out otherwise and are refused.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from msgspec import Struct

OLDEST: Final = 9
NEWEST: Final = 14
"""Minor versions of 3 that are known."""

COOKIE: Final = b"xdebugpy"
"""What ``_PyRuntime`` begins with since 3.13."""


class Frames(IntEnum):
    """How frames are linked: ``enum python_frames`` in bpf/profile/python.h."""

    OBJECTS = 1
    ENTRIES = 2
    SHIMS = 3


class CPython(Struct, frozen=True, kw_only=True):
    """One version's layout. Offsets in bytes, in the structure that the comment names.

    Fields up to ``lasti_unit`` have the names and meanings of ``struct python_process`` (bpf/profile/python.h).
    """

    minor: int
    frames: Frames

    interpreters: int  # _PyRuntimeState.interpreters.head
    next_interpreter: int  # PyInterpreterState.next
    threads: int  # PyInterpreterState.threads.head; tstate_head before 3.11
    next_thread: int  # PyThreadState.next
    thread_id: int  # PyThreadState.thread_id
    context: int  # PyThreadState.context: the contextvars.Context that is entered, or NULL
    frame: int  # PyThreadState.frame, .cframe (3.11, 3.12) or .current_frame
    has_cframe: bool = False
    cframe_current: int = 0  # _PyCFrame.current_frame

    code: int  # PyFrameObject.f_code, _PyInterpreterFrame.f_code or .f_executable
    previous: int  # .f_back or .previous
    instruction: int  # .f_lasti, .prev_instr or .instr_ptr
    owner: int = 0  # .is_entry (3.11) or .owner
    bytecode: int = 0  # PyCodeObject.co_code_adaptive
    lasti_unit: int = 1  # bytes that one step of f_lasti stands for

    code_bytes: int  # PyCodeObject, up to its instructions
    first_line: int  # PyCodeObject.co_firstlineno
    flags: int  # PyCodeObject.co_flags
    filename: int  # PyCodeObject.co_filename
    name: int  # PyCodeObject.co_name
    qualified_name: int = 0  # PyCodeObject.co_qualname; 0: the version has none
    line_table: int  # PyCodeObject.co_linetable; co_lnotab in 3.9

    type: int = 8  # PyObject.ob_type
    size: int = 16  # PyVarObject.ob_size
    type_name: int = 24  # PyTypeObject.tp_name
    bytes_at: int = 32  # PyBytesObject.ob_sval
    text_length: int = 16  # PyASCIIObject.length
    text_state: int = 32  # PyASCIIObject.state
    ascii_at: int  # sizeof(PyASCIIObject): where the letters of ASCII text are
    compact_at: int  # sizeof(PyCompactUnicodeObject): where those of other compact text are

    @property
    def frame_bytes(self) -> int:
        """How much of a frame is to be read: to the end of the last member that is wanted, in words."""
        last = 4 if self.frames is Frames.OBJECTS else 8
        end = max(self.code + 8, self.previous + 8, self.instruction + last, self.owner + 1)
        return (end + 7) // 8 * 8


_LISTED: Final = {
    9: CPython(
        minor=9,
        frames=Frames.OBJECTS,
        interpreters=32,
        next_interpreter=0,
        threads=8,
        next_thread=8,
        thread_id=176,
        context=240,
        frame=24,
        code=32,
        previous=24,
        instruction=104,
        code_bytes=176,
        first_line=40,
        flags=36,
        filename=104,
        name=112,
        line_table=120,
        ascii_at=48,
        compact_at=72,
    ),
    10: CPython(
        minor=10,
        frames=Frames.OBJECTS,
        interpreters=32,
        next_interpreter=0,
        threads=8,
        next_thread=8,
        thread_id=176,
        context=240,
        frame=24,
        code=32,
        previous=24,
        instruction=96,
        lasti_unit=2,
        code_bytes=176,
        first_line=40,
        flags=36,
        filename=104,
        name=112,
        line_table=120,
        ascii_at=48,
        compact_at=72,
    ),
    11: CPython(
        minor=11,
        frames=Frames.ENTRIES,
        interpreters=40,
        next_interpreter=0,
        threads=16,
        next_thread=8,
        thread_id=152,
        context=224,
        frame=56,
        has_cframe=True,
        cframe_current=8,
        code=32,
        previous=48,
        instruction=56,
        owner=68,
        bytecode=184,
        code_bytes=184,
        first_line=72,
        flags=48,
        filename=112,
        name=120,
        qualified_name=128,
        line_table=136,
        ascii_at=48,
        compact_at=72,
    ),
    12: CPython(
        minor=12,
        frames=Frames.SHIMS,
        interpreters=40,
        next_interpreter=0,
        threads=72,
        next_thread=8,
        thread_id=136,
        context=208,
        frame=56,
        has_cframe=True,
        cframe_current=0,
        code=0,
        previous=8,
        instruction=56,
        owner=70,
        bytecode=192,
        code_bytes=192,
        first_line=68,
        flags=48,
        filename=112,
        name=120,
        qualified_name=128,
        line_table=136,
        ascii_at=40,
        compact_at=56,
    ),
}

# struct _Py_DebugOffsets: names of its words behind cookie, version and free_threaded, in order. "_": not wanted.
_RUNTIME: Final = "_ _ interpreters"
_THREAD: Final = "_ _ next_thread _ frame thread_id _ _ _"
_CODE: Final = (
    "code_bytes filename name qualified_name line_table first_line _ _ _ bytecode"  # size argcount locals…
)
_PUBLISHED: Final = {
    13: " ".join(
        (
            _RUNTIME,
            "_ _ next_interpreter threads _ _ _ _ _ _ _ _ _",
            _THREAD,
            "_ previous code instruction _ owner",
            _CODE,
            "_ type",
            "_ type_name _ _",  # type_object
        )
    ).split(),
    14: " ".join(
        (
            _RUNTIME,
            "_ _ next_interpreter threads _ _ _ _ _ _ _ _ _ _ _ _",
            _THREAD,
            "_ previous code instruction _ owner _ _",
            _CODE + " _",
            "_ type",
            "_ type_name _ _",
        )
    ).split(),
}
_HEAD: Final = struct.Struct("<8sQQ")

PUBLISHED_BYTES: Final = _HEAD.size + 8 * max(map(len, _PUBLISHED.values()))
"""How much of ``_PyRuntime`` :func:`published` needs."""

_LARGEST: Final = {  # of an offset: structures grow a little between versions
    "interpreters": 1 << 16,
    "next_interpreter": 1 << 20,
    "threads": 1 << 20,
    "previous": 112,
    "code": 112,
    "instruction": 112,
    "owner": 119,
}
_LARGEST_OFFSET: Final = 1 << 12


class Version(Struct, frozen=True):
    """As in ``PY_VERSION_HEX``."""

    major: int
    minor: int
    micro: int

    @classmethod
    def of(cls, number: int) -> Version:
        """0x030d00f0 is 3.13.0."""
        return cls(number >> 24 & 0xFF, number >> 16 & 0xFF, number >> 8 & 0xFF)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.micro}"


def listed(version: Version) -> CPython | None:
    """The layout of a version that publishes none: 3.9 to 3.12."""
    return _LISTED.get(version.minor) if version.major == 3 else None


def published_version(runtime: bytes) -> tuple[Version, bool] | None:
    """(version, free-threaded) as ``_PyRuntime`` begins with it; None: it is none that publishes."""
    if len(runtime) < _HEAD.size:
        return None
    cookie, number, free_threaded = _HEAD.unpack_from(runtime)
    return (Version.of(number), bool(free_threaded)) if cookie == COOKIE else None


def published(runtime: bytes) -> CPython | None:
    """The layout that ``_PyRuntime`` publishes; None: its version is not known, or it is no layout."""
    reported = published_version(runtime)
    if reported is None or reported[1] or reported[0].major != 3 or len(runtime) < PUBLISHED_BYTES:
        return None
    minor = reported[0].minor
    names = _PUBLISHED.get(minor)
    if names is None:
        return None
    words = struct.unpack_from(f"<{len(names)}Q", runtime, _HEAD.size)
    offsets = {name: word for name, word in zip(names, words, strict=True) if name != "_"}
    if any(offset > _LARGEST.get(name, _LARGEST_OFFSET) for name, offset in offsets.items()):
        return None
    offsets["code_bytes"] = min(offsets["code_bytes"], offsets["bytecode"])  # sizeof is rounded up
    # Not among them: PyThreadState.context, which lies seven words behind its thread_id; co_flags, which has been the
    # first member behind three pointers since 3.11; texts since 3.12.
    return CPython(
        minor=minor,
        frames=Frames.SHIMS,
        context=offsets["thread_id"] + 56,
        flags=48,
        ascii_at=40,
        compact_at=56,
        **offsets,
    )


# -- Objects ---------------------------------------------------------------------------------------------------

MAX_TEXT_LETTERS: Final = 4096


class CodeHead(Struct, frozen=True, kw_only=True):
    """What is read of a code object. Two equal ones at one address are the same code, as far as can be reported."""

    type: int
    first_line: int
    flags: int
    name: int  # addresses, of objects
    filename: int
    line_table: int

    def is_plausible(self) -> bool:
        """Whether it could be one."""
        return self.first_line >= 0 and all(map(_is_pointer, (self.name, self.filename, self.line_table)))


def code_head(layout: CPython, data: bytes) -> CodeHead | None:
    """``data``: ``code_bytes`` from its address on. The qualified name where the version has one."""
    if len(data) < layout.code_bytes:
        return None

    def word(at: int) -> int:
        return int.from_bytes(data[at : at + 8], "little")

    return CodeHead(
        type=word(layout.type),
        first_line=int.from_bytes(data[layout.first_line : layout.first_line + 4], "little", signed=True),
        flags=int.from_bytes(data[layout.flags : layout.flags + 4], "little"),
        name=word(layout.qualified_name or layout.name),
        filename=word(layout.filename),
        line_table=word(layout.line_table),
    )


class TextPlace(Struct, frozen=True):
    """Where the letters of a text are, from its object's address on. ``letter_bytes``: 1, 2 or 4."""

    offset: int
    letters: int
    letter_bytes: int
    ascii: bool

    def decode(self, data: bytes) -> str:
        """The text; letters that are none are replaced."""
        if self.letter_bytes == 1:
            return data.decode("latin-1")
        encoding = "utf-16-le" if self.letter_bytes == 2 else "utf-32-le"
        return data.decode(encoding, "replace")


def text_place(layout: CPython, head: bytes) -> TextPlace | None:
    """Of a ``str`` whose first ``ascii_at`` bytes are ``head``; None: it is no compact text, or too long.

    The bits of ``state``: interned 0-1, kind 2-4, compact 5, ascii 6 (Include/cpython/unicodeobject.h).
    """
    if len(head) < layout.ascii_at:
        return None
    length = int.from_bytes(head[layout.text_length : layout.text_length + 8], "little")
    state = int.from_bytes(head[layout.text_state : layout.text_state + 4], "little")
    kind, compact, ascii_only = state >> 2 & 7, bool(state & 0x20), bool(state & 0x40)
    if kind not in (1, 2, 4) or not compact or length > MAX_TEXT_LETTERS or (ascii_only and kind != 1):
        return None
    return TextPlace(layout.ascii_at if ascii_only else layout.compact_at, length, kind, ascii_only)


def _is_pointer(word: int) -> bool:
    return 1 << 16 <= word < 1 << 47 and word % 8 == 0
