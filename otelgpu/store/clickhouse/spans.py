"""The table of spans that the Collector's ClickHouse exporter fills, as what was seen of processes. Pure.

In: the table's name. Out: named queries, each of which may use those before it: what :mod:`otelgpu.store.placing`
reads, as :mod:`otelgpu.store.readers.otlp` makes it of the same spans in files. Attributes are texts there, whatever
they were (``opentelemetry-collector-contrib/exporter/clickhouseexporter/internal/sqltemplates/traces_table.sql``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelgpu.engine.names import HOST_TIME
from otelgpu.export.parquet.rows import PEER, SCOPES
from otelgpu.families.nccl import collective_names as nccl
from otelgpu.families.rdma import hardware_errors
from otelgpu.families.steps import names as step_names
from otelgpu.families.steps.training import names as training
from otelgpu.families.user_probes import signals as probes
from otelgpu.model.job import JOB_ID, JOB_RANK, JOB_SIZE
from otelgpu.model.resource import HOSTS
from otelgpu.store.calls import IS_PAIR, UNKNOWN, numbered
from otelgpu.store.tables import SEQUENCE_UNKNOWN

REQUIRED: Final = (
    *("Timestamp", "Duration", "TraceId", "SpanId", "ParentSpanId", "SpanName", "ServiceName", "ScopeName"),
    *("ResourceAttributes", "SpanAttributes"),
)
"""Columns of the table."""

_PROCESS: Final = "hex(sipHash128(host, service, instance))"
_NS: Final = "toUnixTimestamp64Nano(Timestamp)"


def _resource(key: str) -> str:
    return f"ResourceAttributes['{key}']"


def _whole(key: str) -> str:
    """NULL: it is not there, or no integer."""
    return f"toInt64OrNull(SpanAttributes['{key}'])"


def _seconds(key: str) -> str:
    """NULL likewise."""
    return f"toFloat64OrNull(SpanAttributes['{key}'])"


def _or_nothing(key: str) -> str:
    """0 where it is not there; NULL: it is no number."""
    return f"if(mapContains(SpanAttributes, '{key}'), {_seconds(key)}, 0)"


def _spans(table: str, condition: str) -> str:
    first_host = ", ".join(f"nullIf({_resource(key)}, '')" for key in HOSTS)
    scopes = ", ".join(f"'{scope}'" for scope in sorted(SCOPES))
    return f"""
        SELECT
            SpanId AS span, ParentSpanId AS parent, TraceId AS trace, SpanName AS span_name, ScopeName AS scope,
            SpanAttributes, CAST(ServiceName AS String) AS service, coalesce({first_host}, '') AS host,
            coalesce(nullIf({_resource("service.instance.id")}, ''), {_resource("process.pid")}) AS instance,
            {_resource(JOB_RANK)} AS job_rank, {_resource(JOB_SIZE)} AS job_size, {_resource(JOB_ID)} AS job_id,
            {_PROCESS} AS process, {_NS} * 1e-9 AS t0, ({_NS} + toInt64(Duration)) * 1e-9 AS t1
        FROM {table}
        WHERE ScopeName IN ({scopes}){condition}
    """


_STEPS: Final = f"""
    SELECT
        span, process, {_whole(step_names.NUMBER)} AS number, t0, t1,
        {_or_nothing(training.DATA_LOADER_STALL)} AS input_s, {_or_nothing(training.FILE)} AS file_s,
        {_or_nothing(training.HOST_OVERHEAD)} AS host_s, {_seconds(training.DEVICE_COMPUTE)} AS compute_s,
        {_seconds(training.DEVICE_COPY)} AS copy_s, SpanAttributes['{training.SLOWEST_FILE}'] AS slowest_file,
        if(match(trace, '^[0-9a-f]{{32}}$') AND match(span, '^[0-9a-f]{{16}}$'), concat(trace, '-', span), '') AS link,
        {_or_nothing(training.THROTTLED)} AS throttled_s, ifNull({_whole(training.MAJOR_FAULTS)}, 0) AS major_faults,
        ifNull({_whole(training.WRITTEN_BYTES)}, 0) AS written_bytes
    FROM spans
    WHERE scope = '{training.SCOPE}' AND span_name = '{training.STEP}' AND number IS NOT NULL
        AND input_s IS NOT NULL AND file_s IS NOT NULL AND host_s IS NOT NULL
    LIMIT 1 BY span
