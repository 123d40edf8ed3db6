r"""Reads HPACK header blocks (RFC 7541) of one direction, also where part of the dynamic table is not known.

In: whole header blocks in order. Out: their fields; a name or value that only an unknown table entry holds is
None. It must not know about frames or streams. Static table and Huffman code are those of the ``hpack`` package,
whose decoder cannot be used: it ends a connection at the first index that it does not know.

Entries count from the newest, so what was added while it was observed is found whatever came before. Invariant:
the newest ``len(_entries)`` entries of the sender's table are in ``_entries``, oldest first, or the sender has
evicted those that are not; older ones do not exist (``_complete``) or are unknown.

Example, on a connection found open: ``\xbe`` (index 62) gives ``(None, None)``; ``\x44\x02/a`` (``:path: /a``,
indexed) and then ``\xbe`` give ``(b":path", b"/a")`` twice; ``\xbf`` (index 63) is still unknown.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

#: A field; None: in a table entry that was added before observation began.
Field = tuple[bytes | None, bytes | None]

#: RFC 9113, section 6.5.2: the default size of the table.
DEFAULT_TABLE_BYTES = 4096
#: Of a larger table only the newest entries are kept; older ones are unknown.
MAX_TABLE_BYTES = 16384
#: Fields beyond it are read for the table's sake, and dropped. Measured as in RFC 9113, section 6.5.2.
MAX_LIST_BYTES = 65536

_ENTRY_BYTES = 32  # of overhead, RFC 7541, section 4.1
_STATIC: tuple[Field, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_FIRST_DYNAMIC = len(_STATIC)
_MAX_INDEX = 1 << 16
_MAX_INTEGER_BYTES = 5
_CACHED_BYTES = 128
_UNKNOWN: Field = (None, None)


class HpackError(Exception):
    """An invalid header block. Never leaves this family."""


class HpackReader:
    """The decoding side of one direction. ``late``: blocks before the first one read may have been missed."""

    __slots__ = ("_complete", "_entries", "_size", "_table_bytes", "truncated", "unknown")

    def __init__(self, *, late: bool = False) -> None:
        self._entries: deque[Field] = deque()
        self._table_bytes = 0  # what _entries count for; less than the truth where a name is unknown
        self._size: int | None = DEFAULT_TABLE_BYTES  # None: not known
        self._complete = True
        self.unknown = 0  # fields of the last block with an unknown part
        self.truncated = False  # whether the last block had more fields than are kept
        if late:
            self.lose()

    def lose(self) -> None:
        """A block was missed: what the table holds is not known from here on."""
        self._entries.clear()
        self._table_bytes = 0
        self._size = None
        self._complete = False

    def read(self, block: bytes) -> list[Field]:
        """Return the fields of the next block. Raises HpackError; the table is then lost."""
        try:
            return self._read(block)
        except (HPACKDecodingError, IndexError) as error:
            self.lose()
            raise HpackError(str(error)) from None
        except HpackError:
            self.lose()
            raise

    def _read(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        self.unknown = 0
        self.truncated = False
        left = MAX_LIST_BYTES
        position, end = 0, len(block)
        while position < end:
            first = block[position]
            if first >= 0x80:  # indexed field, section 6.1
                index, position = _integer(block, position, 0x7F)
                field = self._entry(index)
            elif 0x20 <= first < 0x40:  # size update, section 6.3
                size, position = _integer(block, position, 0x1F)
                if fields:
                    raise HpackError("size update after a field")
                self._resize(size)
                continue
            else:  # literal field, sections 6.2.1 to 6.2.3
                indexed = first >= 0x40
                index, position = _integer(block, position, 0x3F if indexed else 0x0F)
                name: bytes | None
                if index:
                    name = self._entry(index)[0]
                else:
                    name, position = _string(block, position)
                value, position = _string(block, position)
                field = (name, value)
                if indexed:
                    self._add(field)
            if field[0] is None or field[1] is None:
                self.unknown += 1
            left -= _field_bytes(field)
            if left >= 0:
                fields.append(field)
            else:
                self.truncated = True
        return fields

    def _entry(self, index: int) -> Field:
        if index < _FIRST_DYNAMIC:
            if not index:
                raise HpackError("index 0")
            return _STATIC[index]
        age = index - _FIRST_DYNAMIC
        if age < len(self._entries):
            return self._entries[-1 - age]
        if self._complete or index > _MAX_INDEX:
            raise HpackError("index beyond the table")
        return _UNKNOWN

    def _add(self, field: Field) -> None:
        size = _field_bytes(field)
        if size > (DEFAULT_TABLE_BYTES if self._size is None else self._size):
            # Section 4.4: an entry too large for the table empties it; unknown if the table's size is.
            self.lose() if self._size is None else self._clear()
            return
        self._entries.append(field)
        self._table_bytes += size
        self._evict()

    def _resize(self, size: int) -> None:
        self._size = size
        if size:
            self._evict()
        else:
            self._clear()

    def _clear(self) -> None:
        self._entries.clear()
        self._table_bytes = 0
        self._complete = True

    def _evict(self) -> None:
        """Drop the oldest entries beyond the size: the sender has none that are older."""
        limit = MAX_TABLE_BYTES if self._size is None else min(self._size, MAX_TABLE_BYTES)
        while self._table_bytes > limit:
            self._table_bytes -= _field_bytes(self._entries.popleft())
            self._complete = limit == self._size


def _field_bytes(field: Field) -> int:
    return _ENTRY_BYTES + len(field[0] or b"") + len(field[1] or b"")


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """Return an integer and the position after it (RFC 7541, section 5.1)."""
    number = block[position] & mask
    position += 1
    if number < mask:
        return number, position
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        byte = block[position]
        position += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise HpackError("integer too long")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    """Return a string literal and the position after it (RFC 7541, section 5.2)."""
    huffman = block[position] & 0x80
    size, start = _integer(block, position, 0x7F)
    stop = start + size
    if stop > len(block):
        raise HpackError("string beyond the block")
    text = block[start:stop]
    if huffman:
        text = _decode_again(text) if size <= _CACHED_BYTES else decode_huffman(text)
    return text, stop


#: The same few paths, agents and content types come again and again; bounded: 1024 strings of 128 bytes.
_decode_again = lru_cache(maxsize=1024)(decode_huffman)
