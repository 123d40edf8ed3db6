"""OpenTelemetry's declarative configuration (``OTEL_CONFIG_FILE``) as settings of this program.

In: the file, read, substituted and checked by the SDK's own parser (opentelemetry-configuration). Out: settings by the
names of :class:`~otelgpu.config.Config`; those under ``extensions.otelgpu`` are ours as they stand, and win. Raises
:class:`~otelgpu.config.ConfigError` with the line at fault. What has no meaning here is said once, with its line.

Example: a ``tracer_provider`` with ``otlp_http: {endpoint: http://c:4318/v1/traces}`` becomes ``export: [otlp]`` and
``otlp: {traces_endpoint: http://c:4318/v1/traces, traces_protocol: http/protobuf, endpoint: http://c:4318, …}``.

Source: OpenTelemetry specification, "Declarative configuration"; opentelemetry-configuration, schema 1.1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

from msgspec import Struct, field

from otelgpu.config import ConfigError, check_settings
from otelgpu.model.sampling import PARENT_BASED
from otelgpu.processes.resources import parse_resource_attributes

if TYPE_CHECKING:
    from opentelemetry.configuration import OpenTelemetryConfiguration

_log = logging.getLogger("otelgpu.config")

VARIABLE: Final = "OTEL_CONFIG_FILE"
_Path = tuple[str | int, ...]
_LEVELS: Final = {"trace": "debug", "debug": "debug", "info": "info", "warn": "warning"}  # others: error
_NOT_OURS: Final = ("telemetry.", "process.", "service.instance.id")
"""Of the SDK's resource what is not of every observed process."""
_DEFAULTS: Final = {"http/protobuf": "http://localhost:4318/v1/{}", "grpc": "http://localhost:4317"}
_UNUSED: Final[tuple[_Path, ...]] = (
    ("disabled",),
    ("attribute_limits",),
    ("propagator",),
    ("tracer_provider", "limits"),
    ("tracer_provider", "id_generator"),
    ("meter_provider", "views"),
    ("meter_provider", "exemplar_filter"),
)
"""What the program does not do, and a file that it shares with services may have."""
_OF_PARENTS: Final = (
    "remote_parent_sampled",
    "remote_parent_not_sampled",
    "local_parent_sampled",
    "local_parent_not_sampled",
)
"""Of a parent-based sampler: here a parent's decision is its children's."""
_said: Final[set[str]] = (
    set()
)  # by this program: the file is read again for a reload, and when a batch command ends


def declared_otlp(environ: Mapping[str, str]) -> dict[str, str]:
    """The ``OTEL_EXPORTER_OTLP_*`` variables that the file stands for."""
    otlp: Mapping[str, str] = declared_settings(environ).get("otlp", {})
    return {f"OTEL_EXPORTER_OTLP_{key.upper()}": value for key, value in otlp.items()}


def declared_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the file that ``environ`` names."""
    path = Path(environ[VARIABLE].strip())
    file = _File(path)
    model = file.load()
    made = _Settings(file)
    made.take(model)
    found = made.settings()
    if "resource_attributes" in found:
        found["resource_attributes"] = _less(found["resource_attributes"], environ)
    return {**found, **_extension(model, file)}


def _less(attributes: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Without what the environment says: it wins."""
    said = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    named = {"service.name"} if environ.get("OTEL_SERVICE_NAME") else set()
    return {key: value for key, value in attributes.items() if key not in said.keys() | named}


# -- The file --------------------------------------------------------------------------------------------


