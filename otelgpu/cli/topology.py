"""``otelgpu topology``: the graph of what was collected, or of this host, and what is slow, faulty or missing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import msgspec
from click.core import ParameterSource
from rich.text import Text
from rich.tree import Tree

from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.collector_access import OPTIONS, Access, access_options
from otelgpu.cli.diagnose_follow import until_interrupted
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.page_files import topology_page_files
from otelgpu.cli.parameters import Duration, UnixTime, duration_option, force_option, refuse_overwriting
from otelgpu.cli.profile_outputs import Output
from otelgpu.cli.topology_collector import is_live, is_secure
from otelgpu.cli.topology_inputs import Range, own_host, read, version_of
from otelgpu.cli.verdict_text import FOUND, Lines, counted
from otelgpu.errors import OtelgpuError
from otelgpu.model.text import printable
from otelgpu.topology.graph import FAULTY, MISSING, NOTICE, SLOW, Call, Mark, Topology
from otelgpu.topology.topology_page import topology_page
from otelgpu.topology.tree import lines

_STYLES: Final = {FAULTY: "bold red", MISSING: "bold magenta", SLOW: "yellow", NOTICE: "cyan", "": ""}
_SIGNS: Final = {FAULTY: "✗ ", MISSING: "? ", SLOW: "▲ ", NOTICE: "· ", "": ""}


@click.command(cls=HeadedCommand)
@click.argument("inputs", metavar="[INPUT…]", nargs=-1)
@click.option(
    "--observe",
    "observe_s",
    type=Duration(above=True),
    metavar="TIME",
    help="Observe this host for so long first, with probes, and show what was seen. Needs what otelgpu agent needs.",
)
@click.option("--job", help="Of tables, only this job's operations; verdicts on this job.")
@click.option(
    "--from", "begin", metavar="T", type=UnixTime(), help="Only what was at T or later: 2026-05-01T12:30Z."
)
@click.option("--to", "end", metavar="T", type=UnixTime(), help="Only what was before T.")
@click.option(
    "--rack", metavar="ATTRIBUTE", default="", help="The resource attribute that names a node's rack."
)
@click.option("--node", "expand", metavar="NAME", multiple=True, help="Show this node whole. Repeatable.")
@click.option("--all", "everything", is_flag=True, help="Show all nodes whole.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option(
    "-o",
    "--output",
    metavar="FILE.html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="One page: a map of all nodes, and each node's devices and connections.",
)
@force_option
@click.option(
    "--follow", is_flag=True, help="Look again and again, and say what began or ended, until Ctrl-C."
)
@click.option(
    "--every",
    type=Duration(1.0),
    metavar="TIME",
    default="10s",
    show_default=True,
    help="Between looks.",
)
@duration_option
@access_options
@batch_command("topology")
def topology(
    run: BatchRun,
    /,
    inputs: tuple[str, ...],
    *,
    observe_s: float | None,
    job: str | None,
    begin: float | None,
    end: float | None,
    rack: str,
    expand: tuple[str, ...],
    everything: bool,
    as_json: bool,
    output: Path | None,
    force: bool,
    follow: bool,
    every: float,
    duration: float | None,
    access: Access,
) -> None:
    """Nodes, GPUs, NICs, queue pairs, communicators and services, and what is wrong with which. Needs no root.

    INPUT: files, folders and globs of OTLP/JSON lines of any number of hosts, or tables as diagnose ranks takes them;
    or clickhouse://USER@HOST/DATABASE; or of a Collector that runs http[s]://HOST:PORT/metrics, for what runs now.
    Without one it shows this host, by sysfs and NVML; with --observe also queue pairs, communicators and calls.

    Marked is what is faulty (Xids, errors of ports, failed queue pairs), missing (GPUs, ranks) and slow (verdicts of
    diagnose ranks), each with the signal that says so.

    Exit code: 0 nothing is marked but notices, 3 something is.

    \b
    Examples:
      otelgpu topology
      otelgpu topology --observe 10s
      otelgpu topology 'collected/*.jsonl' -o cluster.html
      otelgpu topology collected/ --from 2026-05-01T12:00Z --to 2026-05-01T13:00Z --json
      otelgpu topology collected/ --node gpu-017
      otelgpu topology collected/ --follow
      otelgpu topology http://gateway:8889/metrics
    """
    _check_combination(inputs, follow=follow)
    if inputs and observe_s is not None:
        raise click.UsageError("--observe cannot be combined with an INPUT: it was observed already")
    span = Range(begin_s=begin, end_s=end, job=job, rack=rack)
    if follow:
        sys.exit(FOUND if _follow(inputs, span, access, every, duration, as_json=as_json) else 0)
    if output is not None:
        refuse_overwriting([output], force=force)
    run.read(*(path for path in map(Path, inputs) if path.is_file()))
    found = read(inputs, span, access) if inputs else own_host(observe_s, span)
    run.skip(found.rejected)
    _check_names(found, expand)
    if output is not None:
        names = (each if is_live(each) else Path(each).name for each in inputs[:3])
        title = ", ".join(names) or found.nodes[0].name
        with closing(Output(output)) as file:
            file.write(topology_page(found, topology_page_files(), title=title))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=1, ensure_ascii=False))
    else:
        _write(found, expand, everything=everything)
    sys.exit(FOUND if _is_found(found.marks) else 0)


def _check_combination(inputs: Sequence[str], *, follow: bool) -> None:
    context = click.get_current_context()
    once = {"begin", "end", "output", "expand", "everything"}
    of_inputs = {"job", "begin", "end", "rack"}
    of_stored = {"begin", "end"}
    given = {
        name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    options = {each.name: each.opts[0] for each in context.command.params}
    for names, is_wrong, words in (
        (once, follow, "cannot be combined with --follow"),
        ({"every", "duration"}, not follow, "needs --follow"),
        (of_inputs | {"follow"}, not inputs, "needs an INPUT"),
        (set(OPTIONS), not any(map(is_secure, inputs)), "needs an INPUT https://HOST:PORT/metrics"),
        (
            of_stored,
            any(map(is_live, inputs)),
            "needs what is stored: a Collector says what it counted until now",
        ),
    ):
        if is_wrong and (wrong := sorted(names & given)):
            raise click.UsageError(f"{options[wrong[0]]} {words}")


def _check_names(found: Topology, expand: Iterable[str]) -> None:
    there = {node.name for node in found.nodes}
    for name in expand:
        if name not in there:
            raise OtelgpuError(f"there is no node {printable(name)!r} in it", hint="--json lists all of them")


def _is_found(marks: Iterable[Mark]) -> bool:
    return any(mark.kind != NOTICE for mark in marks)


def _sizes(found: Topology) -> list[str]:
    if not found.nodes:
        return [counted(len(found.services), "service")]
    gpus, nics = sum(len(node.gpus) for node in found.nodes), sum(len(node.nics) for node in found.nodes)
    return [counted(len(found.nodes), "node"), counted(gpus, "GPU"), counted(nics, "NIC")]


def _write(found: Topology, expand: Sequence[str], *, everything: bool) -> None:
    out = Lines()
    parts = _sizes(found)
    parts += [counted(len(found.queue_pairs), "queue pair")] if found.queue_pairs else []
    tree = Tree(Text(", ".join(parts), style="bold"))
    branches = [tree]
    for depth, text, kind in lines(found, expand=expand, everything=everything):
        del branches[depth + 1 :]
        branches.append(branches[-1].add(Text(f"{_SIGNS[kind]}{printable(text)}", style=_STYLES[kind])))
    out.show(tree)
    marked = [mark for mark in found.marks if mark.kind != NOTICE]
    out.say("Nothing is marked." if not marked else f"{counted(len(marked), 'mark')}:", "bold")
    for mark in marked[:20]:
        out.say(f"{_SIGNS[mark.kind]}{mark.place}: {mark.text} [{mark.source}]", _STYLES[mark.kind])
        if mark.next:
            out.say(f"  next: {mark.next}")
    if len(marked) > 20:
        out.say(f"{len(marked) - 20} more: --json and the page (-o) have all")
    for limit in found.limits:
        out.say(f"limit: {limit}")
    for reason, count in sorted(found.rejected.items()):
        out.say(f"rejected: {reason}: {count}")


def _follow(
    inputs: Sequence[str],
    span: Range,
    access: Access,
    every_s: float,
    duration_s: float | None,
    *,
    as_json: bool,
) -> bool:
    """Until Ctrl-C, or for ``duration_s``; whether anything but a notice was marked."""
    ends_s = float("inf") if duration_s is None else time.monotonic() + duration_s
    before: dict[tuple[str, str, str], Mark | Call] = {}
    said, problem, found_any = "", "", False
    found, seen = None, None
    with until_interrupted() as stopped:
        while True:
            next_s = time.monotonic() + every_s
            try:
                version = version_of(inputs)
                if found is None or version is None or version != seen:
                    found, seen = read(inputs, span, access), version
            except OtelgpuError as error:
                if str(error) != problem:
                    problem = str(error)
                    click.echo(f"otelgpu: waiting: {problem}", err=True)
            else:
                problem = ""
                now: dict[tuple[str, str, str], Mark | Call] = {
                    (mark.place, mark.kind, mark.source): mark for mark in found.marks
                }
                now |= {("", call.client, call.server): call for call in found.calls}
                if (size := ", ".join(_sizes(found)[:2])) != said and not as_json:
                    said = size
                    _say(said)
                for state, keys in (
                    ("began", now.keys() - before.keys()),
                    ("ended", before.keys() - now.keys()),
                ):
                    for key in sorted(keys):
                        _change(state, now.get(key) or before[key], as_json=as_json)
                before, found_any = now, found_any or _is_found(found.marks)
            now_s = time.monotonic()
            if now_s >= ends_s or stopped.wait(max(min(next_s, ends_s) - now_s, 0)):
                return found_any


def _change(state: str, what: Mark | Call, *, as_json: bool) -> None:
    is_mark = isinstance(what, Mark)
    if as_json:
        document = {
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "state": state,
            "mark" if is_mark else "call": msgspec.to_builtins(what),
        }
        click.echo(json.dumps(document, ensure_ascii=False))
    elif isinstance(what, Mark):
        _say(f"{state}  {what.kind:<8} {what.place}: {what.text} [{what.source}]")
    else:
        _say(f"{state}  calls    {what.client} → {what.server} [{what.source}]")


def _say(text: str) -> None:
    click.echo(f"{datetime.now(UTC):%H:%M:%S}Z  {printable(text)}")
