"""``otelgpu replay``: a capture becomes whatever a live session reports, or a picture of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click
from msgspec import structs

from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.guidance import Guidance
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.observe import print_summary
from otelgpu.cli.options import configure, openings, output_options
from otelgpu.cli.parameters import force_option, refuse_overwriting
from otelgpu.cli.profile_inputs import replay_capture
from otelgpu.cli.profile_outputs import Outputs
from otelgpu.errors import OtelgpuError

LINES: Final = ".jsonl"
"""How the name of a file of OTLP/JSON lines ends."""


def is_picture(name: str) -> bool:
    """Whether a file of this name is rendered, or has OTLP/JSON lines as `--export file:` writes them.

    Raises :class:`OtelgpuError` for a name that says neither.
    """
    from otelgpu.render.format import FORMATS

    if name.lower().endswith(LINES):
        return False
    if not name.lower().endswith(tuple(FORMATS)):
        raise OtelgpuError(
            f"{name!r} says nothing of its format", hint=f"let it end in {LINES}, {', '.join(FORMATS)}"
        )
    return True


@click.command(cls=HeadedCommand)
@output_options
@click.option("--quiet", is_flag=True, help="No summary at the end.")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="PATH",
    help="By its name's end: .jsonl as --export file:PATH, or as a profile (docs/reference/profiles.md); repeatable.",
)
@force_option
@click.argument("capture", type=click.Path(path_type=Path))
@batch_command("replay")
def replay(
    run: BatchRun, /, capture: Path, outputs: tuple[str, ...], force: bool, quiet: bool, **options: Any
) -> None:
    """Turn a capture into anything a live session exports, or into a picture of it. Needs no root.

    \b
    Examples:
      otelgpu replay slow.capture --export console
      otelgpu replay slow.capture -o trace.jsonl
      otelgpu replay slow.capture -o flame.html -o out.pb.gz
      otelgpu replay slow.capture --export otlp:http://localhost:4318
    """
    refuse_overwriting(map(Path, outputs), force=force)
    pictures = [Path(name) for name in outputs if is_picture(name)]
    files = [f"file:{name}" for name in outputs if not is_picture(name)]
    options["export"] = (*options["export"], *files)
    config = configure(options)
    run.read(capture)
    with Outputs(pictures) as drawn:
        if drawn.want_calls and options["detail"] is None:
            config = structs.replace(config, detail="all")
        wanted = openings(config, os.environ, needed=not pictures)
        memory, outcome = replay_capture(capture, config, [opening.open() for opening in wanted])
        if pictures:
            drawn.write(memory.profiles, memory.spans, capture.name)
    if not quiet:
        print_summary(outcome, Guidance(openings=wanted, pictures=pictures))
    if outcome.undelivered:
        raise OtelgpuError(f"{outcome.undelivered} spans, data points or samples were not delivered")
    if outcome.cut_off:
        raise OtelgpuError(f"{capture} ends in the middle of a frame: what is before was replayed")
