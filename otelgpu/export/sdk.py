"""OpenTelemetry's own SDK, for what this program says of itself at a low rate: metrics and events of batch commands.

In: the standard variables. Out: :class:`Providers`, a MeterProvider and a LoggerProvider that send over OTLP when they
are delivered, or None where no endpoint is configured. What runs at the rate of kernels never comes here (DESIGN.md 7).

The SDK and its exporters are imported when they are used: half a second and 30 MiB (gRPC) that the agent and a command
without an endpoint do not pay. An endpoint that is down costs at most the time that :meth:`Providers.deliver` is given,
and is neither an error nor a line on standard error.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from otelgpu import __version__
from otelgpu.export.base import ExportError, Signal
from otelgpu.export.otlp.compression import Compression as OtlpCompression
from otelgpu.export.otlp.grpc import import_grpc
from otelgpu.export.otlp.settings import OtlpSettings, Protocol

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

DELIVER_SECONDS: Final = 2.0
SCOPE: Final = "otelgpu"
DETECTORS: Final = "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"
_USUAL_DETECTORS: Final = ("process", "os", "host")
_NOT_REPORTED: Final = ("process.command_args", "process.command_line")
"""What a program was started with may hold a secret (``otelgpu profile -- serve --api-key …``)."""
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_PREFIX: Final = "OTEL_EXPORTER_OTLP_"


def wanted_signals(environ: Mapping[str, str], declared: Mapping[str, str] = _NOTHING) -> list[Signal]:
    """Which of metrics and logs have somewhere to go. None of them when OTEL_SDK_DISABLED is true.

    ``declared``: the same variables, as OTEL_CONFIG_FILE has them; only those of one signal count.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    return [signal for signal in (Signal.METRICS, Signal.LOGS) if _has_endpoint(environ, declared, signal)]


def _has_endpoint(environ: Mapping[str, str], declared: Mapping[str, str], signal: Signal) -> bool:
    if environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower() not in ("", "otlp"):
        return False
    own = f"{_PREFIX}{signal.upper()}_ENDPOINT"
    return own in declared or any(environ.get(name, "").strip() for name in (f"{_PREFIX}ENDPOINT", own))


def detected_attributes(names: Sequence[str]) -> dict[str, Any]:
    """What the SDK's resource detectors of these names find out; ``*``: all that are installed.

    They are entry points; an unknown name finds nothing, as in the SDK.
    """
    from importlib.metadata import entry_points

    from opentelemetry.sdk.resources import Resource, get_aggregated_resources

    known = entry_points(group="opentelemetry_resource_detector")
    found = [each.load()() for each in known if each.name in names or "*" in names]
    attributes = get_aggregated_resources(found, Resource.get_empty()).attributes
    return {key: value for key, value in attributes.items() if key not in _NOT_REPORTED}


def asked_detectors(environ: Mapping[str, str]) -> list[str]:
    """The names in :data:`DETECTORS`."""
    return [name.strip() for name in environ.get(DETECTORS, "").split(",") if name.strip()]


