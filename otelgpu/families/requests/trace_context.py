"""W3C Trace Context: header values in, a parent or None out. Strict as the specification asks.

Format: https://www.w3.org/TR/trace-context/#traceparent-header. Version 00 has exactly four fields; of a
higher version the first four are read and of its flags only ``sampled``; version ff, zero ids, upper-case
digits and more than one header are invalid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from otelgpu.model.exchange import TraceParent

MAX_TRACESTATE = 512
MAX_MEMBERS = 32

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_MEMBER = re.compile(
    rb"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_SAMPLED = 1


def parse_trace_context(parents: Sequence[bytes], states: Sequence[bytes]) -> TraceParent | None:
    """Return the caller's span from all ``traceparent`` and ``tracestate`` header values of a request.

    The members of all ``tracestate`` headers are kept in order, joined by commas; beyond 512 characters whole
    ones are cut from the end, as the specification allows. More than 32, or one that is no ``key=value`` of
    its grammar (Trace Context level 2, section 3.3.1.3), and nothing is kept: the parent counts all the same.
    """
    if len(parents) != 1:
        return None
    match = _TRACEPARENT.fullmatch(parents[0].strip(b" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest is not None):
        return None
    trace_bytes, span_bytes = bytes.fromhex(trace_id.decode()), bytes.fromhex(span_id.decode())
    if not any(trace_bytes) or not any(span_bytes):
        return None
    known = int(flags, 16) if version == b"00" else int(flags, 16) & _SAMPLED
    return TraceParent(trace_id=trace_bytes, span_id=span_bytes, flags=known, state=_state(states))


def _state(values: Sequence[bytes]) -> str:
    members = [member for value in values for part in value.split(b",") if (member := part.strip(b" \t"))]
    if len(members) > MAX_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return ""
    joined = b",".join(members)
    if len(joined) > MAX_TRACESTATE:
        joined = joined[: max(joined.rfind(b",", 0, MAX_TRACESTATE + 1), 0)]
    return joined.decode("ascii")
