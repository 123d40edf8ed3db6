"""Makes ``.eh_frame`` sections."""

from __future__ import annotations

import struct

ADDRESS = 0x2000
"""Where the sections that are made here are loaded."""

DEF_CFA_RSP_8 = bytes((0x0C, 7, 8))
RETURN_AT_CFA_8 = bytes((0x80 | 16, 1))
NOP = b"\0"


def advance(count: int) -> bytes:
    """DW_CFA_advance_loc."""
    return bytes((0x40 | count,))


def cfa_offset(count: int) -> bytes:
    """DW_CFA_def_cfa_offset; below 128."""
    return bytes((0x0E, count))


def saved(register: int, words: int) -> bytes:
    """DW_CFA_offset: at CFA - 8 * words."""
    return bytes((0x80 | register, words))


class Frames:
    """Functions one after the other, under one CIE at a time."""

    def __init__(self) -> None:
        self.content = b""
        self._cie = 0

    def shared(
        self, code: bytes = DEF_CFA_RSP_8 + RETURN_AT_CFA_8, letters: bytes = b"zR", data: bytes = b"\x1b"
    ) -> Frames:
        """A CIE."""
        self._cie = len(self.content)
        body = b"\1" + letters + b"\0" + b"\1\x78\x10" + bytes((len(data),)) + data + code
        self.content += self._entry(struct.pack("<I", 0) + body)
        return self

    def function(self, start: int, size: int, code: bytes = b"") -> Frames:
        """An FDE."""
        at = len(self.content)
        body = struct.pack("<I", at + 4 - self._cie)
        body += struct.pack("<iI", start - (ADDRESS + at + 8), size) + b"\0" + code
        self.content += self._entry(body)
        return self

    def _entry(self, body: bytes) -> bytes:
        body += bytes(-(len(body) + 4) % 8)
        return struct.pack("<I", len(body)) + body
