"""Pods of a node as the API server lists and watches them, by HTTP. Only ``list`` and ``watch`` of pods are asked for.

The watch is how a node hears of its own pods without asking again and again: a thousand nodes cost the server a
thousand open connections that say nothing. Source: Kubernetes API concepts, "Efficient detection of changes",
"Metadata-only fetches".
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from otelgpu.cli.pod_watch.metadata import Metadata, Page, Pod, Seen
from otelgpu.errors import OtelgpuError
from otelgpu.model.text import printable

LARGEST: Final = 16 << 20
"""Bytes of a page of a list; a pod's metadata is of 256 KiB of annotations at most."""
LONGEST_LINE: Final = 2 << 20
_PAGE: Final = 250  # pods
_WATCH_S: Final = 300
_TIMEOUT_S: Final = 30.0
_SHOWN: Final = 200
_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_ONE: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_GONE: Final = 410
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class Unreachable(OtelgpuError):
    """The server did not answer, or not as it should; trying again may help."""


class Expired(Exception):
    """What is watched from is too long ago: list again."""


class Place(Struct, frozen=True, kw_only=True):
    """Where the server is, and who asks: the files are read at each connection, for the token is exchanged hourly."""

    url: str
    token: Path | None = None
    authority: Path | None = None


class ApiServer:
    """Of one cluster, asked for the pods of ``node``. Raises :class:`OtelgpuError` on a ``place`` that is none."""

    def __init__(self, place: Place, node: str) -> None:
        self._place, self._node = place, node
        parts = urlsplit(place.url)
        try:
            port = parts.port
        except ValueError:
            port = None
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
        if not parts.hostname or not is_safe or (port is None and ":" in parts.netloc.rpartition("]")[2]):
            raise OtelgpuError(
                f"{place.url!r} is no address of an API server",
                "write https://HOST:PORT; http only on loopback, where kubectl proxy listens",
            )
        self._secure, self._host = parts.scheme == "https", parts.hostname
        self._port = port or (443 if self._secure else 80)

    def check(self) -> None:
        """Read what is needed to ask. Raises :class:`OtelgpuError` where a file of the place cannot be read."""
        self._connect(_TIMEOUT_S).close()
        self._authorization()

    def list(self) -> tuple[list[Metadata], str]:
        """All pods of the node, and the version that they are of. Raises :class:`Unreachable`."""
        found: list[Metadata] = []
        options: dict[str, Any] = {"limit": _PAGE}
        while True:
            with closing(self._connect(_TIMEOUT_S)) as connection:
                response = self._ask(connection, options, _LIST)
                try:
                    content = response.read(LARGEST + 1)
                except (OSError, HTTPException) as error:
                    raise Unreachable(f"the list of the API server broke off: {error}") from error
            if len(content) > LARGEST:
                raise Unreachable(f"the API server's list has more than {LARGEST:,} bytes")
            try:
                page = msgspec.json.decode(content, type=Page)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise Unreachable(f"the API server's list is none of pods: {error}") from error
            found += [each.metadata for each in page.items]
            if not page.metadata.next:
                return found, page.metadata.resource_version
            options = {"limit": _PAGE, "continue": page.metadata.next}

    def watch(self, version: str) -> Iterator[tuple[str, Metadata]]:
        """What happens from ``version`` on, until the server ends it: ADDED, MODIFIED, DELETED or BOOKMARK.

        Raises :class:`Unreachable`, and :class:`Expired` where it is to be listed again.
        """
        options = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": _WATCH_S,
        }
        with closing(self._connect(_WATCH_S + _TIMEOUT_S)) as connection:
            response = self._ask(connection, options, _ONE)
            while line := self._line(response):
                try:
                    seen = msgspec.json.decode(line, type=Seen)
                    if seen.type == "ERROR":
                        raise Expired  # whatever it is, a new list says how things are
                    pod = msgspec.json.decode(seen.object, type=Pod)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    raise Unreachable(f"the API server's watch says what is no event: {error}") from error
                yield seen.type, pod.metadata

    def _line(self, response: HTTPResponse) -> bytes:
        try:
            line = response.readline(LONGEST_LINE + 1)
        except (OSError, HTTPException, ValueError) as error:
            raise Unreachable(f"the watch of the API server broke off: {error}") from error
        if len(line) > LONGEST_LINE:
            raise Unreachable("the API server's watch has a line without an end")
        return line

    def _connect(self, timeout_s: float) -> HTTPConnection:
        if not self._secure:
            return HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            trusted = ssl.create_default_context(cafile=self._place.authority)
        except OSError as error:
            raise OtelgpuError(
                f"cannot read certificates of {self._place.authority}: {error.strerror or error}"
            ) from error
        return HTTPSConnection(self._host, self._port, timeout=timeout_s, context=trusted)

    def _ask(self, connection: HTTPConnection, options: dict[str, Any], accepted: str) -> HTTPResponse:
        query = urlencode({"fieldSelector": f"spec.nodeName={self._node}", **options})
        headers = {"Accept": accepted, "User-Agent": "otelgpu", **self._authorization()}
        try:
            connection.request("GET", f"/api/v1/pods?{query}", headers=headers)
            response = connection.getresponse()
            if response.status == 200:
                return response
            said = printable(response.read(4096).decode(errors="replace"))[:_SHOWN]
        except (OSError, HTTPException) as error:
            raise Unreachable(f"the API server does not answer: {error}") from error
        except ValueError as error:  # of http.client: a header that is none
            raise OtelgpuError(f"{self._place.token} holds no token") from error
        if response.status == _GONE:
            raise Expired
        hint = {
            401: "the token is that of another cluster, or has expired",
            403: "deploy/kubernetes/switch.yaml has the ClusterRole: list and watch of pods",
        }
        raise Unreachable(
            f"the API server refuses ({response.status}): {said}", hint.get(response.status, "")
        )

    def _authorization(self) -> dict[str, str]:
        if self._place.token is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._place.token.read_text().strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise OtelgpuError(f"cannot read the token {self._place.token}: {error}") from error
