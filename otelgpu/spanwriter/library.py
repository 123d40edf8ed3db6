"""The library: the C files beside this module, whose structs these are.

It works with the interpreter's lock released, but for what reads a head. Without it, where there was no compiler,
everything is done by numpy and llhttp.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path
from typing import Any, Final

from otelgpu.model.operations import Field

_LIBRARY: Final = Path(__file__).parents[1] / "_native" / "libspanwriter.so"
_log = logging.getLogger("otelgpu.spanwriter")

NO_CONDITION: Final = 128
"""Of :class:`FormKey`: there is none."""
MOST_KEYS: Final = 32
LEAD_ROOM: Final = 128
SPAN_ROOM, NUMBER_ROOM = 73, LEAD_ROOM + 10
"""Bytes that a span takes at most beside its form's text and its numbers, and that a number does."""

_LAST_WORD: Final = 120


class Place(Structure):
    """``struct place``."""

    _fields_ = (
        ("mask", c_uint64),
        ("sign", c_uint64),
        ("offset", c_uint8),
        ("shift", c_uint8),
        ("unused", c_uint8 * 6),
    )

    @classmethod
    def of(cls, field: Field) -> Place:
        """Where it is in a row."""
        form, offset = field.place
        bits = 8 * form.itemsize
        read_at = min(offset, _LAST_WORD)
        sign = 1 << (bits - 1) if form.kind == "i" else 0
        return cls(mask=(1 << bits) - 1, sign=sign, offset=read_at, shift=8 * (offset - read_at))


class FormKey(Structure):
    """``struct form_key``."""

    _fields_ = (
        ("value", Place),
        ("kinds", c_uint64),
        ("condition", c_uint8),
        ("unused", c_uint8 * 7),
    )


class Number(Structure):
    """``struct number``."""

    _fields_ = (
        ("value", Place),
        ("absent", c_uint64),
        ("lead", c_char_p),
        ("lead_bytes", c_uint16),
        ("type", c_uint8),
        ("holds", c_uint8),
        ("has_absent", c_uint8),
        ("unused", c_uint8 * 3),
    )


class Spans(Structure):
    """``struct spans``."""

    _fields_ = (
        *((name, c_void_p) for name in ("rows", "chosen", "group", "trace_ids", "span_ids", "flags", "form")),
        ("texts", c_char_p),
        ("text_ends", c_void_p),
        ("numbers", POINTER(Number)),
        *((name, c_void_p) for name in ("count", "end_ns", "least_ns", "most_ns", "merged")),
        ("seed", c_uint64),
        ("unix_offset_ns", c_uint64),
        ("number_count", c_uint32),
        ("unused", c_uint32),
    )


class Runs(Structure):
    """``struct runs``."""

    _fields_ = tuple((name, c_void_p) for name in ("count", "end_ns", "least_ns", "most_ns", "merged"))


class Folding(Structure):
    """``struct folding``."""

    _fields_ = (
        ("rows", c_void_p),
        ("group", c_void_p),
        ("before", POINTER(Runs)),
        ("same", c_void_p),
        ("alike", c_void_p),
        *((name, c_int64) for name in ("n", "groups", "limit", "runs_kept")),
        ("sized", c_uint64),
        ("kinds", c_uint32),
        ("size_offset", c_uint32),
    )


class Timelines(Structure):
    """``struct timelines``."""

    _fields_ = (
        *((name, c_void_p) for name in ("begins_ns", "states", "ends")),
        ("threads", c_int64),
    )


class Measuring(Structure):
    """``struct measure``."""

    _fields_ = (
        ("bounds", c_void_p),
        ("buckets", c_void_p),
        *((name, c_double) for name in ("total", "least", "most")),
        ("total_low", c_uint64),
        ("total_high", c_uint64),
        ("count", c_int64),
        ("bound_count", c_uint32),
        ("offset", c_uint16),
        ("type", c_uint8),
        ("returned", c_uint8),
    )


class Split(Structure):
    """``struct split``."""

    _fields_ = (
        ("rows", c_void_p),
        ("n", c_int64),
        *((name, c_void_p) for name in ("owners", "source", "out", "parts")),
        ("family", c_uint8),
        ("special", c_uint8),
        ("unused", c_uint8 * 6),
    )


class HeadNames(Structure):
    """``struct head_names``."""

    _fields_ = (
        ("text", c_char_p),
        ("ends", POINTER(c_uint32)),
        ("count", c_uint32),
        ("unused", c_uint32),
    )


@cache
def library() -> Any:
    """The library; None where it was not built."""
    try:
        found = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        _log.info("the work of the compiled library is done by numpy: %s", error)
        return None
    counting = (
        "find_forms",
        "write_spans",
        "fold_rows",
        "number_threads",
        "find_states",
        "split_rows",
        "group_owners",
    )
    for name in counting:
        getattr(found, name).restype = c_int64
    found.find_forms.argtypes = (c_void_p, c_int64, POINTER(FormKey), c_uint32, c_uint8, c_void_p, c_void_p)
    found.write_spans.argtypes = (
        *(POINTER(Spans), c_int64, c_int64, c_void_p, c_uint64),
        POINTER(c_uint64),
    )
    found.fold_rows.argtypes = POINTER(Folding), c_void_p, c_void_p, POINTER(Runs)
    found.number_threads.argtypes = c_void_p, c_int64, c_void_p, c_void_p
    found.find_states.argtypes = POINTER(Timelines), c_void_p, c_void_p, c_int64, c_void_p
    found.split_rows.argtypes = (POINTER(Split),)
    found.group_owners.argtypes = c_void_p, c_void_p, c_int64, c_void_p, c_void_p
    found.measure_rows.argtypes = c_void_p, c_int64, POINTER(Measuring), c_uint32
    found.measure_rows.restype = None
    return found


def head_reader() -> Callable[..., int] | None:
    """The library's ``read_head``; None where it was not built.

    It is called for each message, and takes less time than who waits for the interpreter's lock needs to take it: it
    keeps it.
    """
    found: Any = library()
    if found is None:
        return None
    takes = c_char_p, c_int64, c_int64, c_uint32, c_void_p, c_void_p
    return ctypes.PYFUNCTYPE(c_int64, *takes)(("read_head", found))
