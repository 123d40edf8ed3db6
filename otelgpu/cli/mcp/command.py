"""``otelgpu mcp``: recordings for assistants that speak the Model Context Protocol."""

from __future__ import annotations

import re
import secrets
import signal
import tempfile
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from otelgpu.cli.bearer import bearer_token
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.logs import start_log
from otelgpu.cli.rule_files import known_rules, rules_option
from otelgpu.errors import OtelgpuError

if TYPE_CHECKING:
    from otelgpu.cli.mcp.tools import Toolbox

    _Address = click.ParamType[tuple[str, int]]
else:  # which older versions do not make generic
    _Address = click.ParamType

TOKEN: Final = "OTELGPU_MCP_TOKEN"
_LEAST_TOKEN: Final = 16
"""Of a shorter one it is too easy to try all."""
_ADDRESS: Final = re.compile(r"(?:(?P<host>.*):)?(?P<port>\d{1,5})")
_HOSTS: Final = {None: "127.0.0.1", "127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "[::1]": "::1"}


class LoopbackAddress(_Address):
    """``(host, port)`` of ``PORT``, ``127.0.0.1:PORT``, ``localhost:PORT`` or ``[::1]:PORT``."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Raises :class:`click.BadParameter`."""
        if isinstance(value, tuple):
            return value
        match = _ADDRESS.fullmatch(str(value))
        if match is None or int(match["port"]) > 65535:
            self.fail(f"{value!r} is no address; write 127.0.0.1:PORT", param, ctx)
        if match["host"] not in _HOSTS:
            self.fail(f"{value!r} is not on loopback; write 127.0.0.1:PORT", param, ctx)
        return _HOSTS[match["host"]], int(match["port"])


@click.command(cls=HeadedCommand)
@click.argument("inputs", metavar="INPUT…", nargs=-1, type=click.Path())
@click.option(
    "--http",
    "address",
    type=LoopbackAddress(),
    metavar="127.0.0.1:PORT",
    help=f"Serve HTTP there, for who has the token ({TOKEN}, else a new one is printed), in place of standard input.",
)
@click.option(
    "--allow-profile",
    is_flag=True,
    help="Offer a tool that profiles a running process, for a minute at most. Needs the privileges of otelgpu profile.",
)
@rules_option
def mcp(
    inputs: tuple[str, ...],
    *,
    address: tuple[str, int] | None,
    allow_profile: bool,
    rule_files: tuple[Path, ...],
) -> None:
    """Serve recordings to an assistant, read-only, by the Model Context Protocol (pip install 'otelgpu[mcp]').

    INPUT: files and folders, as otelgpu view, diagnose and diff read them; an agent's own (--export file:PATH), which
    grow, are read anew at each call; and clickhouse://USER@HOST/DATABASE/TABLE, the spans that a Collector puts there
    (the password in CLICKHOUSE_PASSWORD). Nothing else is read. Tools list requests and jobs, get traces, diagnose,
    compare profiles and explain codes; prompts, completions and credentials are not given.

    \b
    Examples:
      otelgpu mcp otelgpu.jsonl job-7/
      otelgpu mcp clickhouse://reader@db.example/otel
      otelgpu mcp otelgpu.jsonl --http 127.0.0.1:8931
      otelgpu mcp --allow-profile
    """
    if not inputs and not allow_profile:
        raise click.UsageError("give files or folders to look at, or --allow-profile")
    start_log("warning", "text")
    from otelgpu.cli.mcp.inputs import Inputs
    from otelgpu.cli.mcp.recordings import Recordings
    from otelgpu.cli.mcp.session import Session
    from otelgpu.cli.mcp.tools import OBSERVING, READING, Toolbox

    found, rules = Inputs(inputs), known_rules(rule_files)
    token = bearer_token(TOKEN, least=_LEAST_TOKEN) if address is not None else ""
    if any(find_spec(package) is None for package in ("mcp", "mcp_types")):
        raise OtelgpuError(
            "this needs the SDK of the Model Context Protocol", hint="pip install 'otelgpu[mcp]'"
        )
    with tempfile.TemporaryDirectory(prefix="otelgpu-mcp-") as folder:
        session = Session(
            inputs=found, recordings=Recordings(found, Path(folder)), rules=rules, folder=Path(folder)
        )
        _serve(Toolbox(session, (*READING, *(OBSERVING if allow_profile else ()))), address, token)


def _serve(toolbox: Toolbox, address: tuple[str, int] | None, token: str) -> None:
    """Until the client has gone, or Ctrl-C."""
    import anyio

    from otelgpu.cli.mcp.server import make_server

    server = make_server(toolbox)
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT may have been ignored when we were started
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        if address is None:
            from otelgpu.cli.mcp.standard_streams import serve_standard_streams

            anyio.run(partial(serve_standard_streams, server))
            return
        from otelgpu.cli.mcp.loopback import PATH, address_of, listen, serve_loopback

        shown = token or secrets.token_urlsafe(24)
        with listen(*address) as listener:
            click.echo(f"http://{address_of(listener)}{PATH}")
            if not token:
                click.echo(f"Authorization: Bearer {shown}")
            anyio.run(partial(serve_loopback, server, listener, shown))