def own_resource(environ: Mapping[str, str]) -> Resource:
    """Of this program: what detectors find, its name, and over both what the two resource variables say."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.version import __version__ as sdk_version

    named = {
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": sdk_version,
        "service.name": "otelgpu",
        "service.version": __version__,
        "telemetry.distro.name": "otelgpu",
        "telemetry.distro.version": __version__,
    }
    found = detected_attributes(asked_detectors(environ) or _USUAL_DETECTORS)
    return Resource({**found, **named}).merge(OTELResourceDetector().detect())


class Providers(Struct, frozen=True, kw_only=True):
    """What to report through; either may be missing. Nothing is sent before :meth:`deliver`."""

    meters: MeterProvider | None
    loggers: LoggerProvider | None

    @property
    def meter(self) -> Meter | None:
        """For metrics of this program."""
        return self.meters.get_meter(SCOPE, __version__) if self.meters is not None else None

    @property
    def logger(self) -> Logger | None:
        """For events."""
        return self.loggers.get_logger(SCOPE, __version__) if self.loggers is not None else None

    def deliver(self, timeout_s: float = DELIVER_SECONDS) -> bool:
        """Send what there is, and end; whether that was done in time. Never raises, and never takes longer."""
        thread = threading.Thread(target=self._shut_down, name="otelgpu-sdk", daemon=True)
        thread.start()
        thread.join(timeout_s)
        return not thread.is_alive()

    def _shut_down(self) -> None:
        for provider in (self.meters, self.loggers):
            if provider is not None:
                try:
                    provider.force_flush(round(DELIVER_SECONDS * 1e3))
                    provider.shutdown()
                except Exception:  # the SDK raises that itself, of whatever a reader or an exporter met
                    logging.getLogger("otelgpu.export").debug("own telemetry was not sent", exc_info=True)


def open_providers(environ: Mapping[str, str], declared: Mapping[str, str] = _NOTHING) -> Providers | None:
    """Providers as the standard variables have them; None where nothing is to be sent, or cannot be."""
    signals = wanted_signals(environ, declared)
    if not signals:
        return None
    _be_silent()
    try:
        settings = {
            signal: OtlpSettings.from_environment(environ, signal, defaults=declared) for signal in signals
        }
        resource = own_resource(environ)
        return Providers(
            meters=_meters(settings[Signal.METRICS], resource) if Signal.METRICS in settings else None,
            loggers=_loggers(settings[Signal.LOGS], resource) if Signal.LOGS in settings else None,
        )
    except (ExportError, ImportError, OSError, ValueError) as error:
        logging.getLogger("otelgpu.export").debug("no telemetry of this command: %s", error)
        return None


def _be_silent() -> None:
    """An endpoint that is down is no news of the command that was asked for."""
    if not logging.getLogger("otelgpu").isEnabledFor(logging.DEBUG):
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)


def _meters(settings: OtlpSettings, resource: Resource) -> MeterProvider:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter: Any
    if settings.protocol is Protocol.GRPC:
        import_grpc()
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        exporter = GrpcExporter(**_grpc(settings))
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

        exporter = HttpExporter(**_http(settings))
    # Once, at the end: no thread.
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)
    return MeterProvider([reader], resource=resource, shutdown_on_exit=False)


def _loggers(settings: OtlpSettings, resource: Resource) -> LoggerProvider:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    exporter: Any
    if settings.protocol is Protocol.GRPC:
        import_grpc()
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter

        exporter = GrpcExporter(**_grpc(settings))
    else:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpExporter

        exporter = HttpExporter(**_http(settings))
    provider = LoggerProvider(resource, shutdown_on_exit=False)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    return provider


def _grpc(settings: OtlpSettings) -> dict[str, Any]:
    """Every argument that the exporter would else read of the environment, by rules that differ from ours."""
    from otelgpu.export.otlp.grpc import channel_credentials

    grpc = import_grpc()
    packed = settings.compression is OtlpCompression.GZIP
    compression = grpc.Compression.Gzip if packed else grpc.Compression.NoCompression
    return {
        "endpoint": settings.endpoint,
        "insecure": not settings.secure,
        "credentials": channel_credentials(settings) if settings.secure else None,
        "headers": settings.headers,
        "timeout": min(settings.timeout_s, DELIVER_SECONDS),
        "compression": compression,
    }


def _http(settings: OtlpSettings) -> dict[str, Any]:
    from opentelemetry.exporter.otlp.proto.http import Compression

    packed = settings.compression is not OtlpCompression.NONE  # zstd, which it does not know: gzip
    return {
        "endpoint": settings.endpoint,
        "certificate_file": settings.certificate,
        "client_key_file": settings.client_key,
        "client_certificate_file": settings.client_certificate,
        "headers": dict(settings.headers),
        "timeout": min(settings.timeout_s, DELIVER_SECONDS),
        "compression": Compression.Gzip if packed else Compression.NoCompression,
    }
