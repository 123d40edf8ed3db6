"""Spans in columns → rows of the tables that ranks are compared by: steps, calls, waits, probes, evidence. Pure.

What a span says is not judged here, and no rank or common number of a step is derived: a host alone cannot know it
(``otelgpu.store`` does, from all hosts' tables). The columns are documented in docs/reference/tables.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine.names import HOST_TIME
from otelgpu.families.nccl import collective_names as nccl
from otelgpu.families.rdma import hardware_errors
from otelgpu.families.steps import names as step_names
from otelgpu.families.steps.training import names as training
from otelgpu.families.user_probes import signals as probes
from otelgpu.model.job import JOB_ID, JOB_RANK, JOB_SIZE
from otelgpu.model.resource import HOSTS, Resource
from otelgpu.model.spans import SpanColumns, Text

Columns = dict[str, npt.NDArray[Any]]
Flags = npt.NDArray[np.bool_]

SCOPES: Final = frozenset({training.SCOPE, nccl.SCOPE, hardware_errors.SCOPE, probes.SCOPE})
PEER: Final = "nccl.peer"
XID: Final = "xid"
"""Evidence. Its value is the number of the Xid or SXid."""
PROBE: Final = "otelgpu.probe"
"""Evidence. Its value is the seconds in what a user's own probe is on."""


class Rows(Struct, frozen=True):
    """Columns of a table, of one length."""

    table: str
    columns: Columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class _Spans:
    """Values of attributes, in columns."""

    def __init__(self, spans: SpanColumns) -> None:
        self.spans = spans
        self._attributes = {attribute.key: attribute for attribute in spans.attributes}

    def texts(self, key: str) -> npt.NDArray[np.object_]:
        """Empty where it is not there."""
        found = np.full(len(self.spans), "", dtype=object)
        attribute = self._attributes.get(key)
        if attribute is None or not isinstance(attribute.values, Text):
            return found
        table = np.array([str(each) for each in attribute.values.table], dtype=object)
        here = slice(None) if attribute.present is None else attribute.present
        found[here] = table[attribute.values.codes[here]]
        return found

    def numbers(self, key: str, absent: float) -> npt.NDArray[Any]:
        """Integers where ``absent`` is one, else floats."""
        found = np.full(len(self.spans), absent)
        attribute = self._attributes.get(key)
        if attribute is None or isinstance(attribute.values, Text):
            return found
        here = slice(None) if attribute.present is None else attribute.present
        found[here] = attribute.values[here]
        return found

    def has(self, key: str) -> Flags:
        """Whether it is there, as a number."""
        attribute = self._attributes.get(key)
        if attribute is None or isinstance(attribute.values, Text):
            return np.zeros(len(self.spans), dtype=np.bool_)
        return np.ones(len(self.spans), dtype=np.bool_) if attribute.present is None else attribute.present

    def named(self) -> npt.NDArray[np.object_]:
        names = self.spans.name
        return np.array([str(each) for each in names.table], dtype=object)[names.codes]

    def times(self) -> Columns:
        return {"t0": self.spans.start_unix_ns * 1e-9, "t1": self.spans.end_unix_ns * 1e-9}


def rows_of(spans: SpanColumns) -> list[Rows]:
    """The tables that have rows of these spans, which are of one of `SCOPES`.

    A span that lacks what every row has is none: a call that failed has no rank. Raises ValueError and IndexError for
    columns that break their contract.
    """
    read = _Spans(spans)
    found = {
        training.SCOPE: _steps,
        nccl.SCOPE: _calls,
        hardware_errors.SCOPE: _errors,
        probes.SCOPE: _probes,
    }[spans.scope](read)
    return [each for each in found if len(each)]


def _steps(read: _Spans) -> list[Rows]:
    is_step = (read.named() == training.STEP) & read.has(step_names.NUMBER)
    columns = _process(read.spans.resource, len(read.spans)) | {
        "span": _identities(read.spans.span_id),
        "number": read.numbers(step_names.NUMBER, 0),
        **read.times(),
        "input_s": read.numbers(training.DATA_LOADER_STALL, 0.0),
        "file_s": read.numbers(training.FILE, 0.0),
        "host_s": read.numbers(training.HOST_OVERHEAD, 0.0),
        "compute_s": read.numbers(training.DEVICE_COMPUTE, np.nan),
        "copy_s": read.numbers(training.DEVICE_COPY, np.nan),
        "slowest_file": read.texts(training.SLOWEST_FILE),
        "link": _links(read.spans),
        "throttled_s": read.numbers(training.THROTTLED, 0.0),
        "major_faults": read.numbers(training.MAJOR_FAULTS, 0),
        "written_bytes": read.numbers(training.WRITTEN_BYTES, 0),
    }
    return [_table("steps", columns, is_step)]


