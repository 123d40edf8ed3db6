"""Whether an OTLP endpoint accepts connections, for ``otelgpu check``. Nothing is sent."""

from __future__ import annotations

import socket
import threading
from typing import Final
from urllib.request import getproxies, proxy_bypass

from otelgpu.export.destination import Trial
from otelgpu.export.otlp.settings import OtlpSettings

CONNECT_SECONDS: Final = 1.0


def try_endpoint(settings: OtlpSettings, *, connects: bool) -> Trial:
    """Connect, where it is known to what, and give the connection up."""
    how = " (TLS)" if settings.secure else ", not encrypted" if settings.in_clear_to else ""
    if settings.address is None or not connects:
        return Trial(None, f"{settings.protocol.value} to {settings.shown}{how}: not tried")
    host, port = settings.address
    what = f"{settings.protocol.value} to {host} port {port}{how}"
    scheme = "https" if settings.secure else "http"
    if getproxies().get(scheme) and not proxy_bypass(host):
        return Trial(None, f"{what}: not tried, a proxy is set ({scheme}_proxy)")
    error = connect(host, port)
    if not error:
        return Trial(True, f"{what}: accepts connections")
    remedy = (
        "start the Collector or correct the endpoint; until then a session retries and counts what is lost"
    )
    return Trial(False, f"{what}: no connection: {error}", remedy, required=False)


def connect(host: str, port: int) -> str:
    """What stops a TCP connection, or "". The name's look-up has no time limit of its own, so a thread has it."""
    said: list[str] = []

    def attempt() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            said.append("")
        except (OSError, UnicodeError) as error:
            said.append(getattr(error, "strerror", None) or str(error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(3 * CONNECT_SECONDS)
    return said[0] if said else "the host's name or address does not answer in time"
