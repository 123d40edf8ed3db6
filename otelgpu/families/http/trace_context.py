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

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_STATE_CHARACTERS = re.compile(rb"[\x20-\x7e\t]*")
_SAMPLED = 1


def parse_trace_context(parents: Sequence[bytes], states: Sequence[bytes]) -> TraceParent | None:
    """Return the caller's span from all ``traceparent`` and ``tracestate`` header values of a request.

    ``tracestate`` is kept verbatim (several headers joined by commas, in order); beyond 512 characters
    whole members are cut from its end, as the specification allows.
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
    joined = b",".join(value.strip(b" \t") for value in values)
    if _STATE_CHARACTERS.fullmatch(joined) is None:
        return ""
    if len(joined) > MAX_TRACESTATE:
        joined = (
            joined[: joined.rfind(b",", 0, MAX_TRACESTATE + 1)]
            if b"," in joined[: MAX_TRACESTATE + 1]
            else b""
        )
    return joined.decode("ascii")
