"""``otelgpu view``: what was observed, as a page in the browser that needs nothing else."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import click

from otelgpu.cli.browser import HandOver, open_page
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.options import common_options, configure, detail_option
from otelgpu.cli.view_file import FOLLOWED_BYTES, Follower, Limits, batches
from otelgpu.errors import OtelgpuError
from otelgpu.model.profiles import ProfileColumns
from otelgpu.sources.capture import MAGIC
from otelgpu.view.page import SCRIPTS, Framed, Parts, data_element, page
from otelgpu.view.shown import shown

DEFAULT_PATH = Path("otelgpu.jsonl")


@click.command(cls=HeadedCommand)
@common_options
@detail_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page (default: beside FILE, .html).",
)
@click.option(
    "--live", is_flag=True, help="Serve the page on loopback and follow FILE as it grows; Ctrl-C ends it."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="With --live: listen here (0: any free port).",
)
@click.option(
    "--open/--no-open",
    "opens",
    default=None,
    help="Open a browser (default: where there is a desktop).",
)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
def view(
    file: Path | None, output: Path | None, live: bool, port: int, opens: bool | None, **options: Any
) -> None:
    """Show requests, their GPU work, steps and collectives as one HTML page.

    FILE has OTLP/JSON lines, as --export file:PATH and Collectors write them, or is a capture. Of one that was rotated
    (FILE.1, …) all parts are shown. The page is complete in itself: it loads nothing and sends nothing.

    \b
    Examples:
      otelgpu view otelgpu.jsonl
      otelgpu view slow.capture -o slow.html --no-open
      otelgpu view --live
    """
    if live:
        if output is not None:
            raise click.UsageError("--live serves the page: give no --output")
        _serve(file or DEFAULT_PATH, port, opens)
        return
    if file is None:
        raise click.UsageError(f"give a file, or --live to follow {DEFAULT_PATH}")
    written = output if output is not None else file.with_suffix(".html")
    if _is_capture(file):
        with tempfile.TemporaryDirectory(prefix="otelgpu-view-") as folder:
            lines = Path(folder, "replayed.jsonl")
            profiles = _replay(file, lines, options)
            write_page(lines, written, source=file, profiles=profiles)
    else:
        write_page(file, written, source=file)
    click.echo(str(written))
    open_page(written.absolute().as_uri(), opens)


def write_page(
    lines: Path,
    output: Path,
    *,
    source: Path,
    limits: Limits | None = None,
    profiles: Sequence[ProfileColumns] = (),
) -> None:
    """Make the page of a file of OTLP/JSON lines. Raises `OtelgpuError`, and leaves what was there then.

    ``profiles``: what it has flame graphs of. Who may not read ``source``, what all that was made of, may not read the
    page.
    """
    made = page(_parts(), source.name, shown=shown(), framed=_flame_graphs(profiles, source.name))
    readable = False
    try:
        handle, scratch = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    except OSError as error:
        raise OtelgpuError(
            f"cannot write {output}: {error.strerror}", hint="give another place with -o"
        ) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(made.before)
            for batch in batches(lines, limits or Limits()):
                readable = readable or bool(batch["counters"].get("lines"))
                file.write(data_element(batch))
            file.write(made.after)
        if not readable:
            raise OtelgpuError(
                f"{source.name} has no line of OTLP/JSON",
                hint="give what --export file:PATH or a Collector's file exporter (json) wrote, or a capture",
            )
        os.chmod(scratch, 0o600 | source.stat().st_mode & 0o666 & ~_umask())
        os.replace(scratch, output)
    except OSError as error:
        raise OtelgpuError(f"cannot make a page of {source.name}: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(scratch)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _parts() -> Parts:
    files = resources.files("otelgpu.view") / "page"

    def text(name: str) -> str:
        return (files / name).read_text(encoding="utf-8")

    return Parts(index=text("index.html"), style=text("style.css"), scripts=[text(name) for name in SCRIPTS])


def _is_capture(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise OtelgpuError(f"cannot read {path}: {error.strerror}") from error


def _flame_graphs(profiles: Sequence[ProfileColumns], title: str) -> Framed | None:
    if not profiles:
        return None
    from otelgpu.cli.page_files import page_files  # of captures with profiles only
    from otelgpu.render.flame_graph import framed

    return framed(profiles, page_files(), title=title)


def _replay(capture: Path, lines: Path, options: dict[str, Any]) -> Sequence[ProfileColumns]:
    """Its lines, and the profiles that it holds."""
    from otelgpu.cli.profile_inputs import replay_capture  # half of the program, for captures only
    from otelgpu.export.file.exporter import FileExporter

    memory, _ = replay_capture(capture, configure(options), [FileExporter(str(lines))])
    return memory.profiles


def _serve(path: Path, port: int, opens: bool | None) -> None:
    from otelgpu.cli.view_server import ViewServer

    if os.path.exists(path) and _is_capture(path):
        raise OtelgpuError("a capture does not grow into lines", hint=f"otelgpu view {path}")
    made = page(_parts(), path.name, live=True, shown=shown())
    follower = Follower(path, Limits(newest=FOLLOWED_BYTES))
    hand_over = HandOver()
    try:
        server = ViewServer(
            port, made.before + made.after, made.policy, follower.answer, seen=hand_over.spend
        )
    except OSError as error:
        raise OtelgpuError(
            f"cannot listen on port {port}: {error.strerror}", hint="leave --port out"
        ) from error
    with server, hand_over, suppress(KeyboardInterrupt):
        for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT may have been ignored when we were started
            signal.signal(number, signal.default_int_handler)
        click.echo(server.url)
        click.echo(f"otelgpu: following {path}; Ctrl-C ends it", err=True)
        open_page(server.url, opens, hand_over)
        server.serve_forever()
