"""How to reach an OTLP endpoint: the standard ``OTEL_EXPORTER_OTLP_*`` variables.

They are read as the specification says.

In: a mapping of variables, a signal, what flags and the configuration file say. Out: complete, checked
:class:`OtlpSettings`. No connection is made here; certificate files are only tried for reading.

Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and, for the types of values,
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/. Where those leave room:

* Protocol: ``http/protobuf``, but ``grpc`` when none is given and the endpoint's port is gRPC's, 4317.
* A gRPC endpoint with a scheme but no port means 4317; its path is not used.
* Timeout is in milliseconds, as the specification says (opentelemetry-python reads seconds); 0, "no limit",
  is taken as :data:`NO_LIMIT_S`, because nothing here may hang for ever.
* An unknown or malformed value is an error that names the variable, where SDKs warn and go on: this is a
  program that its user starts, and can report them.
* Per-signal headers replace the general ones, as every per-signal variable does. Values are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit, urlunsplit

from msgspec import Struct

from otelgpu.export.base import ExportError, Signal
from otelgpu.export.otlp.compression import Compression

NO_LIMIT_S = 300.0
DEFAULT_TIMEOUT_MS = 10_000

_PREFIX = "OTEL_EXPORTER_OTLP_"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_FORBIDDEN_HEADERS = frozenset(
    {"content-type", "content-length", "content-encoding", "host", "te", "user-agent"}
)


class SettingsError(ExportError):
    """A setting cannot be used. ``variable`` names it, as the user wrote it."""

    def __init__(self, variable: str, fault: str, hint: str = "") -> None:
        super().__init__(f"{variable}: {fault}", hint)
        self.variable = variable


class Protocol(StrEnum):
    """How OTLP travels; the values are those of ``OTEL_EXPORTER_OTLP_PROTOCOL``."""

    GRPC = "grpc"
    HTTP_PROTOBUF = "http/protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSettings:
    """Everything a transport needs for one signal."""

    signal: Signal
    protocol: Protocol
    endpoint: str  # HTTP: the complete URL to post to. gRPC: a target, without a scheme
    secure: bool  # TLS
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # lower-case names; may be secrets
    compression: Compression = Compression.NONE
    timeout_s: float = DEFAULT_TIMEOUT_MS / 1000
    certificate: str | None = None  # PEM file of the authorities to trust; None: the system's
    client_key: str | None = None
    client_certificate: str | None = None

    @property
    def shown(self) -> str:
        """The endpoint for messages: without user name, password and query."""
        if self.protocol is Protocol.GRPC:
            return self.endpoint.rpartition("@")[2]
        url = urlsplit(self.endpoint)
        return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))

    @property
    def address(self) -> tuple[str, int] | None:
        """(host, port) to connect to; None for a gRPC target that names neither (``unix:…``, ``xds:…``)."""
        grpc = self.protocol is Protocol.GRPC
        target = self.endpoint
        if grpc:
            target = "//" + target.removeprefix("dns:///").removeprefix("dns:")
        try:
            url = urlsplit(target)
            if not url.hostname or (grpc and (url.path or url.hostname in ("unix", "unix-abstract"))):
                return None
            return url.hostname, url.port or (443 if self.secure or grpc else 80)
        except ValueError:
            return None

    @property
    def in_clear_to(self) -> str:
        """The other host that is sent to without TLS, or "": loopback and Unix sockets are nobody else's to read."""
        if self.secure or self.address is None:
            return ""
        host = self.address[0]
        if host == "localhost" or host.endswith(".localhost"):
            return ""
        with suppress(ValueError):
            if ip_address(host.partition("%")[0]).is_loopback:
                return ""
        return host

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str],
        signal: Signal,
        *,
        endpoint: str | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> OtlpSettings:
        """Settle each option for ``signal``.

        ``endpoint`` comes from a flag, is a base URL like ``OTEL_EXPORTER_OTLP_ENDPOINT``, and wins.
        ``defaults`` uses the same variable names and stands in for what ``environ`` leaves unset, as a
        configuration file does. Raises :class:`SettingsError`.
        """
        look = _Lookup(environ, defaults or {}, signal)
        where = _endpoint(look, endpoint)
        protocol = _protocol(look, where)
        target, secure = _grpc_target(look, where) if protocol is Protocol.GRPC else _http_url(where, signal)
        certificate, key, client = (
            look.file("CERTIFICATE"),
            look.file("CLIENT_KEY"),
            look.file("CLIENT_CERTIFICATE"),
        )
        if (key is None) != (client is None):
            given, missing = (
                ("CLIENT_KEY", "CLIENT_CERTIFICATE") if key else ("CLIENT_CERTIFICATE", "CLIENT_KEY")
            )
            raise SettingsError(
                look.name(given), f"is set, but {_PREFIX}{missing} is not", "Set both, or neither."
            )
        return cls(
            signal=signal,
            protocol=protocol,
            endpoint=target,
            secure=secure,
            headers=_headers(look),
            compression=_compression(look, protocol),
            timeout_s=_timeout(look),
            certificate=certificate,
            client_key=key,
            client_certificate=client,
        )


