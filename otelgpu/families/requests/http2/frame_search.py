r"""Finds frames in the middle of one direction of an HTTP/2 connection: on one found open, and behind a gap.

In: bytes in stream order. Out: a position at which a frame begins. It must not keep bytes, nor look at more places
than it may, whatever the bytes are.

Frames are found where plausible heads follow each other, each where the one before says that its frame ends. Each is
evidence, in points: DATA one, for its head has few fixed bits; a frame of a type that has one length, or a header
block that can be decoded, four; others none. Four more are added where a call begins with a head, for senders write
whole frames, and where the last frame ends with what was moved. :data:`ENOUGH` points are believed: of one head where
a call began with it, else of :data:`MIN_HEADS`; and frames that are all that a call moved. A stream that was ended
cannot go on.

Example: of ``…tail of DATA`` HEADERS DATA HEADERS the three heads are found at the end of the third (4 + 1 + 4
points), and what is returned is where the first begins, or of them the first behind what was looked at before.
"""

from __future__ import annotations

import re
from typing import Final

from otelgpu.families.requests.http2.frame_heads import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    LENGTHS,
    PADDED,
    PRIORITY_BYTES,
    PRIORITY_FLAG,
    block_after,
    plausible,
    starts_preface,
)
from otelgpu.families.requests.http2.hpack_reader import HpackError, HpackReader

ENOUGH: Final = 8
MIN_HEADS: Final = 3
MAX_CHAINS: Final = 16
"""That wait for their next head; those with least evidence go first."""
MAX_LOOKS: Final = 1024
"""Places at which a head is looked at, at once; each is some microseconds."""
LOOKS_PER_NS: Final = 250e-9

_STRONG: Final = 4
_CARRY: Final = HEAD_BYTES - 1
_MAX_BLOCK: Final = 4096  # decoded for a look
_HEAD_LIKE: Final = re.compile(
    rb"(?s)(?=[\x00-\x10]..\x00[\x00\x01\x08\x09][\x00-\x7f]..[\x01-\xff]"  # DATA
    rb"|\x00[\x00-\x40].[\x01-\x08][\x00-\x2d][\x00-\x7f])"
)


class _Chain:
    """Heads that follow each other. ``next``: where the next one begins; ``ended``: streams that may not go on."""

    __slots__ = ("aligned", "block", "ended", "heads", "next", "points")

    def __init__(self, start: int) -> None:
        self.next = start
        self.heads = 0
        self.points = 0
        self.aligned = False  # a call began with one of them
        self.block = 0
        self.ended: set[int] = set()


class FrameSearch:
    """One direction."""

    __slots__ = ("_carry", "_chains", "_from_client", "_kept", "_looks", "_time_ns")

    def __init__(self, *, from_client: bool) -> None:
        self._from_client = from_client
        self._chains: list[_Chain] = []
        self._carry = b""  # the last bytes: a head may begin in them
        self._kept = 0  # the length of what was looked at last, of which the carry is the end
        self._looks: float = MAX_LOOKS
        self._time_ns = 0

    def forget(self) -> None:
        """What follows does not follow on what came before."""
        self._chains.clear()
        self._carry = b""
        self._kept = 0

    def feed(self, data: bytes, time_ns: int, *, fresh: bool) -> int | None:
        """Return where in ``data`` a frame begins; None while that is not known. ``fresh``: a call begins with it."""
        self._looks = min(self._looks + max(time_ns - self._time_ns, 0) * LOOKS_PER_NS, MAX_LOOKS)
        self._time_ns = time_ns
        text, carried = self._carry + data, len(self._carry)
        self._carry = text[-_CARRY:]
        begin = carried if fresh else -1
        waiting, self._chains = self._chains, []
        for chain in waiting:
            chain.next -= self._kept - carried
            found = self._follow(chain, text, carried, begin)
            if found is not None:
                return found
        for match in _HEAD_LIKE.finditer(text):
            if self._looks < 1:
                break
            found = self._follow(_Chain(match.start()), text, carried, begin)
            if found is not None:
                return found
        self._kept = len(text)
        return None

    def _follow(self, chain: _Chain, text: bytes, carried: int, begin: int) -> int | None:
        """Read a chain on; return where its first frame behind the ``carried`` bytes begins, if it is one of frames."""
        start = position = chain.next
        first: int | None = None
        if start == begin:
            chain.aligned = True
            chain.points += _STRONG
        while len(text) - position >= HEAD_BYTES:
            self._looks -= 1
            points = self._points(chain, text, position)
            if points is None:
                return None
            if first is None and position >= carried:
                first = position
            chain.heads += 1
            chain.points += points
            if first is not None and chain.points >= ENOUGH and (chain.aligned or chain.heads >= MIN_HEADS):
                return first - carried
            high, low, *_ = HEAD.unpack_from(text, position)
            position += HEAD_BYTES + (high << 8 | low)
        if (
            first is not None
            and position == len(text)
            and (start == begin or (chain.heads > 1 and chain.points + _STRONG >= ENOUGH))
        ):
            return first - carried
        chain.next = position
        if chain.heads:
            self._chains.append(chain)
            if len(self._chains) > MAX_CHAINS:
                self._chains.remove(min(self._chains, key=lambda each: each.points))
        return None

    def _points(self, chain: _Chain, text: bytes, position: int) -> int | None:
        """How much a head is evidence that frames are here; None: it is none of the chain."""
        high, low, kind, flags, stream = HEAD.unpack_from(text, position)
        length = high << 8 | low
        if not plausible(length, kind, flags, stream, from_client=self._from_client, block=chain.block):
            return None
        chain.block = block_after(kind, flags, stream)
        if kind in LENGTHS:
            return _STRONG
        if kind not in (DATA, HEADERS):
            return 0
        if stream in chain.ended:
            return None
        if flags & END_STREAM:
            chain.ended.add(stream)
        payload = text[position + HEAD_BYTES : position + HEAD_BYTES + min(length, _MAX_BLOCK)]
        if kind == DATA or not flags & END_HEADERS or len(payload) < length:
            return 1
        return _points_of_block(payload, flags)


def sender_of(data: bytes) -> bool | None:
    """Whether the frames that ``data`` begins with are a client's: it has heads of requests. None: no head is there."""
    if starts_preface(data):
        return True
    position = 0
    while len(data) - position >= HEAD_BYTES:
        high, low, kind, flags, _ = HEAD.unpack_from(data, position)
        stop = position + HEAD_BYTES + (high << 8 | low)
        if kind == HEADERS and flags & END_HEADERS and stop <= len(data):
            names = _pseudo_fields(data[position + HEAD_BYTES : stop], flags)
            if names:
                return b":status" not in names
        position = stop
    return None


def _points_of_block(payload: bytes, flags: int) -> int | None:
    """What HEADERS are worth by their whole payload; None: it cannot be decoded."""
    names = _pseudo_fields(payload, flags)
    return None if names is None else _STRONG if names else 1


def _pseudo_fields(payload: bytes, flags: int) -> set[bytes] | None:
    """The names of pseudo-header fields that HEADERS surely have; None: they cannot be decoded."""
    start = stop = 0
    if flags & PADDED:
        start, stop = 1, payload[0] if payload else 1
    if flags & PRIORITY_FLAG:
        start += PRIORITY_BYTES
    if start + stop > len(payload):
        return None
    try:
        fields = HpackReader(late=True).read(payload[start : len(payload) - stop])
    except HpackError:
        return None
    return {name for name, _ in fields if name is not None and name.startswith(b":")}
