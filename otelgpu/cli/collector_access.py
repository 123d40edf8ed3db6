"""Who a live Collector must be, and who asks it: certificate files and a bearer token, by options and environment.

An exporter's variables (``OTEL_EXPORTER_OTLP_*``) are not read: their secrets are for another server.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from msgspec import Struct

from otelgpu.cli.bearer import LONGEST, bearer_token, checked_token
from otelgpu.cli.headings import option_group
from otelgpu.errors import OtelgpuError
from otelgpu.export.otlp.tls import tls_context

TOKEN: Final = "OTELGPU_COLLECTOR_TOKEN"
"""The variable that has the token: an option would be in the process list."""
OPTIONS: Final = ("certificate", "client_certificate", "client_key", "token_file")
"""Parameters of a command that has :func:`access_options`."""
_Function = TypeVar("_Function", bound=Callable[..., Any])
_WANTS_CERTIFICATE: Final = "CERTIFICATE_REQUIRED"
_OF_CERTIFICATES: Final = ("BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "UNKNOWN_CA")
"""In the alerts of a server that does not take a client's certificate (RFC 8446, section 6.2)."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


class Access(Struct, frozen=True, kw_only=True):
    """To all Collectors that a command asks over TLS. The token's file is read each time: tokens are changed there."""

    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    token_file: Path | None = None
    shown: str = "a Collector"

    def tls(self) -> ssl.SSLContext:
        """It verifies certificate and host name. Raises :class:`OtelgpuError` for files that cannot be used."""
        return tls_context(self)

    def headers(self) -> list[str]:
        """Of a request that goes over TLS. Raises :class:`OtelgpuError`, without the token."""
        token = bearer_token(TOKEN) if self.token_file is None else _token_of(self.token_file)
        return [f"Authorization: Bearer {token}"] if token else []

    def refusal(self, error: ssl.SSLError) -> tuple[str, str]:
        """Why there is no TLS, and what to do."""
        reason = error.reason or ""
        if isinstance(error, ssl.SSLCertVerificationError):
            what = f"its certificate is refused: {error.verify_message}"
            return what, "--ca-file FILE has the authorities that are trusted"
        if _WANTS_CERTIFICATE in reason:
            return "it wants a client's certificate", "give --client-certificate and --client-key"
        if self.client_certificate and any(word in reason for word in _OF_CERTIFICATES):
            return f"it refuses the certificate {self.client_certificate}", ""
        if any(word in reason for word in _NO_TLS):
            return "it does not speak TLS", "write http:// where it has none"
        return f"no TLS: {reason.replace('_', ' ').lower() or 'it broke off'}", ""


def token_hint(status: int, *, secure: bool) -> str:
    """What to do where a server refuses who asks; else ""."""
    if status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ""
    if not secure:
        return "a bearer token is sent over https:// alone"
    return f"a bearer token is that of --token-file, else of the variable {TOKEN}"


_options = option_group(
    "Asking https://",
    click.option(
        "--ca-file",
        "certificate",
        metavar="FILE",
        help="Whose certificate a Collector has, in PEM (default: the system's authorities).",
    ),
    click.option("--client-certificate", metavar="FILE", help="Who asks, in PEM. Needs --client-key."),
    click.option("--client-key", metavar="FILE", help="Its key, without a passphrase."),
    click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help=f"Who asks: a bearer token (default: the variable {TOKEN}).",
    ),
)


def access_options(command: _Function) -> _Function:
    """The options of an :class:`Access`, which the command is given as ``access``."""

    @functools.wraps(command)
    def with_access(*args: Any, **given: Any) -> Any:
        access = Access(**{name: given.pop(name) for name in OPTIONS})
        if (access.client_certificate is None) != (access.client_key is None):
            raise click.UsageError("--client-certificate and --client-key need each other")
        return command(*args, access=access, **given)

    return _options(with_access)  # type: ignore[return-value]


def _token_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST + 2).decode("latin-1").strip()
    except OSError as error:
        raise OtelgpuError(f"cannot read the token {path}: {error.strerror or error}") from error
    return checked_token(text, str(path))