class _File:
    """The file, and on which line of it something stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text = ""

    def load(self) -> OpenTelemetryConfiguration:
        """Read by the SDK's parser, which logs a traceback of all that it also raises."""
        try:
            from opentelemetry.configuration import ConfigurationError, load_config_file
        except ImportError as error:
            raise ConfigError(
                f"{VARIABLE} is set, and its parser is not installed",
                hint="pip install 'opentelemetry-sdk[file-configuration]', or unset the variable",
            ) from error
        try:
            self._text = self.path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(f"cannot read {self.path}, which {VARIABLE} names: {reason}") from error
        logger = logging.getLogger("opentelemetry.configuration")
        level = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        try:
            return load_config_file(self.path)
        except ConfigurationError as error:
            raise self._error(error) from error
        finally:
            logger.setLevel(level)

    def _error(self, error: Exception) -> ConfigError:
        """With the line: a schema's error knows its path, YAML's its mark."""
        cause = error.__cause__
        path = getattr(cause, "absolute_path", None)
        mark = getattr(cause, "problem_mark", None)
        if path is not None:
            return self.fault(tuple(path), str(getattr(cause, "message", error)))
        place = f"{self.path}:{mark.line + 1}" if mark is not None else str(self.path)
        return ConfigError(f"{place}: {getattr(cause, 'problem', None) or error}")

    def fault(self, path: _Path, message: str) -> ConfigError:
        """An error at the line of ``path``, of keys and indices."""
        return ConfigError(f"{self.place(path)}: {message}")

    def place(self, path: _Path) -> str:
        """``file:line`` of the innermost part of ``path`` that is there."""
        import yaml

        node, line = yaml.compose(self._text), 1
        for step in path:
            inner = None
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == step:
                        inner, line = value, int(key.start_mark.line) + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                inner = node.value[step]
                line = int(inner.start_mark.line) + 1
            if inner is None:
                break
            node = inner
        return f"{self.path}:{line}"


def _extension(model: OpenTelemetryConfiguration, file: _File) -> dict[str, Any]:
    extensions = model.additional_properties.get("extensions") or {}
    ours = extensions.get("otelgpu") if isinstance(extensions, dict) else None
    if ours is None:
        return {}
    where: _Path = ("extensions", "otelgpu")
    if not isinstance(ours, dict):
        raise file.fault(where, "extensions.otelgpu must hold a mapping of settings")
    check_settings(ours, lambda name: file.place((*where, name)))
    return ours


# -- What it says ----------------------------------------------------------------------------------------


class _Settings(Struct):
    """Settings, as they are found."""

    file: _File
    export: list[str] = field(default_factory=list)
    otlp: dict[str, str] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """Those that the file has."""
        found: dict[str, Any] = dict(self.others)
        if self.export:
            found["export"] = tuple(dict.fromkeys(self.export))
        if self.otlp:
            found["otlp"] = self.otlp
        return found

    def take(self, model: OpenTelemetryConfiguration) -> None:
        """All of the file but the extensions."""
        if model.resource is not None:
            self._take_resource(model.resource)
        for signal, where, exporter in _exporters(model):
            self._take_exporter(signal, where, exporter)
        for number, reader in enumerate(model.meter_provider.readers if model.meter_provider else ()):
            if reader.periodic is None:
                self._say_unused(("meter_provider", "readers", number))
            elif reader.periodic.interval:
                self.others["metric_interval_ms"] = max(reader.periodic.interval, 100)
        if model.log_level is not None:
            self.others["log_level"] = _LEVELS.get(model.log_level.value.rstrip("234"), "error")
        if (sampler := _get(model, ("tracer_provider", "sampler"))) is not None:
            self._take_sampler(sampler, ("tracer_provider", "sampler"))
        for path in _UNUSED:
            if _get(model, path):
                self._say_unused(path)

    def _say_unused(self, path: _Path) -> None:
        line = f"{self.file.place(path)}: {'.'.join(map(str, path))} has no effect on otelgpu"
        if line not in _said:
            _said.add(line)
            _log.warning("%s", line)

    def _take_sampler(self, given: Any, where: _Path, prefix: str = "") -> None:
        """``parent_based`` with its root, and by the name of another kind what is below it."""
        if (parent := given.parent_based) is not None and not prefix:
            where = (*where, "parent_based")
            for name in _OF_PARENTS:
                if getattr(parent, name) is not None:
                    self._say_unused((*where, name))
            if parent.root is None:
                self.others["traces_sampler"] = f"{PARENT_BASED}always_on"
            else:
                self._take_sampler(parent.root, (*where, "root"), PARENT_BASED)
        elif (ratio := given.trace_id_ratio_based) is not None:
            self.others["traces_sampler"] = f"{prefix}traceidratio"
            self.others["traces_sampler_arg"] = 1.0 if ratio.ratio is None else ratio.ratio
        elif kind := next((k for k in ("always_on", "always_off") if getattr(given, k) is not None), ""):
            self.others["traces_sampler"] = prefix + kind
        else:
            self._say_unused(where)

    def _take_resource(self, given: Any) -> None:
        from opentelemetry.configuration import ConfigurationError
        from opentelemetry.configuration.file import create_resource

        try:
            found = dict(create_resource(given).attributes)
        except (ConfigurationError, TypeError, ValueError) as error:
            raise self.file.fault(("resource",), str(error)) from error
        attributes = {}
        for key, value in found.items():
            if key.startswith(_NOT_OURS) or str(value).startswith("unknown_service"):
                continue
            if isinstance(value, list | tuple):
                raise self.file.fault(
                    ("resource", "attributes"), f"{key} is a list, which is not supported here"
                )
            attributes[key] = str(value).lower() if isinstance(value, bool) else str(value)
        if attributes:
            self.others["resource_attributes"] = attributes

    def _take_exporter(self, signal: str, where: _Path, exporter: Any) -> None:
        if exporter.console is not None and signal != "logs":
            self.export.append("console")
        elif exporter.otlp_file_development is not None and signal != "logs":
            stream = exporter.otlp_file_development.output_stream or "stdout"
            if not stream.startswith("file://"):
                raise self.file.fault(
                    where, f"output_stream {stream} is not supported: write file:///PATH, or console"
                )
            self.export.append(f"file:{urlsplit(stream).path}")
        elif exporter.otlp_http is not None:
            encoding = exporter.otlp_http.encoding
            if encoding is not None and encoding.value != "protobuf":
                raise self.file.fault((*where, "otlp_http", "encoding"), f"{encoding.value} is not supported")
            self._take_otlp(signal, (*where, "otlp_http"), exporter.otlp_http, "http/protobuf")
        elif exporter.otlp_grpc is not None:
            self._take_otlp(signal, (*where, "otlp_grpc"), exporter.otlp_grpc, "grpc")
        else:
            self._say_unused(where)

    def _take_otlp(self, signal: str, where: _Path, given: Any, protocol: str) -> None:
        if f"{signal}_endpoint" in self.otlp:
            raise self.file.fault(where, f"a second OTLP exporter of {signal} is not supported")
        if signal != "logs":
            self.export.append("otlp")
        endpoint = given.endpoint or _DEFAULTS[protocol].format(signal)
        options = {"protocol": protocol, "endpoint": endpoint, **_options(given)}
        self.otlp |= {f"{signal}_{key}": value for key, value in options.items()}
        if signal == "traces" or (signal == "metrics" and "endpoint" not in self.otlp):
            # Where the signals go that the file does not mention: profiles, which it has no section for.
            self.otlp |= {**options, "endpoint": _base(endpoint, signal)} if protocol != "grpc" else options


