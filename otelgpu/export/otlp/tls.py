"""Certificate files of an OTLP endpoint, checked and loaded."""

from __future__ import annotations

import ssl

from otelgpu.export.base import ExportError
from otelgpu.export.otlp.settings import OtlpSettings


def tls_context(settings: OtlpSettings) -> ssl.SSLContext:
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