class _Endpoint(Struct, frozen=True):
    variable: str  # what to name in an error
    text: str
    verbatim: bool  # set for this signal alone: an HTTP URL is used as it is


class _Lookup:
    """Finds an option: per-signal before general, environment before defaults; empty means unset."""

    def __init__(self, environ: Mapping[str, str], defaults: Mapping[str, str], signal: Signal) -> None:
        self._sources = (environ, defaults)
        self._signal = signal.value.upper()

    def find(self, option: str) -> tuple[str, str] | None:
        """The variable that decides, and its value without surrounding blanks."""
        for source in self._sources:
            for name in (self.own(option), _PREFIX + option):
                if value := source.get(name, "").strip():
                    return name, value
        return None

    def own(self, option: str) -> str:
        """The per-signal variable's name."""
        return f"{_PREFIX}{self._signal}_{option}"

    def name(self, option: str) -> str:
        """The variable that decides, else the general one."""
        found = self.find(option)
        return found[0] if found else _PREFIX + option

    def file(self, option: str) -> str | None:
        """A readable file's path, or None when unset."""
        found = self.find(option)
        if not found:
            return None
        name, path = found
        try:
            with open(path, "rb"):
                return path
        except OSError as error:
            hint = "Check the path and its permissions."
            raise SettingsError(name, f"cannot read {path!r}: {error.strerror}", hint) from error


def _endpoint(look: _Lookup, flag: str | None) -> _Endpoint | None:
    if flag:
        path = urlsplit(flag).path.rstrip("/")
        if given := [signal.path for signal in Signal if path.endswith(signal.path)]:
            hint = f"Leave {given[0]} out: it is added for each signal."
            raise SettingsError("--export otlp", "the endpoint is the Collector's base URL", hint)
        return _Endpoint("--export otlp", flag.strip(), False)
    if found := look.find("ENDPOINT"):
        return _Endpoint(*found, found[0] == look.own("ENDPOINT"))
    return None


def _protocol(look: _Lookup, where: _Endpoint | None) -> Protocol:
    name = look.name("PROTOCOL")
    chosen = _choice(look, "PROTOCOL", ("grpc", "http/protobuf", "http/json"))
    if chosen == "http/json":
        raise SettingsError(name, "http/json is not supported", "Use http/protobuf or grpc.")
    if chosen:
        return Protocol(chosen)
    return Protocol.GRPC if where and _port(where) == 4317 else Protocol.HTTP_PROTOBUF


def _split(where: _Endpoint) -> SplitResult:
    """The parsed URL; a text without a scheme is all host and path."""
    has_scheme = where.text.lower().startswith(("http://", "https://"))
    try:
        url = urlsplit(where.text if has_scheme else f"//{where.text}")
        _ = url.port, (url.hostname or "").encode("idna")
        if not (where.text.isascii() and where.text.isprintable() and " " not in where.text):
            raise ValueError("it holds blanks or characters that must be percent-encoded")
    except ValueError as error:
        raise SettingsError(
            where.variable, f"{_without_user(where.text)!r} is not an address: {error}"
        ) from error
    return url


