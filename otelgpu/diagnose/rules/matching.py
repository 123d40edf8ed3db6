"""Which known problems a word, the lines of a log or the table ``evidence`` show. Pure.

A log is read line by line, and of each only what a rule's expression finds is kept: the rest may hold anything.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from otelgpu.diagnose.observation import Observation
from otelgpu.diagnose.rules.rule import EvidenceSign, Rule

LONGEST_LINE: Final = 4_096
"""Characters of a line that are looked at."""
_SHOWN: Final = 160


class LogMatch(Struct, frozen=True, kw_only=True):
    """Lines, from 1, that show a rule's problem, and what was found in the first of them."""

    rule: Rule
    first_line: int
    lines: int
    text: str


class KnownProblem(Struct, frozen=True, kw_only=True):
    """A rule that evidence shows: where, and in how many rows."""

    rule: str
    problem: str
    why: str
    change: Sequence[str]
    source: str
    ranks: Sequence[int] = ()
    hosts: Sequence[str] = ()
    count: int


def of_word(rules: Iterable[Rule], words: Iterable[str]) -> list[Rule]:
    """Rules for a code or a function, by any of its names; upper and lower case are alike."""
    wanted = {_plain(word) for word in words}
    return [
        rule
        for rule in rules
        if wanted & set(map(_plain, rule.codes))
        or any(fnmatchcase(word, _plain(glob)) for glob in rule.functions for word in wanted)
        or rule.id in wanted
    ]


def near(word: str, known: Iterable[str]) -> list[str]:
    """Names like it, the most like first."""
    by_plain = {_plain(name): name for name in known}
    return [by_plain[each] for each in get_close_matches(_plain(word), by_plain, n=3, cutoff=0.75)]


def in_log(rules: Sequence[Rule], lines: Iterable[str]) -> list[LogMatch]:
    """In the order of their first lines."""
    patterns = [
        (rule, re.compile("|".join(f"(?:{each})" for each in rule.logs))) for rule in rules if rule.logs
    ]
    found: dict[str, LogMatch] = {}
    for number, line in enumerate(lines, 1):
        for rule, pattern in patterns:
            match = pattern.search(line[:LONGEST_LINE])
            if match is None:
                continue
            before = found.get(rule.id)
            found[rule.id] = LogMatch(
                rule=rule,
                first_line=before.first_line if before else number,
                lines=before.lines + 1 if before else 1,
                text=before.text if before else match[0][:_SHOWN],
            )
    return list(found.values())


def in_evidence(rules: Iterable[Rule], seen: Sequence[Observation]) -> list[KnownProblem]:
    """In the order of the rules."""
    by_name: dict[str, list[Observation]] = defaultdict(list)
    for each in seen:
        by_name[each.name].append(each)
    return [
        KnownProblem(
            rule=rule.id,
            problem=rule.problem,
            why=rule.why,
            change=rule.change,
            source=rule.source,
            ranks=sorted({each.rank for each in rows if each.rank >= 0}),
            hosts=sorted({each.host for each in rows if each.host}),
            count=len(rows),
        )
        for rule in rules
        if (rows := [row for sign in rule.evidence for row in _shown(sign, by_name.get(sign.name, []))])
    ]


def _shown(sign: EvidenceSign, rows: Sequence[Observation]) -> Iterator[Observation]:
    fitting = [row for row in rows if sign.value in (None, row.value) and re.search(sign.text, row.text)]
    if sign.least is None:
        yield from fitting
        return
    places: dict[tuple[str, int], list[Observation]] = defaultdict(list)
    for row in fitting:
        places[row.host, row.rank].append(row)
    for there in places.values():
        if sum(row.value for row in there) >= sign.least:
            yield from there


def _plain(word: str) -> str:
    return " ".join(word.lower().replace(":", " ").split())