"""
_SAID: Final = f"""
    SELECT
        span, process, trace, SpanAttributes['{nccl.OPERATION}'] AS operation,
        if(SpanAttributes['{nccl.HASH}'] = '', '{UNKNOWN}', SpanAttributes['{nccl.HASH}']) AS hash,
        assumeNotNull({_whole(nccl.RANK)}) AS rank, ifNull({_whole(PEER)}, -1) AS peer,
        ifNull({_whole(nccl.RANKS)}, 0) AS ranks,
        ifNull({_whole(nccl.SEQUENCE)}, {SEQUENCE_UNKNOWN}) AS number, t0, {_seconds(nccl.GPU_TIME)} AS device_s,
        ifNull({_whole(nccl.BYTES)}, 0) AS bytes
    FROM spans
    WHERE scope = '{nccl.SCOPE}' AND SpanAttributes['{nccl.PHASE}'] IN ('enqueue', '{nccl.RUN}') AND operation <> ''
        AND {_whole(nccl.RANK)} IS NOT NULL AND NOT ({IS_PAIR} AND {_whole(PEER)} IS NULL)
    LIMIT 1 BY span
"""
_WAITS: Final = f"""
    SELECT if(SpanAttributes['{nccl.PHASE}'] = '{nccl.RUN}', span, parent) AS call, t1 FROM spans
    WHERE scope = '{nccl.SCOPE}' AND SpanAttributes['{nccl.PHASE}'] IN ('wait', '{nccl.RUN}')
"""
_PROBES: Final = f"""
    SELECT
        span, process, t0, t1, SpanAttributes['{probes.NAME}'] AS name,
        if(mapContains(SpanAttributes, '{HOST_TIME}'), {_seconds(HOST_TIME)}, t1 - t0) AS seconds
    FROM spans
    WHERE scope = '{probes.SCOPE}' AND mapContains(SpanAttributes, '{probes.NAME}') AND seconds IS NOT NULL
    LIMIT 1 BY span
"""
_ERRORS: Final = f"""
    SELECT
        span, host, t0, t1, {_seconds(hardware_errors.CODE)} AS number,
        concat(CAST(span_name AS String), ': ', SpanAttributes['{hardware_errors.MESSAGE}']) AS text
    FROM spans
    WHERE scope = '{hardware_errors.SCOPE}' AND {_whole(hardware_errors.CODE)} IS NOT NULL
    LIMIT 1 BY span
"""

PROCESSES: Final = """
    SELECT
        process, min(host) AS its_host, min(service) AS its_service,
        max(toInt64OrDefault(job_rank, toInt64(-1))) AS rank, max(toInt64OrDefault(job_size, toInt64(-1))) AS size,
        max(job_id) AS its_job
    FROM spans GROUP BY process ORDER BY min(t0), process
"""
"""Whose spans they are, the earliest first."""

_WANTED: Final = {
    "otlp_steps": f"scope = '{training.SCOPE}' AND span_name = '{training.STEP}'",
    "otlp_calls": f"scope = '{nccl.SCOPE}' AND SpanAttributes['{nccl.PHASE}'] IN ('enqueue', '{nccl.RUN}')",
    "otlp_probes": f"scope = '{probes.SCOPE}'",
    "otlp_errors": f"scope = '{hardware_errors.SCOPE}'",
}
_WHOLE: Final = (f"({wanted} AND span IN (SELECT span FROM {table}))" for table, wanted in _WANTED.items())
LEFT_OUT: Final = f"""
    SELECT countIf(NOT whole) AS incomplete, countIf(whole) - uniqExactIf(span, whole) AS repeated
    FROM (
        SELECT span, {" OR ".join(_WHOLE)} AS whole
        FROM spans
        WHERE {" OR ".join(f"({wanted})" for wanted in _WANTED.values())}
    )
"""
"""How many spans lack what is needed, and how many are there once more."""


def tables(table: str, condition: str) -> Mapping[str, str]:
    """By their names. ``condition``: of rows, from " AND " on."""
    return {
        "spans": _spans(table, condition),
        "otlp_steps": _STEPS,
        "otlp_calls": numbered(_SAID),
        "otlp_waits": _WAITS,
        "otlp_probes": _PROBES,
        "otlp_errors": _ERRORS,
    }
