"""What was seen at a verdict's place and time: errors, counters of trouble. Evidence, never a class. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from otelgpu.diagnose.observation import Observation
from otelgpu.diagnose.ranks.facts import Columns
from otelgpu.diagnose.ranks.verdicts import Evidence, RankVerdict

AROUND_S: Final = 60.0
"""So long before or behind counts too: clocks of hosts differ, and a cause comes before what it does."""
MOST: Final = 3
"""Kinds of observations that a verdict is given."""


def observations(columns: Columns) -> list[Observation]:
    """From the columns of ``observations.sql``."""
    names = ("rank", "host", "t0", "t1", "name", "value", "text")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    return [
        Observation(rank=rank, host=host, begin_s=begin, end_s=end, name=name, value=value, text=text)
        for rank, host, begin, end, name, value, text in rows
    ]


def with_coincidences(verdict: RankVerdict, seen: list[Observation]) -> RankVerdict:
    """The same with what was seen of its ranks or their hosts; each kind once, with how often or how much.

    Errors come before counters, which grow a little in good times too.
    """
    if not verdict.start_unix_s:
        return verdict
    kinds: dict[tuple[str, float | str, str, int], list[Observation]] = {}
    for each in _there(verdict, seen):
        what = each.text if _is_counter(each) else each.value
        kinds.setdefault((each.name, what, each.host, each.rank), []).append(each)
    ordered = sorted(kinds.values(), key=lambda of_kind: _is_counter(of_kind[0]))
    found = [_evidence(each) for each in islice(ordered, MOST)]
    return replace(verdict, evidence=[*verdict.evidence, *found]) if found else verdict


def _there(verdict: RankVerdict, seen: list[Observation]) -> Iterator[Observation]:
    first_s, last_s = verdict.start_unix_s - AROUND_S, verdict.end_unix_s + AROUND_S
    for each in seen:
        at_place = each.rank in verdict.ranks if each.rank >= 0 else each.host in verdict.hosts
        if at_place and each.begin_s <= last_s and each.end_s >= first_s:
            yield each


def _is_counter(seen: Observation) -> bool:
    """It has the name of a metric, a scope or an attribute: its values add up."""
    return "." in seen.name


def _evidence(seen: list[Observation]) -> Evidence:
    first = seen[0]
    place = f"rank {first.rank}" if first.rank >= 0 else first.host
    said, value = first.text or f"{first.name} {first.value:g}", first.value
    if _is_counter(first):
        value = sum(each.value for each in seen)
        said = f"{said}: {f'{value:,.2f}'.rstrip('0').rstrip('.')}"
    elif len(seen) > 1:
        said = f"{said}, {len(seen)} times"
    return Evidence(
        name=first.name,
        text=f"meanwhile on {place}: {said}",
        ranks=(first.rank,) if first.rank >= 0 else (),
        value=value,
    )
