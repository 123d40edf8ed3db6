"""Valid operations, exchanges and read-out spans, each in one line; any field can be given instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from otelgpu.model.exchange import Endpoint, Exchange, Generation, ThreadAssignment, TraceParent
from otelgpu.model.operations import OperationKind, Operations, operations
from otelgpu.model.resource import Resource, resource
from otelgpu.model.spans import SpanBatch, SpanColumns, Text, in_columns

MS = 1_000_000
LLM = resource({"service.name": "llm"})
CALLER = TraceParent(trace_id=bytes(range(1, 17)), span_id=bytes(range(1, 9)), flags=1, state="v=1")


def calls(rows: int = 1, **columns: Any) -> Operations:
    """Successful launches of one kernel by thread 101 of process 100, 10 ms apart, 1 ms each."""
    made = operations(rows)
    made["start_ns"] = np.arange(1, rows + 1) * 10 * MS
    made["duration_ns"], made["tgid"], made["tid"] = MS, 100, 101
    made["kind"], made["api"], made["returned"] = columns.pop("kind", OperationKind.LAUNCH), 1, 1
    launches = np.flatnonzero(made["kind"] == OperationKind.LAUNCH)  # others have something else there
    made["name"][launches] = 1
    made["grid"][launches] = made["block"][launches] = (4, 2, 1)
    for column, value in columns.items():
        made[column] = value
    return made


def generation(**fields: Any) -> Generation:
    """A streamed chat completion: first content at 30 ms, five tokens as ``usage`` said."""
    return Generation(
        **{
            "operation": "chat",
            "request_model": "tiny",
            "response_model": "tiny-1",
            "response_id": "chatcmpl-1",
            "stream": True,
            "input_tokens": 7,
            "output_tokens": 5,
            "usage_reported": True,
            "finish_reasons": ("stop",),
            "first_content_ns": 30 * MS,
            "last_content_ns": 90 * MS,
            "content_deltas": 5,
        }
        | fields
    )


def exchange(key: int = 1, **fields: Any) -> Exchange:
    """``POST /v1/chat/completions`` answered 200, from 10 to 100 ms, with no generation in it."""
    return Exchange(
        **{
            "key": key,
            "connection": 1,
            "ordinal": 0,
            "tgid": 100,
            "tid": 101,
            "cgroup_id": 7,
            "start_ns": 10 * MS,
            "request_end_ns": 11 * MS,
            "first_byte_ns": 20 * MS,
            "end_ns": 100 * MS,
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_present": False,
            "protocol_version": "1.1",
            "status_code": 200,
            "request_bytes": 300,
            "response_bytes": 900,
            "server": Endpoint(address="127.0.0.1", port=8000),
            "client": Endpoint(address="192.0.2.7", port=40000),
            "user_agent": "test/1",
            "parent": None,
            "error": "",
            "generation": None,
        }
        | fields
    )


def assignment(
    time_ns: int,
    key: int,
    *,
    begins: bool = True,
    tid: int = 101,
    tgid: int = 100,
    loop: bool = False,
    cut: bool = False,
) -> ThreadAssignment:
    return ThreadAssignment(
        time_ns=time_ns, tgid=tgid, tid=tid, exchange=key, begins=begins, loop=loop, cut=cut
    )


@dataclass(frozen=True)
class Row:
    """One span, read out of its columns."""

    resource: Resource
    scope: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str  # "" for a root
    state: str
    flags: int
    start_ns: int
    end_ns: int
    name: str
    status: int
    message: str
    attributes: tuple[tuple[str, Any], ...]  # sorted by key

    def __getitem__(self, key: str) -> Any:
        return dict(self.attributes)[key]

    def get(self, key: str) -> Any:
        return dict(self.attributes).get(key)


def read_out(batches: Iterable[SpanBatch]) -> list[Row]:
    """Every span of the batches, in order."""
    return [_row(batch, i) for batch in in_columns(batches) for i in range(len(batch))]


def _row(c: SpanColumns, i: int) -> Row:
    parent = c.parent_span_id[i].tobytes()
    there = [a for a in c.attributes if a.present is None or a.present[i]]
    return Row(
        resource=c.resource,
        scope=c.scope,
        kind=int(c.kind),
        trace_id=c.trace_id[i].tobytes().hex(),
        span_id=c.span_id[i].tobytes().hex(),
        parent_id=parent.hex() if any(parent) else "",
        state=_entry(c.trace_state, i),
        flags=int(c.flags[i]),
        start_ns=int(c.start_unix_ns[i]),
        end_ns=int(c.end_unix_ns[i]),
        name=_entry(c.name, i),
        status=int(c.status[i]),
        message=_entry(c.status_message, i),
        attributes=tuple(sorted((a.key, _value(a.values, i)) for a in there)),
    )


def _entry(column: Text | None, i: int) -> Any:
    return "" if column is None else column.table[column.codes[i]]


def _value(values: Any, i: int) -> Any:
    return _entry(values, i) if isinstance(values, Text) else values[i].item()


@st.composite
def any_calls(draw: st.DrawFn, max_rows: int = 40) -> Operations:
    """Calls of several threads and kinds, few distinct of each, so that runs and equal calls occur.

    A call is one number, whose digits are its columns: quick to draw, and to shrink.
    """
    digits = np.array(draw(st.lists(st.integers(0, 2**18 - 1), max_size=max_rows)), dtype=np.uint64)

    def digit(base: int) -> np.ndarray:
        nonlocal digits
        digits, value = np.divmod(digits, np.uint64(base))
        return value

    rows = calls(
        len(digits),
        tid=101 + digit(3),
        kind=np.array([1, 3, 6])[digit(3)],
        status=np.where(digit(4), 0, 2),
        start_ns=digit(200),
        duration_ns=np.arange(1, len(digits) + 1) * 10**9,
    )
    name, grid, order = digit(3), np.where(digit(4), 1, 8), np.arange(1, len(digits) + 1)
    launches = np.flatnonzero(rows["kind"] == OperationKind.LAUNCH)
    rows["name"][launches], rows["grid"][launches] = name[launches], grid[launches, None]
    copies = np.flatnonzero(rows["kind"] == OperationKind.COPY)
    rows["size_bytes"][copies] = order[copies] * (2**40 + 1)
    rows["other"][copies] = order[copies]  # lies where the name of a launch does
    return rows
