"""What OTLP servers answer: ``Export*ServiceResponse`` and ``google.rpc.Status`` bytes into outcomes. Pure.

Source: opentelemetry/proto/collector/*/v1/*_service.proto; https://opentelemetry.io/docs/specs/otlp/#partial-success.
"""

from __future__ import annotations

import sys

from otelgpu.export.base import Accepted, Signal


def partial_success(signal: Signal, body: bytes) -> Accepted:
    """Read a success response. One that cannot be read still means success: the status said so."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        if signal is Signal.TRACES:
            traces = ExportTraceServiceResponse.FromString(body).partial_success
            return Accepted(max(0, traces.rejected_spans), short(traces.error_message))
        if signal is Signal.PROFILES:
            from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
                ExportProfilesServiceResponse,
            )

            profiles = ExportProfilesServiceResponse.FromString(body).partial_success
            # Each payload is one profile: rejected is all of it, or none.
            rejected = sys.maxsize if profiles.rejected_profiles > 0 else 0
            return Accepted(rejected, short(profiles.error_message))
        if signal is Signal.LOGS:
            from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

            logs = ExportLogsServiceResponse.FromString(body).partial_success
            return Accepted(max(0, logs.rejected_log_records), short(logs.error_message))
        metrics = ExportMetricsServiceResponse.FromString(body).partial_success
        return Accepted(max(0, metrics.rejected_data_points), short(metrics.error_message))
    except DecodeError:
        return Accepted(0, "the server's answer is not an OTLP response")


def status_message(body: bytes) -> str:
    """``google.rpc.Status.message`` of a failure's body, or "" when it is something else."""
    from google.protobuf.message import DecodeError
    from google.rpc.status_pb2 import Status

    try:
        return short(Status.FromString(body).message)
    except DecodeError:
        return ""


def short(text: str, limit: int = 300) -> str:
    """``text``, which a server sent, as one printable line for a log, of at most ``limit`` characters."""
    line = "".join(c if c.isprintable() else " " for c in text[: limit + 1]).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"
