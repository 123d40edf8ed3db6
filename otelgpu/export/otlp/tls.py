"""Certificate files for a server, as OTLP's settings name them, checked and loaded."""

from __future__ import annotations

import ssl
from typing import Protocol

from otelgpu.export.base import ExportError


class Certificates(Protocol):
    """Names of PEM files, and of the server."""

    @property
    def certificate(self) -> str | None:
        """The authorities to trust; None: the system's."""

    @property
    def client_certificate(self) -> str | None:
        """Who asks."""

    @property
    def client_key(self) -> str | None:
        """Its key."""

    @property
    def shown(self) -> str:
        """The server, for messages."""


def tls_context(settings: Certificates) -> ssl.SSLContext:
    """What a connection uses, and what shows at start-up that the files are what they should be.

    Raises :class:`~otelgpu.export.base.ExportError`.
    """
    subject = "the system's authorities"
    try:
        if settings.certificate:
            subject = settings.certificate
        context = ssl.create_default_context(cafile=settings.certificate)
        if settings.client_certificate:
            subject = f"{settings.client_certificate} with its key {settings.client_key}"
            context.load_cert_chain(settings.client_certificate, settings.client_key)
    except (OSError, ssl.SSLError) as error:
        hint = "It must be a PEM file; a key must fit its certificate and have no passphrase."
        raise ExportError(f"cannot use {subject} for TLS to {settings.shown}: {error}", hint) from error
    return context
