"""The report on the ranks of one job, from what a command line names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from otelgpu.diagnose.ranks.diagnosis import report_on
from otelgpu.diagnose.ranks.facts import Facts, Query, gather
from otelgpu.diagnose.ranks.verdicts import RanksReport
from otelgpu.diagnose.rules.rule import Rule
from otelgpu.errors import OtelgpuError
from otelgpu.model.text import printable
from otelgpu.store.clickhouse.address import SCHEME, address_of
from otelgpu.store.followed import FollowedInputs
from otelgpu.store.inputs import is_remote, open_tables
from otelgpu.store.queries import Tables, named

_QUERIES: Final = "otelgpu.diagnose.ranks"


def look(
    inputs: Sequence[str],
    job: str | None,
    begin: float | None,
    end: float | None,
    *,
    keep: Path | None = None,
    skip: Callable[[Mapping[str, int]], None] = lambda rejected: None,
    rules: Sequence[Rule] = (),
) -> tuple[Facts, RanksReport]:
    """Facts and verdicts. ``keep``: a folder for the tables; ``skip`` is told what was left out; ``rules``: see there.

    Raises :class:`OtelgpuError` where there is nothing to look at, or several jobs.
    """
    with open_tables(inputs, job=job, begin_s=begin, end_s=end) as tables:
        skip(tables.rejected)
        query = query_of_one_job(tables)
        if keep is not None:
            tables.keep(keep)
        return report_of(tables, query, rules)


@contextmanager
def looks(inputs: Sequence[str], job: str | None) -> Iterator[Callable[[float], tuple[Facts, RanksReport]]]:
    """Gives the same again and again, of what begins at a time or later; of files that grow only what is new is read.

    Raises what :func:`look` does, each time.
    """
    if is_remote(inputs):  # asked anew, of what began lately
        yield lambda begin: look(inputs, job, begin, None)
        return
    with FollowedInputs(inputs, job=job) as followed:

        def look_again(begin: float) -> tuple[Facts, RanksReport]:
            tables = followed.look(begin)
            return report_of(tables, query_of_one_job(tables))

        yield look_again


def reports_of_jobs(
    inputs: Sequence[str],
    job: str | None,
    begin: float | None,
    end: float | None,
    see: Callable[[Tables], None],
    most: int,
) -> Iterator[tuple[str, RanksReport]]:
    """Each job's name and verdicts; ``see`` is given the tables of all. Where there are no operations: nothing.

    Raises :class:`OtelgpuError` where there is nothing to be read, and for more than ``most`` jobs.
    """
    with open_tables(inputs, job=job, begin_s=begin, end_s=end) as tables:
        see(tables)
        query = named(tables.run, _QUERIES)
        jobs = [name for each in query("jobs")["job"] if (name := str(each))]
        if len(jobs) <= 1:
            if len(query("jobs")["job"]):
                yield (jobs or [""])[0], report_of(tables, query)[1]
            return
    if len(jobs) > most:
        raise OtelgpuError(f"the input has {len(jobs)} jobs", hint="choose one with --job")
    for name in jobs:
        yield name, look(inputs, name, begin, end)[1]


def report_of(tables: Tables, query: Query, rules: Sequence[Rule] = ()) -> tuple[Facts, RanksReport]:
    """Facts and verdicts of tables that are open."""
    facts = gather(query)
    return facts, report_on(facts, query, rejected=tables.rejected, limits=tables.limits, rules=rules)


def query_of_one_job(tables: Tables) -> Query:
    """What asks them. Raises :class:`OtelgpuError` where they hold no job, or several."""
    query = named(tables.run, _QUERIES)
    _one_job(query, tables.rejected)
    return query


def shown(given: str) -> str:
    """The name of an input, with nothing that is secret in it."""
    return address_of(given, {}).shown if given.startswith(SCHEME) else Path(given).name


def _one_job(query: Query, rejected: Mapping[str, int]) -> None:
    """Ranks of two jobs have the same numbers. What names no job, dumps of collectives say, is of the only one."""
    found = [str(name) for name in query("jobs")["job"]]
    jobs = [name for name in found if name]
    if not found:
        lost = ", ".join(f"{reason}: {count}" for reason, count in sorted(rejected.items()))
        raise OtelgpuError(
            f"there are no operations in the input{f' ({lost})' if lost else ''}",
            hint="what can be an input: otelgpu diagnose ranks --help",
        )
    if len(jobs) > 1:
        names = ", ".join(map(repr, jobs[:8])) + (", …" if len(jobs) > 8 else "")
        raise OtelgpuError(
            f"the input has {len(jobs)} jobs: {printable(names)}", hint="choose one with --job"
        )
