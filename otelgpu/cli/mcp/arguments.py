"""Types that arguments of several tools have in common, with their bounds. Pure."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

InputName = Annotated[
    str, Meta(min_length=1, max_length=400, description="Name of an input, as list_inputs gives it.")
]
Word = Annotated[str, Meta(max_length=200)]
Offset = Annotated[
    int, Meta(ge=0, le=1_000_000, description="So many rows are passed over: for the next page.")
]
Limit = Annotated[int, Meta(ge=1, le=100, description="At most so many rows.")]
TraceId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="A trace id: 32 hexadecimal digits.")]
SpanId = Annotated[
    str,
    Meta(
        pattern="^([0-9a-f]{16})?$",
        description="A span id: 16 hexadecimal digits; empty: the trace's outline.",
    ),
]
Seconds = Annotated[float, Meta(ge=0, le=1e9, description="Seconds.")]
UnixSeconds = Annotated[float, Meta(ge=0, le=1e11, description="Seconds since 1970.")]
