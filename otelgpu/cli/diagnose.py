"""``otelgpu diagnose``: verdicts on collected data: class, place, time, cost, evidence, and what to do next."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import click
import msgspec
from click.core import ParameterSource

from otelgpu.cli.batch import BatchRun, batch_command, live_events
from otelgpu.cli.device_memory import memory
from otelgpu.cli.diagnose_follow import follow as follow_job
from otelgpu.cli.explain import explain
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.page_files import rank_page_files
from otelgpu.cli.parameters import Duration, UnixTime, duration_option, force_option, refuse_overwriting
from otelgpu.cli.profile_outputs import Output
from otelgpu.cli.rank_reports import look, looks, shown
from otelgpu.cli.rule_files import known_rules, rules_option
from otelgpu.cli.stall import stall
from otelgpu.cli.utilization import utilization
from otelgpu.cli.verdict_text import FOUND, UNDECIDED, Lines, counted
from otelgpu.diagnose.ranks.sentences import sentence
from otelgpu.diagnose.ranks.verdicts import INCONCLUSIVE, RanksReport, RankVerdict
from otelgpu.diagnose.rules.matching import KnownProblem
from otelgpu.export import events
from otelgpu.model.verdict import Verdict

MOST_LINKS: Final = 2
"""Spans that are named in the terminal; JSON, page and event have all."""


@click.group()
def diagnose() -> None:
    """Say what is wrong, where, since when, why, what it costs, and what to do next; or that nothing is."""


@diagnose.command(cls=HeadedCommand)
@click.argument("inputs", metavar="INPUT…", nargs=-1, required=True)
@click.option("--job", help="Only this job's operations.")
@click.option(
    "--from", "begin", metavar="T", type=UnixTime(), help="Only what begins at T or later: 2026-05-01T12:30Z."
)
@click.option("--to", "end", metavar="T", type=UnixTime(), help="Only what begins before T.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option(
    "-o",
    "--output",
    metavar="FILE.html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="One page: the verdicts, and a map of own time, ranks by steps.",
)
@force_option
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the tables there as Parquet, which is an INPUT again.",
)
@click.option(
    "--follow", is_flag=True, help="Look again and again, and say what began, changed or ended, until Ctrl-C."
)
@click.option(
    "--every",
    type=Duration(1.0),
    metavar="TIME",
    default="10s",
    show_default=True,
    help="With --follow: between looks.",
)
@click.option(
    "--window",
    type=Duration(60.0),
    metavar="TIME",
    default="10m",
    show_default=True,
    help="With --follow: so much of the past is looked at.",
)
@duration_option
@rules_option
@batch_command("diagnose ranks")
def ranks(
    run: BatchRun,
    /,
    inputs: tuple[str, ...],
    *,
    job: str | None,
    begin: float | None,
    end: float | None,
    as_json: bool,
    output: Path | None,
    force: bool,
    keep: Path | None,
    follow: bool,
    every: float,
    window: float,
    duration: float | None,
    rule_files: tuple[Path, ...],
) -> None:
    """Which rank of a training job is slow, since when, why, and what it costs. Needs no root and no GPU.

    INPUT: files, folders and globs, of all ranks, or clickhouse://USER@HOST/DATABASE/TABLE. What a rank does itself is
    compared with what like ranks do; the time inside a collective is that of whom it waits for. Hosts' clocks are not
    compared.

    Exit code: 0 nothing is wrong, 3 verdicts, 4 inconclusive: it says what is missing.

    \b
    Examples:
      otelgpu diagnose ranks ops.parquet
      otelgpu diagnose ranks 'job-7/*.jsonl' --json
      otelgpu diagnose ranks tables/ -o report.html
      otelgpu diagnose ranks traces/ --from 2026-05-01T12:00Z --keep tables/
      otelgpu diagnose ranks 'job-7/*.jsonl' --follow
    """
    _check_combination(follow=follow)
    if follow:
        sys.exit(FOUND if _follow(inputs, job, every, window, duration, as_json=as_json) else 0)
    if output is not None:
        refuse_overwriting([output], force=force)
    run.read(*(path for path in map(Path, inputs) if path.is_file()))
    rules = known_rules(rule_files)
    facts, report = look(inputs, job, begin, end, keep=keep, skip=run.skip, rules=rules)
    found = [each for each in report.verdicts if each.klass != INCONCLUSIVE]
    run.conclude(_event(each) for each in found)
    if output is not None:
        from otelgpu.diagnose.ranks.rank_map import rank_page

        title = ", ".join(map(shown, inputs[:3]))
        with closing(Output(output)) as file:
            file.write(rank_page(report, facts, rank_page_files(), title=title))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False))
    else:
        _write(report)
    sys.exit(FOUND if found else UNDECIDED if report.verdicts else 0)


def _check_combination(*, follow: bool) -> None:
    context = click.get_current_context()
    once, following = {"begin", "end", "output", "keep", "rule_files"}, {"every", "window", "duration"}
    alone = {
        name
        for name in (once if follow else following)
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    if alone:
        option = next(each.opts[0] for each in context.command.params if each.name in alone)
        raise click.UsageError(f"{option} {'cannot be combined with' if follow else 'needs'} --follow")


def _follow(
    inputs: Sequence[str],
    job: str | None,
    every_s: float,
    window_s: float,
    duration_s: float | None,
    *,
    as_json: bool,
) -> bool:
    with live_events(os.environ) as send, looks(inputs, job) as look_again:
        return follow_job(
            look_again,
            lambda news: send(_event(change.verdict, change.state) for change in news),
            every_s=every_s,
            window_s=window_s,
            duration_s=duration_s,
            as_json=as_json,
        )


diagnose.add_command(explain)
diagnose.add_command(memory)
diagnose.add_command(stall)
diagnose.add_command(utilization)


def _write(report: RanksReport) -> None:
    say = Lines().say
    seen = report.input
    if not report.verdicts:
        say("Nothing is wrong: all ranks do their own work as fast as their peers.", "bold")
    for verdict in report.verdicts:
        say(sentence(verdict), "bold")
        for each in verdict.evidence[1:] if verdict.klass == INCONCLUSIVE else verdict.evidence:
            say(f"  · {each.text}")
        for link in verdict.links[:MOST_LINKS]:
            say(f"  · trace {link.trace_id}, span {link.span_id}: step {link.step} of rank {link.rank}")
        if verdict.klass != INCONCLUSIVE:
            say(f"  · confidence {verdict.confidence:.0%}")
        say(f"  next: {verdict.next}")
    for problem in report.known:
        say(f"Known problem {problem.rule}{_place(problem)}: {problem.problem}", "bold")
        say(f"  · {problem.why}")
        for change in problem.change:
            say(f"  next: {change}")
    say("")
    say(f"{counted(seen.ranks, 'rank')} on {counted(seen.hosts, 'host')}, {counted(seen.steps, 'step')}")
    for limit in report.limits:
        say(f"limit: {limit}")
    for reason, count in sorted(seen.rejected.items()):
        say(f"rejected: {reason}: {count}")


def _place(problem: KnownProblem) -> str:
    ranks = f"ranks {', '.join(map(str, problem.ranks))}" if problem.ranks else ""
    places = ", ".join(filter(None, [*problem.hosts, ranks]))
    return f" ({places}, {counted(problem.count, 'time')})" if places else ""


def _event(verdict: RankVerdict, state: str = "") -> Verdict:
    """The same as an OpenTelemetry event."""
    steps = verdict.last_step + 1 - verdict.first_step
    return Verdict(
        kind=verdict.klass,
        place={
            events.VERDICT_RANKS: tuple(str(rank) for rank in verdict.ranks),
            events.VERDICT_HOSTS: tuple(verdict.hosts),
            events.VERDICT_CAUSE: verdict.cause,
        },
        start_unix_ns=round(verdict.start_unix_s * 1e9),
        end_unix_ns=round(verdict.end_unix_s * 1e9),
        cost_s=0.0 if verdict.cost is None else verdict.cost.seconds_per_step * steps,
        confidence=verdict.confidence,
        text=sentence(verdict),
        state=state,
        links=[(link.trace_id, link.span_id) for link in verdict.links],
    )