def _base(endpoint: str, signal: str) -> str:
    """The URL below which each signal has its path."""
    url = urlsplit(endpoint)
    path = url.path.rstrip("/")
    path = path.removesuffix(f"/v1/{signal}") if path.endswith(f"/v1/{signal}") else ""
    return urlunsplit((url.scheme, url.netloc, path, "", ""))


def _options(given: Any) -> dict[str, str]:
    """By the names of the standard variables, without their prefix."""
    tls = given.tls
    found = {
        "headers": _headers(given),
        "compression": given.compression,
        "timeout": None if given.timeout is None else str(given.timeout),
        "certificate": tls and tls.ca_file,
        "client_key": tls and tls.key_file,
        "client_certificate": tls and tls.cert_file,
        "insecure": "true" if getattr(tls, "insecure", None) else None,
    }
    return {key: value for key, value in found.items() if value}


def _headers(given: Any) -> str:
    """``key=value,…``, percent-encoded; those of the structure after, and so over, those of the list."""
    listed = [given.headers_list] if given.headers_list else []
    pairs = [
        f"{each.name}={quote(each.value, safe='')}" for each in given.headers or () if each.value is not None
    ]
    return ",".join([*listed, *pairs])


def _exporters(model: OpenTelemetryConfiguration) -> Iterator[tuple[str, _Path, Any]]:
    """(signal, where, exporter) of all that are pushed to."""
    for signal, provider in (("traces", "tracer_provider"), ("logs", "logger_provider")):
        given = getattr(model, provider)
        for number, processor in enumerate(given.processors if given is not None else ()):
            for name in ("batch", "simple"):
                if (one := getattr(processor, name)) is not None:
                    yield signal, (provider, "processors", number, name, "exporter"), one.exporter
    for number, reader in enumerate(model.meter_provider.readers if model.meter_provider else ()):
        if reader.periodic is not None:
            yield (
                "metrics",
                ("meter_provider", "readers", number, "periodic", "exporter"),
                reader.periodic.exporter,
            )


def _get(model: object, path: _Path) -> Any:
    for step in path:
        model = getattr(model, str(step), None)
    return model
