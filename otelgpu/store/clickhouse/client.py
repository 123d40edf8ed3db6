"""Questions to ClickHouse over its HTTP interface, and what goes wrong in words.

A question waits for its whole answer (``wait_end_of_query``), so that an error has a status of its own. Nothing that
stays is written there, and no setting is changed: a user who may only read is enough.
"""

from __future__ import annotations

import ssl
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final
from urllib.parse import urlencode
from uuid import uuid4

from otelgpu.model.text import printable
from otelgpu.store.clickhouse import native
from otelgpu.store.clickhouse.address import PASSWORD, USER, Address
from otelgpu.store.files import StoreError
from otelgpu.store.queries import Columns

MOST_BYTES: Final = 2 << 30
"""Of an answer: what is asked for are sums, of hundreds of bytes a row."""
_PIECE_BYTES: Final = 1 << 20
_SHORT_QUERY: Final = 200_000
"""Up to 262,144 bytes are what a server takes that nobody has asked to take more."""
_SHOWN: Final = 300
_AUTHENTICATION: Final = ("192", "193", "194", "516")
_FORBIDDEN: Final = ("164", "497")
"""Codes of ClickHouse's errors: who one is, and what one may do (read only, no grant)."""


class _NotAllowed(StoreError):
    """The user may not do that."""


class Client:
    """Asks one server. Each question has a connection of its own: they are few and long."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._session = ""

    def remember(self, name: str, query: str) -> bool:
        """Keep an answer there as a temporary table, for this client alone; whether the user may."""
        self._session = f"otelgpu-{uuid4()}"
        try:
            self._ask(f"CREATE TEMPORARY TABLE {name} ENGINE = Memory AS {query}")
        except _NotAllowed:
            self._session = ""
            return False
        return True

    def run(self, query: str) -> Columns:
        """The columns of an answer. Raises `StoreError`."""
        try:
            return native.columns(self._ask, query)
        except native.Malformed as error:
            raise self._error(f"does not answer as ClickHouse does: {error}") from error

    def _ask(self, query: str) -> bytes:
        try:
            with closing(self._connection()) as connection:
                connection.request("POST", self._path(len(query)), query.encode(), self._headers())
                response = connection.getresponse()
                content = _content(response)
                if response.status != 200:
                    raise self._refusal(response, content)
                return content
        except TimeoutError as error:
            seconds = f"{self._address.timeout_s:g} s"
            raise self._error(f"did not answer within {seconds}", "?timeout=SECONDS waits longer") from error
        except (OSError, HTTPException) as error:
            raise self._error(f"cannot be asked: {printable(str(error))[:_SHOWN]}") from error

    def _connection(self) -> HTTPConnection:
        where = self._address
        if not where.secure:
            return HTTPConnection(where.host, where.port, timeout=where.timeout_s)
        trusted = ssl.create_default_context()
        return HTTPSConnection(where.host, where.port, timeout=where.timeout_s, context=trusted)

    def _path(self, length: int) -> str:
        parameters = {"database": self._address.database, "wait_end_of_query": "1"}
        if self._session:
            # The most that a server lets pass without a question is an hour.
            parameters |= {"session_id": self._session, "session_timeout": "3600"}
        if length > _SHORT_QUERY:
            parameters["max_query_size"] = str(2 * length)
        return f"/?{urlencode(parameters)}"

    def _headers(self) -> dict[str, str]:
        found = {"X-ClickHouse-User": self._address.user, "Content-Type": "text/plain; charset=utf-8"}
        return found | ({"X-ClickHouse-Key": self._address.password} if self._address.password else {})

    def _refusal(self, response: HTTPResponse, content: bytes) -> StoreError:
        code = response.headers.get("X-ClickHouse-Exception-Code", "")
        said = printable(content[:_SHOWN].decode("utf-8", "replace"))
        if code in _FORBIDDEN:
            return _NotAllowed(f"{self._address.shown} does not allow it: {said}")
        if code in _AUTHENTICATION or response.status in (401, 403):
            hint = f"the user and the password are those of the URL, else {USER} and {PASSWORD}"
            return self._error(f"refuses the user {printable(self._address.user)!r}", hint)
        return self._error(f"answers with an error ({response.status}): {said}")

    def _error(self, what: str, hint: str = "") -> StoreError:
        return StoreError(f"{self._address.shown} {what}", hint)


def _content(response: HTTPResponse) -> bytes:
    """Raises OSError where it is too long."""
    found = bytearray()
    while piece := response.read(_PIECE_BYTES):
        found += piece
        if len(found) > MOST_BYTES:
            raise OSError(f"an answer of more than {MOST_BYTES} bytes")
    return bytes(found)
