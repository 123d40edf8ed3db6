"""A server of the job is asked what it serves: the one place where ``diagnose`` sends something to the observed.

Only where ``--ask-server`` has its address, only on this host's loopback, and with one request that a client may send
at any time: ``GET /v1/models``. A server that wants a key has it from :data:`KEY` as a bearer token (RFC 6750); it goes
there and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import click

from otelgpu.cli.bearer import bearer_token
from otelgpu.cli.plain_http import answer_to
from otelgpu.diagnose.utilization.model_places import NamedModel
from otelgpu.diagnose.utilization.served_models import PATH, served_models

KEY: Final = "OTELGPU_SERVER_KEY"
"""The variable that has the key: an option would be in the process list."""
SECONDS: Final = 1.0
"""For connection and answer together."""
LARGEST_BYTES: Final = 1 << 18
"""Of an answer with its headers."""
_PREFIX: Final = re.compile(r"[\w.~/-]{0,256}", re.ASCII)


class AskedServer:
    """``models``: what it said; ``problem``: why there are none yet."""

    def __init__(self, url: str, key: str = "") -> None:
        """``key``: a header's value, which is sent with the request; empty: none is.

        Raises ValueError, with what is wrong, of what is no address of a server on loopback.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError as error:
            raise ValueError(f"no URL: {error}") from error
        host, prefix = parts.hostname or "", parts.path.rstrip("/").removesuffix(PATH).removesuffix("/v1")
        if parts.scheme != "http" or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("give it as http://127.0.0.1:8000")
        if not _PREFIX.fullmatch(prefix):
            raise ValueError("its path has other characters than letters, digits and /._~-")
        if not _is_loopback(host):
            raise ValueError("only a server on this host's loopback is asked: http://127.0.0.1:8000")
        self.url = url
        self.models: Sequence[NamedModel] = ()
        self.problem = "it was not asked"
        self._address = "127.0.0.1" if host == "localhost" else host, port
        lines = [f"GET {prefix}{PATH} HTTP/1.0", f"Host: {parts.netloc}", "Accept: application/json"]
        lines += [f"Authorization: Bearer {key}"] if key else []
        self._request = "\r\n".join((*lines, "", "")).encode()
        self._denied = "it refuses the key" if key else f"it asks for a key: set {KEY}"

    def ask(self) -> None:
        """Once, for at most :data:`SECONDS`; what goes wrong is the problem."""
        try:
            answer = answer_to(self._request, self._address, seconds=SECONDS, most_bytes=LARGEST_BYTES)
        except OSError as error:
            self.problem = error.strerror or str(error)
            return
        if answer.status != 200:
            denied = f": {self._denied}" if answer.status in (401, 403) else ""
            self.problem = f"{PATH} answers {answer.status}{denied}"
        elif models := served_models(answer.body):
            self.models = models
        else:
            self.problem = f"{PATH} names no model" + (", its answer is cut" if answer.is_cut else "")


def asked_server(_context: click.Context, _parameter: click.Parameter, url: str | None) -> AskedServer | None:
    """Of an option, with the environment's key. Raises :class:`click.BadParameter`, and `OtelgpuError` of the key."""
    try:
        return AskedServer(url, bearer_token(KEY)) if url is not None else None
    except ValueError as error:
        raise click.BadParameter(f"{url!r}: {error}") from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
