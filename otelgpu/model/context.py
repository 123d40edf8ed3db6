"""Where a span stands: the ids that its children name as their parent."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Context(NamedTuple):
    """A span's own ids and the flags of its trace (W3C: bit 0 is "sampled")."""

    trace_id: bytes  # 16
    span_id: bytes  # 8
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether the trace is recorded."""
        return bool(self.flags & 1)


NO_CONTEXT: Final = Context(bytes(16), bytes(8), 0)
NO_SPAN: Final = bytes(8)
SAMPLED: Final = 1


class Unsettled(Enum):
    """An answer that is not known yet: ask again later."""

    UNSETTLED = "unsettled"


UNSETTLED: Final = Unsettled.UNSETTLED
