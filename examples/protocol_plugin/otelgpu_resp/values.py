"""Finds where RESP values end in the bytes of one direction, without keeping them."""

from __future__ import annotations

from typing import Final

MAX_LINE: Final = 1024
MAX_DEPTH: Final = 32
MAX_NAME: Final = 32
_AGGREGATES: Final = {b"*": 1, b"~": 1, b">": 1, b"%": 2}
_BULKS: Final = frozenset((b"$", b"!", b"="))
_LINES: Final = frozenset((b"+", b"-", b":", b"_", b"#", b",", b"("))


class InvalidResp(Exception):
    """The bytes are no RESP."""


class ValueReader:
    """One value after the other. ``busy``: one has begun and its end is to come."""

    def __init__(self) -> None:
        self.busy = False
        self.size = 0  # bytes of the value under way, or of the last one
        self.first_text = ""  # its first bulk string, cut
        self.error = ""  # first word of an error that it is
        self._line = b""
        self._skip = 0  # bytes of a bulk string to come, its line end included
        self._keep = False
        self._left: list[int] = []  # items to come, of each aggregate

    def feed(self, data: bytes, position: int) -> int:
        """Read on until a value ends or the bytes do; return the position reached."""
        if not self.busy:
            self.busy = True
            self.size, self.first_text, self.error, self._keep = 0, "", "", True
        begun = position
        while position < len(data) and self.busy:
            if self._skip:
                step = min(self._skip, len(data) - position)
                if self._keep and len(self.first_text) < MAX_NAME:
                    text = data[position : position + step][: MAX_NAME - len(self.first_text)]
                    self.first_text += text.decode("ascii", "replace")
                self._take(step)
                position += step
                continue
            end = data.find(b"\n", position)
            stop = len(data) if end < 0 else end + 1
            self._line += data[position:stop]
            if len(self._line) > MAX_LINE:
                raise InvalidResp
            position = stop
            if end >= 0:
                line, self._line = self._line, b""
                self._read(line)
        self.size += position - begun
        return position

    def skip(self, size: int) -> bool:
        """Pass over bytes that were not captured; False when they cost the framing."""
        if size > self._skip:
            return False
        self.size += size
        self._keep = False
        self._take(size)
        return True

    def _take(self, size: int) -> None:
        self._skip -= size
        if not self._skip:
            if self._keep:
                self.first_text = self.first_text.strip("\r\n")
                self._keep = False
            self._value_ended()

    def _read(self, line: bytes) -> None:
        kind, text = line[:1], line[1:].rstrip(b"\r\n")
        if kind in _LINES:
            if kind == b"-" and not self._left:
                self.error = text.split(b" ", 1)[0][:MAX_NAME].decode("ascii", "replace") or "error"
            self._value_ended()
        elif kind in _BULKS or kind in _AGGREGATES:
            digits = text.removeprefix(b"-")
            if not digits.isdigit() or len(digits) > 10:
                raise InvalidResp
            count = int(text)
            if count < 0:
                self._value_ended()
            elif kind in _BULKS:
                self._skip = count + 2
            elif count:
                if len(self._left) >= MAX_DEPTH:
                    raise InvalidResp
                self._left.append(count * _AGGREGATES[kind])
            else:
                self._value_ended()
        else:
            raise InvalidResp

    def _value_ended(self) -> None:
        while self._left:
            self._left[-1] -= 1
            if self._left[-1]:
                return
            self._left.pop()
        self.busy = False
