"""OTLP over gRPC: payload bytes in, one outcome out. Retrying is the sender's business.

Source: https://opentelemetry.io/docs/specs/otlp/#otlpgrpc. Bodies are already serialized, so the generic
call is used and no request message is built.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, Protocol, cast

from otelgpu import __version__
from otelgpu.export.base import ExportError, Outcome, Payload, Refused, Retry, Signal
from otelgpu.export.otlp.compression import Compression
from otelgpu.export.otlp.responses import partial_success, short
from otelgpu.export.otlp.settings import OtlpSettings
from otelgpu.export.otlp.tls import tls_context

USER_AGENT = f"OTel-OTLP-Exporter-otelgpu/{__version__}"

_METHODS = {
    Signal.TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    Signal.METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    Signal.PROFILES: "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
    Signal.LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_RETRYABLE = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
_OPTIONS = (
    ("grpc.primary_user_agent", USER_AGENT),
    ("grpc.max_receive_message_length", 64 * 1024),  # answers are a few bytes
    ("grpc.max_send_message_length", -1),
    # The sender paces the attempts; grpc's own back-off (to 120 s) must not outlast it.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),
)


_FORK_SUPPORT: Final = "GRPC_ENABLE_FORK_SUPPORT"


def import_grpc() -> ModuleType:
    """grpcio, told to leave children of fork() alone; whatever imports it in this program comes by here first.

    Else it starts its threads anew in each child, where they meet descriptors that the child has closed, and abort
    it: the guards of :mod:`otelgpu.kernel`, which never call gRPC, are such children. The variable is read once, at
    the import. Source: https://github.com/grpc/grpc/blob/master/doc/fork_support.md
    """
    with _environment_variable(_FORK_SUPPORT, "0"):
        import grpc
    return cast(ModuleType, grpc)


@contextmanager
def _environment_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _Call(Protocol):
    """What grpcio raises for a failed call: ``grpc.RpcError`` that is also a ``grpc.Call``."""

    def code(self) -> Any: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


class GrpcTransport:
    """A channel to one target, and the Export method of one signal."""

    def __init__(self, settings: OtlpSettings) -> None:
        """Connects lazily. Raises :class:`ExportError` for unusable certificates."""
        self._grpc = grpc = import_grpc()
        self._signal = settings.signal
        self._metadata = settings.headers
        packed = settings.compression is Compression.GZIP
        self._compression = grpc.Compression.Gzip if packed else grpc.Compression.NoCompression
        if settings.secure:
            tls_context(settings)  # grpcio would report of bad files only by failing every call
            self._channel = grpc.secure_channel(
                settings.endpoint, channel_credentials(settings), options=_OPTIONS
            )
        else:
            self._channel = grpc.insecure_channel(settings.endpoint, options=_OPTIONS)
        self._export = self._channel.unary_unary(_METHODS[settings.signal])

    def send(self, payload: Payload, timeout_s: float) -> Outcome:
        """See :class:`~otelgpu.export.base.Transport`."""
        try:
            answer = self._export(
                payload.body, timeout=timeout_s, metadata=self._metadata, compression=self._compression
            )
        except self._grpc.RpcError as error:
            return _failure(cast(_Call, error))
        except ValueError as error:  # the channel was closed meanwhile
            return Retry(None, str(error))
        return partial_success(self._signal, answer)

    def close(self) -> None:
        """See :class:`~otelgpu.export.base.Transport`."""
        self._channel.close()


def channel_credentials(settings: OtlpSettings) -> Any:
    """What a channel with TLS is opened with. Raises :class:`ExportError` for files that cannot be read."""
    grpc = import_grpc()

    def read(path: str | None) -> bytes | None:
        if path is None:
            return None
        with open(path, "rb") as file:
            return file.read()

    try:
        return grpc.ssl_channel_credentials(
            root_certificates=read(settings.certificate),
            private_key=read(settings.client_key),
            certificate_chain=read(settings.client_certificate),
        )
    except OSError as error:
        raise ExportError(f"cannot read a certificate for {settings.shown}: {error}") from error


def _failure(call: _Call) -> Outcome:
    """The specification's table of retryable codes, and its rules for throttling."""
    code = call.code().name
    reason = short(f"{code}: {call.details() or 'no details'}")
    delay_s = _retry_delay_s(call)
    if code in _RETRYABLE:
        return Retry(delay_s or None, reason)
    if code == "RESOURCE_EXHAUSTED" and delay_s is not None:
        return Retry(delay_s or None, reason)
    return Refused(reason)


def _retry_delay_s(call: _Call) -> float | None:
    """``google.rpc.RetryInfo.retry_delay`` from the status details, in seconds; None when not sent."""
    details = next((v for k, v in call.trailing_metadata() or () if k == "grpc-status-details-bin"), None)
    if not isinstance(details, bytes):
        return None
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    try:
        for detail in Status.FromString(details).details:
            info = RetryInfo()
            if detail.Unpack(info):
                return float(max(0.0, info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
    except DecodeError:
        return None
    return None