def _calls(read: _Spans) -> list[Rows]:
    phase = read.texts(nccl.PHASE)
    operation = read.texts(nccl.OPERATION)
    runs = phase == nccl.RUN
    is_call = ((phase == "enqueue") | runs) & (operation != "") & read.has(nccl.RANK)
    halves = np.ascontiguousarray(read.spans.trace_id).view(">u8").astype(np.uint64)
    columns = _process(read.spans.resource, len(read.spans)) | {
        "span": _identities(read.spans.span_id),
        "trace": halves[:, 0] ^ halves[:, 1],
        "operation": operation,
        "hash": read.texts(nccl.HASH),
        "rank": read.numbers(nccl.RANK, 0),
        "ranks": read.numbers(nccl.RANKS, 0),
        "peer": read.numbers(PEER, -1),
        "number": read.numbers(nccl.SEQUENCE, -1),
        "t0": read.times()["t0"],
        "device_s": read.numbers(nccl.GPU_TIME, np.nan),
        "bytes": read.numbers(nccl.BYTES, 0),
    }
    # A call that runs its collective is the wait for it.
    called = np.where(runs, _identities(read.spans.span_id), _identities(read.spans.parent_span_id))
    waits = {"call": called, "ended": read.times()["t1"]}
    return [_table("calls", columns, is_call), _table("waits", waits, (phase == "wait") | (runs & is_call))]


def _errors(read: _Spans) -> list[Rows]:
    rows = len(read.spans)
    names, messages = read.named(), read.texts(hardware_errors.MESSAGE)
    columns = {
        "rank": np.full(rows, -1),
        "host": np.full(rows, _host(read.spans.resource), dtype=object),
        **read.times(),
        "name": np.full(rows, XID, dtype=object),
        "value": read.numbers(hardware_errors.CODE, 0).astype(np.float64),
        "text": np.array(
            [f"{name}: {said}" for name, said in zip(names, messages, strict=True)], dtype=object
        ),
    }
    return [_table("evidence", columns, read.has(hardware_errors.CODE))]


def _probes(read: _Spans) -> list[Rows]:
    """Of a user's own; the seconds are of all hits that were folded into one."""
    times, name = read.times(), read.texts(probes.NAME)
    columns = _process(read.spans.resource, len(read.spans)) | {
        "span": _identities(read.spans.span_id),
        **times,
        "name": name,
        "seconds": np.where(read.has(HOST_TIME), read.numbers(HOST_TIME, 0.0), times["t1"] - times["t0"]),
    }
    return [_table("probes", columns, name != "")]


def _table(name: str, columns: Columns, wanted: Flags) -> Rows:
    return Rows(name, {key: values[wanted] for key, values in columns.items()})


def _process(resource: Resource, rows: int) -> Columns:
    """Whose spans they are, in every row: a file is understood by itself."""
    instance = resource.get("service.instance.id") or resource.get("process.pid")
    texts: Mapping[str, object] = {
        "host": _host(resource),
        "service": resource.get("service.name"),
        "instance": instance,
        "job_id": resource.get(JOB_ID),
    }
    found: Columns = {
        key: np.full(rows, "" if value is None else str(value), dtype=object) for key, value in texts.items()
    }
    for key, attribute in (("job_rank", JOB_RANK), ("job_size", JOB_SIZE)):
        value = resource.get(attribute)
        found[key] = np.full(rows, value if isinstance(value, int) else -1)
    return found


def _host(resource: Resource) -> str:
    return next((str(name) for name in map(resource.get, HOSTS) if name), "")


def _links(spans: SpanColumns) -> npt.NDArray[np.object_]:
    """As of ``step_spans``."""
    ids = zip(spans.trace_id, spans.span_id, strict=True)
    return np.array([f"{trace.tobytes().hex()}-{span.tobytes().hex()}" for trace, span in ids], dtype=object)


def _identities(found: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """As numbers, of the most significant byte first."""
    return np.ascontiguousarray(found).view(">u8").ravel().astype(np.uint64)
