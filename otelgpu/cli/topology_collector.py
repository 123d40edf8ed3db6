"""A live Collector as an input of ``otelgpu topology``: what its Prometheus exporter shows, asked each look.

Of calls that is what it has counted since it began, of nodes and devices the newest points: there is no time range.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from otelgpu.cli.collector_access import Access, token_hint
from otelgpu.cli.plain_http import Answer, answer_to
from otelgpu.errors import OtelgpuError
from otelgpu.otlp_json.reader import Reader, Skips
from otelgpu.topology import exposition
from otelgpu.topology.exposed_devices import exposed_devices
from otelgpu.topology.gathering import Facts, Gathering

CLEAR, SECURE = "http://", "https://"
SECONDS: Final = 10.0
"""For connection and answer together."""
LARGEST_BYTES: Final = 128 << 20
"""Of an answer: some 16,000 pairs of services with their histograms."""
_LONGEST_URL: Final = 2048
_URL: Final = re.compile(rf"[\x21-\x7e]{{1,{_LONGEST_URL}}}")
_FORM: Final = "write http://HOST:PORT/metrics or https://…, as the Collector's exporter prometheus serves it"
_NEEDS: Final = "collector-config/gateway.yaml with backends/prometheus-scrape.yaml makes and serves them"
_NEEDS_HOSTS: Final = (
    "RESOURCE_LABELS=true in the Collector's environment has backends/prometheus-scrape.yaml add them"
)


def is_live(given: str) -> bool:
    """Whether an input is a Collector's address, and no file."""
    return given.startswith((CLEAR, SECURE))


def is_secure(given: str) -> bool:
    """Whether a Collector is asked over TLS."""
    return given.startswith(SECURE)


def read_collectors(
    urls: Iterable[str], facts: Facts, skips: Skips, limits: list[str], access: Access
) -> None:
    """What each shows. Raises :class:`OtelgpuError` for one that does not answer, or with something else."""
    for url in urls:
        answer = _answer(url, access)
        if answer.status != HTTPStatus.OK:
            followed = "; no redirection is followed" if 300 <= answer.status < 400 else ""
            hint = token_hint(answer.status, secure=is_secure(url)) or _FORM
            raise OtelgpuError(f"{url} answers {answer.status}{followed}", hint)
        text = answer.body
        if answer.is_cut:
            limits.append(f"{url}: its answer is cut at {len(text)} bytes, of calls not all are there")
            text = text[: text.rfind(b"\n") + 1]  # the last line may lack digits
        now_ns = time.time_ns()
        try:
            found = exposition.take(text, facts.services, skips, url, now_ns)
        except exposition.NoMetrics as error:
            raise OtelgpuError(f"{url} answers with something else than Prometheus' text", _FORM) from error
        exposed = exposed_devices(text, skips, url, now_ns, facts.owners.rack_attribute)
        Gathering(facts).take(Reader(url, skips), exposed.lines)
        facts.beyond += exposed.beyond
        if exposed.ownerless:
            limits.append(
                f"{url} has {exposed.ownerless} series of devices that name no host: {_NEEDS_HOSTS}"
            )
        if not found and not exposed.lines:
            limits.append(f"{url} has no metrics of a service graph or of devices yet: {_NEEDS}")


def _answer(url: str, access: Access) -> Answer:
    """Raises :class:`OtelgpuError`."""
    request, address = _request(url, access)
    tls = access.tls() if is_secure(url) else None
    try:
        return answer_to(request, address, seconds=SECONDS, most_bytes=LARGEST_BYTES, tls=tls)
    except ssl.SSLError as error:
        why, hint = access.refusal(error)
        raise OtelgpuError(f"{url} cannot be asked: {why}", hint) from error
    except OSError as error:
        raise OtelgpuError(f"{url} cannot be asked: {error.strerror or error}") from error


def _request(url: str, access: Access) -> tuple[bytes, tuple[str, int]]:
    """Raises :class:`OtelgpuError` for what is no address of a Collector."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if is_secure(url) else 80)
    except ValueError as error:
        raise OtelgpuError("the address of a Collector cannot be read", _FORM) from error
    host = parts.hostname or ""
    has_host = 0 < len(host) <= 253 and all(
        0 < len(label) <= 63 for label in host.removesuffix(".").split(".")
    )
    if not _URL.fullmatch(url) or not has_host or "@" in parts.netloc or parts.fragment:
        raise OtelgpuError("the address of a Collector cannot be read", _FORM)
    path = (parts.path if parts.path.strip("/") else "/metrics") + (f"?{parts.query}" if parts.query else "")
    lines = [f"GET {path} HTTP/1.0", f"Host: {parts.netloc}", f"Accept: {exposition.CONTENT_TYPE}"]
    lines += access.headers() if is_secure(url) else []
    return "\r\n".join((*lines, "", "")).encode(), (host, port)
