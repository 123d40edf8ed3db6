"""Where things are in the head of an HTTP/1 message: the library's ``read_head``. Pure.

In: bytes in which a message begins, and the names of the fields that are wanted. Out: positions, if the head is a
*plain* one and all of it is there: as RFC 9112 has it, so that no reader can take it for something else. It is then
what llhttp reads of it, which reads all others. Not plain are

* of a request: a method that is not in capital letters, a target that is no path;
* of a response: a status below 200;
* lines that do not end by CRLF, folded lines, empty values, control characters;
* ``Upgrade``; ``Content-Length`` more than once, of no digits or more than 18, or with ``Transfer-Encoding``; any
  ``Transfer-Encoding`` but ``chunked``;
* more than 64 KiB, or 32 fields that are wanted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_int32, c_uint32
from typing import Final

from otelgpu.spanwriter.library import HeadNames, head_reader

BODY_UNKNOWN: Final = -1
BODY_CHUNKED: Final = -2
"""How long a body is, in place of its length: nothing says so, and it is in chunks."""
MINOR: Final = 3
STATUS: Final = 4
BODY: Final = 5
PERSISTS: Final = 6
"""Places among the numbers of a head: see :meth:`HeadReader.read`."""
FIRST: Final = 8
"""Numbers of ``struct head`` before its fields."""
_FIELDS: Final = 32


class HeadReader:
    """Finds the fields of some names. It is not for several threads at once."""

    def __init__(self, names: Sequence[bytes]) -> None:
        """``names``: in lower case."""
        self.names = names
        ends, size = (c_uint32 * len(names))(), 0
        for place, name in enumerate(names):
            size += len(name)
            ends[place] = size
        self._text = b"".join(names)
        self._names = HeadNames(text=c_char_p(self._text), ends=ends, count=len(names))
        self._head = (c_int32 * (FIRST + 3 * _FIELDS))()
        # Numbers: to convert what they are the addresses of takes ctypes a third of a call's time.
        self._places = ctypes.addressof(self._names), ctypes.addressof(self._head)
        self._read = head_reader()

    def read(self, data: bytes, position: int, is_request: bool) -> tuple[int, Sequence[int]] | None:
        """How many bytes the head has that begins there, and where its parts are; None: it is not plain, or not whole.

        The numbers: the end of the method, the begin and the end of the target, the minor version, the status, how many
        bytes the body has by ``Content-Length`` (2³¹ - 1: so many or more), else :data:`BODY_UNKNOWN` or
        :data:`BODY_CHUNKED`, 1 where it is HTTP/1.1 and names no option of the connection but ``keep-alive``, else 0,
        how many wanted fields there are; then of each the place of its name and the begin and the end of its value, of
        which bytes beyond 1,024 are left out.
        """
        if self._read is None:
            return None
        size = self._read(data, position, len(data), is_request, *self._places)
        if not size:
            return None
        head = self._head
        return size, head[: FIRST + 3 * head[FIRST - 1]]
