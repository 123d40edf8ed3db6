"""``otelgpu diff``: two profiles against each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.diff_jobs import compare, is_report, write
from otelgpu.cli.diff_ranks import AUTO, SlowRank, heading, per_step, sides
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.options import common_options, configure
from otelgpu.cli.page_files import page_files
from otelgpu.cli.parameters import force_option, refuse_overwriting
from otelgpu.cli.profile_inputs import read_profiles_of
from otelgpu.cli.profile_outputs import Output, totals_of
from otelgpu.cli.profile_totals import written
from otelgpu.config import Config
from otelgpu.errors import OtelgpuError
from otelgpu.model.profiles import ProfileColumns
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
@click.option(
    "--slow",
    metavar="auto|RANK",
    type=SlowRank(),
    help="Of JOBDIR, with what the hosts of a training job wrote: the slow rank (auto: that of diagnose ranks) "
    "against a normal one, in the same steps.",
)
@click.option("--json", "as_json", is_flag=True, help="Of two jobs: one JSON document.")
@click.argument("before", metavar="BEFORE|JOBDIR", type=click.Path(path_type=Path))
@click.argument("after", metavar="[AFTER]", required=False, type=click.Path(path_type=Path))
@batch_command("diff")
def diff(
    run: BatchRun,
    /,
    before: Path,
    after: Path | None,
    output: Path | None,
    force: bool,
    normalise: bool,
    slow: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare two profiles: before and after, or one rank and another; or two jobs. Needs no root.

    Files: captures, OTLP JSON lines (--export file:…), pprof (.pb.gz) or folded stacks. Of two jobs, or of one on two
    nodes: what diagnose utilization --json wrote of each; device, clocks, driver, libraries, environment, kernels,
    copies and waits that differ.

    \b
    Examples:
      otelgpu diff before.capture after.capture
      otelgpu diff rank0.pb.gz rank3.pb.gz -o diff.html
      otelgpu diff --slow auto JOBDIR -o diff.html
      otelgpu diff node1.json node2.json --json
    """
    config = configure(options)
    if output is not None and not output.name.endswith((".html", ".svg")):
        raise OtelgpuError(f"cannot write {output}", hint="give a name that ends in .html or .svg")
    if output is not None:
        refuse_overwriting([output], force=force)
    if (slow is None) == (after is None):
        raise click.UsageError("give BEFORE and AFTER, or --slow and a JOBDIR")
    if after is not None and (is_report(before) or is_report(after)):
        if output is not None:
            raise click.UsageError("-o is for profiles: of two jobs there is a table, or --json")
        run.read(before, after)
        write(compare(before, after), _console(), as_json=as_json)
        return
    if as_json:
        raise click.UsageError("--json is for two jobs: reports of diagnose utilization --json")
    found: _Compared | None
    if after is not None:
        run.read(before, after)
        found = _of_files(before, after, config, normalise=normalise)
    else:
        found = _of_ranks(before, AUTO if slow is None else slow)
    if found is None:
        click.echo("No rank is slow: there is nothing to compare (otelgpu diagnose ranks says more).")
        return
    _require_common_kind(found.kinds)
    if output is not None:  # first: who reads the tables may have enough of them (| head)
        from otelgpu.render.format import rendered_difference

        content = rendered_difference(
            output.name,
            found.before,
            found.after,
            page_files(),
            title=" → ".join(found.labels),
            normalise=found.normalise,
            labels=found.labels,
        )
        with closing(Output(output)) as file:
            file.write(content)
    console = _console()
    if found.heading:
        console.print(f"{found.heading}\n", soft_wrap=True)
    write_changes(found.kinds, console)


def _console() -> Console:
    width = None if sys.stdout.isatty() else 160
    return Console(markup=False, emoji=False, highlight=False, width=width)


class _Compared(Struct, frozen=True, kw_only=True):
    """``kinds``: what changed; ``heading``: what that is of, "" where the labels say it."""

    before: Sequence[ProfileColumns]
    after: Sequence[ProfileColumns]
    kinds: Sequence[KindChanges]
    labels: tuple[str, str]
    normalise: bool
    heading: str = ""


def _of_files(before: Path, after: Path, config: Config, *, normalise: bool) -> _Compared:
    first, second = read_profiles_of(before, config).profiles, read_profiles_of(after, config).profiles
    for path, profiles in ((before, first), (after, second)):
        if not any(len(batch) for batch in profiles):
            raise OtelgpuError(f"there are no profiles in {path}")
    return _Compared(
        before=first,
        after=second,
        kinds=changes(totals_of(first), totals_of(second), normalise=normalise),
        labels=(before.name, after.name),
        normalise=normalise,
    )


def _of_ranks(folder: Path, slow: int) -> _Compared | None:
    found = sides(folder, slow)
    if found is None:
        return None
    chosen = found.comparison
    first, second = (per_step(profiles, chosen.step_s) for profiles in (found.normal, found.slow))
    return _Compared(
        before=found.normal,
        after=found.slow,
        kinds=changes(first, second, normalise=False),
        labels=(f"rank {chosen.normal}", f"rank {chosen.slow}"),
        normalise=False,
        heading=heading(chosen),
    )


def _require_common_kind(kinds: Sequence[KindChanges]) -> None:
    if not any(kind.before and kind.after for kind in kinds):
        held = (", ".join(kind.type for kind in kinds if value(kind)) for value in _SIDES)
        raise OtelgpuError(
            "there is no kind of profile that both have: {} before, {} after".format(*held),
            hint="take both with the same -t",
        )
