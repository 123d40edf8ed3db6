"""``otelgpu replay``: a capture becomes whatever a live session reports, or a picture of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.observe import print_summary
from otelgpu.cli.options import configure, openings, output_options
from otelgpu.cli.profile_inputs import replay_capture
from otelgpu.cli.profile_outputs import Outputs


def is_picture(name: str) -> bool:
    """Whether a file of this name is rendered; others are OTLP JSON lines, as `--export file:` writes them."""
    from otelgpu.render.format import FORMATS

    return not name.endswith(".jsonl") and name.lower().endswith(tuple(FORMATS))


@click.command()
@output_options
@click.option("--quiet", is_flag=True, help="No summary at the end.")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="PATH",
    help="A profile's format by the name's end (docs/profiles.md), else --export file:PATH; repeatable.",
)
@click.argument("capture", type=click.Path(path_type=Path))
@batch_command("replay")
def replay(run: BatchRun, /, capture: Path, outputs: tuple[str, ...], quiet: bool, **options: Any) -> None:
    """Turn a capture into anything a live session exports, or into a picture of it. Needs no root.

    \b
    Examples:
      otelgpu replay slow.capture --export console
      otelgpu replay slow.capture -o trace.jsonl
      otelgpu replay slow.capture -o flame.html -o out.pb.gz
      otelgpu replay slow.capture --export otlp:http://localhost:4318
    """
    pictures = [Path(name) for name in outputs if is_picture(name)]
    files = [f"file:{name}" for name in outputs if not is_picture(name)]
    options["export"] = (*options["export"], *files)
    config = configure(options)
    run.read(capture)
    with Outputs(pictures) as drawn:
        if drawn.want_calls and options["detail"] is None:
            config = structs.replace(config, detail="all")
        others = [opening.open() for opening in openings(config, os.environ, needed=not pictures)]
        memory, outcome = replay_capture(capture, config, others)
        if pictures:
            drawn.write(memory.profiles, memory.spans, capture.name)
    if not quiet:
        print_summary(outcome)
