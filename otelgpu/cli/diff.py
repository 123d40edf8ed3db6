"""``otelgpu diff``: two profiles against each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.options import common_options, configure
from otelgpu.cli.page_files import page_files
from otelgpu.cli.parameters import force_option, refuse_overwriting
from otelgpu.cli.profile_inputs import read_profiles_of
from otelgpu.cli.profile_outputs import Output, totals_of
from otelgpu.cli.profile_totals import written
from otelgpu.errors import OtelgpuError
from otelgpu.model.text import printable
from otelgpu.render.profile_changes import KindChanges, changes

PLACES: Final = 12
"""Of each kind so many changes are shown."""


_SIDES: Final[tuple[Callable[[KindChanges], float], ...]] = (attrgetter("before"), attrgetter("after"))


def write_changes(kinds: Sequence[KindChanges], console: Console) -> None:
    """A table of each kind."""
    for kind in kinds:
        if not kind.before or not kind.after:
            which, value = ("before", kind.before) if kind.before else ("after", kind.after)
            console.print(f"{kind.type}: {written(value, kind.unit)} {which}, and nothing in the other\n")
            continue
        console.print(_table(kind))
        if (left := len(kind.changes) - PLACES) > 0:
            console.print(f"and {left} smaller changes", soft_wrap=True)
        console.print()


def _table(kind: KindChanges) -> Table:
    before, after = written(kind.before, kind.unit), written(kind.after, kind.unit)
    table = Table(
        title=f"{kind.type}: {before} before, {after} after",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    for title in ("change", "before", "after"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("innermost frame", "Python line"):
        table.add_column(title, overflow="fold")
    for change in kind.changes[:PLACES]:
        sign = "+" if change.difference >= 0 else "-"
        cells = (
            sign + written(round(abs(change.difference)), kind.unit),
            written(round(change.before), kind.unit),
            written(round(change.after), kind.unit),
            change.leaf,
            "" if change.line == change.leaf else change.line,
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


@click.command(cls=HeadedCommand)
@common_options
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="A differential flame graph: FILE.html."
)
@force_option
@click.option(
    "--normalise/--no-normalise",
    default=True,
    help="Scale AFTER to BEFORE's sum, so that shares are compared (default), or compare as measured.",
)
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@batch_command("diff")
def diff(
    run: BatchRun,
    /,
    before: Path,
    after: Path,
    output: Path | None,
    force: bool,
    normalise: bool,
    **options: Any,
) -> None:
    """Compare two profiles: before and after, or one rank and another. Needs no root.

    Files: captures, OTLP JSON lines (--export file:…), pprof (.pb.gz) or folded stacks.

    \b
    Examples:
      otelgpu diff before.capture after.capture
      otelgpu diff rank0.pb.gz rank3.pb.gz -o diff.html
    """
    config = configure(options)
    if output is not None and not output.name.endswith((".html", ".svg")):
        raise OtelgpuError(f"cannot write {output}", hint="give a name that ends in .html or .svg")
    if output is not None:
        refuse_overwriting([output], force=force)
    run.read(before, after)
    first, second = read_profiles_of(before, config), read_profiles_of(after, config)
    for path, found in ((before, first), (after, second)):
        if not any(len(batch) for batch in found.profiles):
            raise OtelgpuError(f"there are no profiles in {path}")
    found_changes = changes(totals_of(first.profiles), totals_of(second.profiles), normalise=normalise)
    if not any(kind.before and kind.after for kind in found_changes):
        held = (", ".join(kind.type for kind in found_changes if value(kind)) for value in _SIDES)
        raise OtelgpuError(
            "there is no kind of profile that both have: {} before, {} after".format(*held),
            hint="take both with the same -t",
        )
    if output is not None:  # first: who reads the tables may have enough of them (| head)
        from otelgpu.render.format import rendered_difference

        content = rendered_difference(
            output.name,
            first.profiles,
            second.profiles,
            page_files(),
            title=f"{before.name} → {after.name}",
            normalise=normalise,
            labels=(before.name, after.name),
        )
        with closing(Output(output)) as file:
            file.write(content)
    width = None if sys.stdout.isatty() else 160
    write_changes(found_changes, Console(markup=False, emoji=False, highlight=False, width=width))
