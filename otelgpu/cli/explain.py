"""``otelgpu diagnose explain``: what a code, a function or the lines of a log tell, and what to change."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import click
import msgspec

from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.rule_files import known_rules, rules_option
from otelgpu.cli.verdict_text import FOUND
from otelgpu.diagnose.rules.catalogue import PREFIXES, meanings, names
from otelgpu.diagnose.rules.matching import LogMatch, in_log, near, of_word
from otelgpu.diagnose.rules.rule import Rule
from otelgpu.errors import OtelgpuError
from otelgpu.families.gpu.cuda.functions import canonical
from otelgpu.model.text import printable
from otelgpu.store.line_files import lines as lines_of

_STDIN: Final = "-"


@click.command(cls=HeadedCommand)
@click.argument("words", metavar="[CODE | FUNCTION]…", nargs=-1)
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Which known problems its lines show; - is standard input; repeatable.",
)
@click.option("--list", "as_list", is_flag=True, help="All rules, by id.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@rules_option
def explain(
    words: tuple[str, ...],
    *,
    logs: tuple[str, ...],
    as_list: bool,
    as_json: bool,
    rule_files: tuple[Path, ...],
) -> None:
    """What an error code or a function tells, and what to do: Xids, CUDA, NCCL, completions of RDMA. Needs nothing.

    With --log: which known problems the lines of a program's or the kernel's log show. Of a line only what a rule looks
    for is repeated, for the rest may hold anything.

    Exit code: 0, and 3 where a log shows a problem.

    \b
    Examples:
      otelgpu diagnose explain xid 79
      otelgpu diagnose explain cudaErrorIllegalAddress cudaFree
      otelgpu diagnose explain nccl:2 --json
      dmesg | otelgpu diagnose explain --log -
      otelgpu diagnose explain --log train.log --rules ours.yaml
    """
    rules = known_rules(rule_files)
    if as_list:
        _list(rules, as_json=as_json)
        return
    if not words and not logs:
        raise click.UsageError("name a code or a function, or give --log FILE")
    found_of = [(word, *explained(word, rules)) for word in _joined(words)]
    found = {given: _in_log(given, rules) for given in logs}
    if as_json:
        _json(found_of, found)
    else:
        for word, texts, of_word_ in found_of:
            _write(word, texts, of_word_)
        for given, matches in found.items():
            _write_log(given, matches)
    sys.exit(FOUND if any(found.values()) else 0)


def _joined(words: Sequence[str]) -> Iterator[str]:
    """``xid 79`` as two arguments is one code."""
    rest = iter(words)
    for word in rest:
        if word.lower() not in PREFIXES:
            yield word
            continue
        number = next(rest, "")
        if not number:
            raise click.UsageError(f"{word}: which one? Write {word} 79")
        yield f"{word} {number}"


def explained(word: str, rules: Sequence[Rule]) -> tuple[list[str], list[Rule]]:
    """What a code or a function means, and the rules for it. Raises :class:`OtelgpuError` where nothing is known."""
    known = meanings(word)
    found = of_word(rules, [word, canonical(word), *(name for each in known for name in each.words)])
    if not known and not found:
        like = near(word, [*names(), *(code for rule in rules for code in (*rule.codes, rule.id))])
        hint = (
            f"did you mean {', '.join(like)}?" if like else "otelgpu diagnose explain --list shows all rules"
        )
        raise OtelgpuError(f"nothing is known of {printable(word)!r}", hint=hint)
    return [each.text for each in known], found


def _in_log(given: str, rules: Sequence[Rule]) -> list[LogMatch]:
    if given == _STDIN:
        return in_log(rules, texts_of(sys.stdin.buffer))
    try:
        with Path(given).open("rb") as file:
            return in_log(rules, texts_of(file))
    except OSError as error:
        raise OtelgpuError(f"cannot read {given}: {error.strerror}") from error


def texts_of(file: BinaryIO) -> Iterator[str]:
    """The lines of a log; those that are too long to be read are empty ones."""
    for line in lines_of(file):
        yield (line or b"").decode("utf-8", "replace")


def _list(rules: Sequence[Rule], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(list(rules)), indent=2, ensure_ascii=False))
        return
    width = max(len(rule.id) for rule in rules)
    for rule in sorted(rules, key=lambda rule: rule.id):
        click.echo(printable(f"{rule.id:<{width}}  {rule.problem}"))


def _json(explained: Sequence[tuple[str, list[str], list[Rule]]], found: dict[str, list[LogMatch]]) -> None:
    document = {
        "explained": [
            {"word": word, "meanings": texts, "rules": msgspec.to_builtins(rules)}
            for word, texts, rules in explained
        ],
        "logs": [
            {
                "log": given,
                "problems": [
                    {**msgspec.to_builtins(each), "rule": msgspec.to_builtins(each.rule)} for each in matches
                ],
            }
            for given, matches in found.items()
        ],
    }
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _write(word: str, texts: Sequence[str], rules: Sequence[Rule]) -> None:
    click.secho(printable(word), bold=True)
    for text in texts:
        click.echo(printable(f"  {text}"))
    for rule in rules:
        _write_rule(rule)
    if not rules:
        click.echo("  no rule says more about it")


def _write_log(given: str, matches: Sequence[LogMatch]) -> None:
    name = "standard input" if given == _STDIN else given
    if not matches:
        click.secho(printable(f"{name}: no known problem"), bold=True)
    for match in matches:
        times = "" if match.lines == 1 else f", and in {match.lines - 1} more"
        click.secho(printable(f"{name}, line {match.first_line}{times}: {match.text}"), bold=True)
        _write_rule(match.rule)


def _write_rule(rule: Rule) -> None:
    parts = (("why", [rule.why]), ("check", rule.check), ("change", rule.change), ("source", [rule.source]))
    click.echo(printable(f"  {rule.problem} [{rule.id}]"))
    for name, texts in parts:
        for text in texts:
            click.echo(printable(f"    {name:<7} {text}"))
