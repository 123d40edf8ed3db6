"""``explain``: what codes, functions and the lines of a log tell, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from otelgpu.cli.explain import explained, texts_of
from otelgpu.cli.mcp.answers import Found, Next
from otelgpu.cli.mcp.arguments import Word
from otelgpu.cli.mcp.session import Session
from otelgpu.diagnose.rules.matching import LogMatch, in_log
from otelgpu.diagnose.rules.rule import Rule
from otelgpu.errors import OtelgpuError

LONGEST_LOG: Final = 65_536
"""Characters of a log that is given with the call."""
LARGEST_LOG_BYTES: Final = 256 << 20
_LONGEST_TEXT: Final = 2_000  # rules are otelgpu's own words, or the user's


class Explain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments, any of them: words such as ``xid 79``, ``nccl:2``, ``cudaFree``; lines of a log; an input, a log."""

    words: Annotated[list[Word], Meta(max_length=20)] = []
    log: Annotated[str, Meta(max_length=LONGEST_LOG)] = ""
    input: Annotated[str, Meta(max_length=400)] = ""


class KnownRule(Struct, frozen=True, kw_only=True):
    """A known problem: what is the matter, what brings it about, how to make sure, what to change, and who says so."""

    id: str
    problem: str
    why: str
    check: Sequence[str]
    change: Sequence[str]
    source: str


class WordExplained(Struct, frozen=True, kw_only=True):
    """``unknown``: why nothing is said; empty otherwise."""

    word: str
    meanings: list[str]
    rules: list[KnownRule]
    unknown: str


class LogProblem(Struct, frozen=True, kw_only=True):
    """Lines that show it, the first by its number from 1; ``text``: of that line, what the rule looks for."""

    first_line: int
    lines: int
    text: str
    rule: KnownRule


class Explained(Struct, frozen=True, kw_only=True):
    """``log``: in the order of the lines; empty where no line shows a known problem."""

    words: list[WordExplained]
    log: list[LogProblem]


def explain(session: Session, arguments: Explain) -> Found[Explained]:
    """Raises :class:`OtelgpuError` where nothing was asked."""
    if not (arguments.words or arguments.log or arguments.input):
        raise OtelgpuError("nothing to explain", hint="give words, log or input")
    words = [_word(word, session.rules) for word in arguments.words]
    matches = in_log(session.rules, arguments.log.splitlines()) if arguments.log else []
    if arguments.input:
        matches += _of_file(session, arguments.input)
    problems = [
        LogProblem(first_line=each.first_line, lines=each.lines, text=each.text, rule=_known(each.rule))
        for each in matches
    ]
    following = () if words or problems else (Next(tool="list_inputs", why="what else could be looked at"),)
    return Found(result=Explained(words=words, log=problems), next=following, longest_text=_LONGEST_TEXT)


def _word(word: str, rules: Sequence[Rule]) -> WordExplained:
    try:
        meanings, found = explained(word, rules)
    except OtelgpuError as error:
        return WordExplained(word=word, meanings=[], rules=[], unknown=str(error))
    return WordExplained(word=word, meanings=meanings, rules=[_known(rule) for rule in found], unknown="")


def _of_file(session: Session, named: str) -> list[LogMatch]:
    path = session.inputs.file(named)
    if path.stat().st_size > LARGEST_LOG_BYTES:
        raise OtelgpuError(
            f"{named!r} has more than {LARGEST_LOG_BYTES >> 20} MiB", hint="give a part of it as log"
        )
    with path.open("rb") as file:
        return in_log(session.rules, texts_of(file))


def _known(rule: Rule) -> KnownRule:
    return KnownRule(
        id=rule.id,
        problem=rule.problem,
        why=rule.why,
        check=rule.check,
        change=rule.change,
        source=rule.source,
    )
