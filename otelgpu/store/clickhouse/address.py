"""``clickhouse://USER:PASSWORD@HOST:PORT/DATABASE/TABLE``: where tables of operations or spans are. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from otelgpu.store.files import StoreError

SCHEME: Final = "clickhouse://"
USER, PASSWORD = "CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD"
"""The variables of ``clickhouse-client``, for what the URL leaves out."""

_PORTS: Final = {False: 8123, True: 8443}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORM: Final = "clickhouse://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE[/TABLE]][?secure=true&timeout=SECONDS]"


class Address(Struct, frozen=True, kw_only=True):
    """``shown`` is without what is secret."""

    host: str
    port: int
    secure: bool
    user: str
    password: str
    database: str = "default"
    table: str = "otel_traces"
    timeout_s: float = 300.0

    @property
    def shown(self) -> str:
        """For messages."""
        return f"{SCHEME}{self.host}:{self.port}/{self.database}/{self.table}"

    def __repr__(self) -> str:
        return self.shown


def address_of(url: str, environ: Mapping[str, str]) -> Address:
    """Raises `StoreError`, in which nothing of the URL is that may be secret."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        secure = {"true": True, "false": False}[options.pop("secure", "false")]
        timeout_s = float(options.pop("timeout", "300"))
        port = parts.port or _PORTS[secure]
        database, table, *rest = [*filter(None, parts.path.split("/")), "", ""]
        database, table = database or "default", table or "otel_traces"
        if not parts.hostname or any(rest) or options or not 0 < timeout_s < float("inf"):
            raise ValueError
        if not _NAME.fullmatch(database) or not _NAME.fullmatch(table):
            raise ValueError
    except (ValueError, KeyError) as error:
        raise StoreError("the address of ClickHouse cannot be read", f"write {_FORM}") from error
    return Address(
        host=parts.hostname,
        port=port,
        secure=secure,
        user=unquote(parts.username or environ.get(USER, "default")),
        password=unquote(parts.password or "") or environ.get(PASSWORD, ""),
        database=database,
        table=table,
        timeout_s=timeout_s,
    )