def _port(where: _Endpoint) -> int | None:
    return _split(where).port


def _without_user(text: str) -> str:
    return text.rpartition("@")[2]


def _http_url(where: _Endpoint | None, signal: Signal) -> tuple[str, bool]:
    """The URL for a signal; only a base URL gets ``/v1/…``, and a bare per-signal one gets ``/``."""
    if where is None:
        return f"http://localhost:4318{signal.path}", False
    url = _split(where)
    if url.scheme not in ("http", "https") or not url.hostname:
        example = "Write it as http://HOST:4318 or https://HOST."
        raise SettingsError(
            where.variable, f"{_without_user(where.text)!r} is not an http:// or https:// URL", example
        )
    if url.username is not None:
        hint = "Set OTEL_EXPORTER_OTLP_HEADERS=authorization=Basic%20… instead."
        raise SettingsError(where.variable, "a user name or password in the URL is not sent", hint)
    path = (url.path or "/") if where.verbatim else f"{url.path.rstrip('/')}{signal.path}"
    return urlunsplit((url.scheme, url.netloc, path, url.query, "")), url.scheme == "https"


def _grpc_target(look: _Lookup, where: _Endpoint | None) -> tuple[str, bool]:
    """A target for grpcio and whether TLS is used: the scheme says so, else ``…_INSECURE``."""
    if where is None:
        return "localhost:4317", False
    if where.text.lower().startswith(("http://", "https://")):
        url = _split(where)
        if not url.hostname:
            raise SettingsError(where.variable, f"{where.text!r} names no host")
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        return f"{host}:{url.port or 4317}", url.scheme == "https"
    return where.text, not _boolean(look, "INSECURE")


def _boolean(look: _Lookup, option: str) -> bool:
    return _choice(look, option, ("true", "false")) == "true"


def _choice(look: _Lookup, option: str, allowed: tuple[str, ...]) -> str | None:
    found = look.find(option)
    if not found:
        return None
    name, value = found
    if value.lower() not in allowed:
        raise SettingsError(name, f"{value!r} is not known", f"Use one of: {', '.join(allowed)}.")
    return value.lower()


def _compression(look: _Lookup, protocol: Protocol) -> Compression:
    """gRPC has no zstd: the Collector's server takes it, grpcio's client cannot send it."""
    allowed = tuple(
        each for each in Compression if each is not Compression.ZSTD or protocol is not Protocol.GRPC
    )
    return Compression(_choice(look, "COMPRESSION", allowed) or Compression.NONE)


def _timeout(look: _Lookup) -> float:
    found = look.find("TIMEOUT")
    if not found:
        return DEFAULT_TIMEOUT_MS / 1000
    name, value = found
    if not (value.isascii() and value.isdigit()):
        raise SettingsError(name, f"{value!r} is not a whole number of milliseconds", "10000 is ten seconds.")
    return min(int(value) / 1000, NO_LIMIT_S) or NO_LIMIT_S


def _headers(look: _Lookup) -> tuple[tuple[str, str], ...]:
    """``key1=value1,key2=value2``: W3C Baggage without properties; values are percent-encoded.

    A later header replaces an earlier one of the same name.
    """
    found = look.find("HEADERS")
    if not found:
        return ()
    name, text = found
    headers: dict[str, str] = {}
    for position, member in enumerate(text.split(","), start=1):
        if not member.strip():
            continue
        key, equals, value = (part.strip() for part in member.partition("="))
        if not equals or not _TOKEN.fullmatch(key):
            raise SettingsError(
                name, f"entry {position} is not KEY=VALUE", "Separate entries by commas: a=1,b=2."
            )
        if key.lower() in _FORBIDDEN_HEADERS or key.lower().startswith("grpc-"):
            raise SettingsError(name, f"the header {key!r} belongs to the protocol and cannot be set")
        plain = unquote_to_bytes(value)
        if not all(0x20 <= byte < 0x7F or byte == 0x09 for byte in plain):
            raise SettingsError(name, f"the value of {key!r} holds characters that a header cannot carry")
        headers[key.lower()] = plain.decode("ascii")
    return tuple(headers.items())
