"""``otelgpu diff`` of two jobs: what ``otelgpu diagnose utilization --json`` wrote of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otelgpu.cli.profile_inputs import is_capture
from otelgpu.diagnose.utilization.differences import Difference, differences
from otelgpu.diagnose.utilization.job_facts import GROUPS
from otelgpu.diagnose.utilization.verdicts import Fact
from otelgpu.errors import OtelgpuError
from otelgpu.model.text import printable

LARGEST_BYTES: Final = 16 << 20
"""Of a report."""
MOST_FACTS: Final = 10_000
_BEGIN: Final = b"{"


class JobReport(Struct, kw_only=True):
    """What is read of a report."""

    facts: list[Fact]


class JobDifferences(Struct, frozen=True, kw_only=True):
    """The document of ``--json``. ``before``, ``after``: names of the files."""

    before: str
    after: str
    differences: Sequence[Difference]


def is_report(path: Path) -> bool:
    """Whether a file is one JSON object with facts; of one that cannot be read it is for others to say why."""
    try:
        return not is_capture(path) and _facts(path) is not None
    except OtelgpuError:
        return False


def compare(before: Path, after: Path) -> JobDifferences:
    """Raises :class:`OtelgpuError` where one of them is no report, or has no facts."""
    found = []
    for path in (before, after):
        facts = _facts(path)
        if not facts:
            raise OtelgpuError(
                f"{path} has no facts of a job",
                "compare two reports: otelgpu diagnose utilization --json -p PID",
            )
        if len(facts) > MOST_FACTS:
            raise OtelgpuError(f"{path} has more than {MOST_FACTS:,} facts: no report of one job")
        found.append(facts)
    return JobDifferences(before=before.name, after=after.name, differences=differences(*found))


def _facts(path: Path) -> list[Fact] | None:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise OtelgpuError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > LARGEST_BYTES or not content.lstrip().startswith(_BEGIN):
        return None
    try:
        return msgspec.json.decode(content, type=JobReport).facts
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def write(found: JobDifferences, console: Console, *, as_json: bool) -> None:
    """One table, or one document."""
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2, ensure_ascii=False))
        return
    if not found.differences:
        console.print("Nothing differs by more than two runs of one job do.")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("", "what"):
        table.add_column(title, overflow="fold")
    for title in (found.before, found.after, "ratio"):
        table.add_column(printable(title), justify="right", overflow="fold")
    group = ""
    for each in found.differences:
        cells = (
            "" if each.group == group else each.group,
            each.name,
            _cell(each.before, each.unit),
            _cell(each.after, each.unit),
            f"×{each.ratio:.3g}" if each.ratio is not None else "",
        )
        group = each.group
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(table)
    shown = [name for name in GROUPS if any(each.group == name for each in found.differences)]
    console.print()
    for name in shown:
        console.print(f"{name}: {GROUPS[name]}", soft_wrap=True)


def _cell(value: str | float | None, unit: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:.1%}" if unit == "1" else f"{value:,.4g} {unit}".rstrip()
