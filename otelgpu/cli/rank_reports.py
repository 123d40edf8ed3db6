"""The report on the ranks of one job, from what a command line names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from otelgpu.diagnose.ranks.diagnosis import report_on
from otelgpu.diagnose.ranks.facts import Facts, Query, gather
from otelgpu.diagnose.ranks.verdicts import RanksReport
from otelgpu.errors import OtelgpuError
from otelgpu.model.text import printable
from otelgpu.store.database import Store
from otelgpu.store.followed import FollowedInputs
from otelgpu.store.inputs import open_inputs
from otelgpu.store.queries import queries_of

_QUERIES: Final = "otelgpu.diagnose.ranks"


def look(
    inputs: Sequence[str],
    job: str | None,
    begin: float | None,
    end: float | None,
    *,
    keep: Path | None = None,
    skip: Callable[[Mapping[str, int]], None] = lambda rejected: None,
) -> tuple[Facts, RanksReport]:
    """Facts and verdicts. ``keep``: a folder for the tables; ``skip`` is told what was left out.

    Raises :class:`OtelgpuError` where there is nothing to look at, or several jobs.
    """
    with open_inputs(inputs, job=job, begin_s=begin, end_s=end) as store:
        skip(store.rejected)
        query = _query_of_one_job(store)
        if keep is not None:
            store.keep(keep)
        return _report(store, query)


@contextmanager
def looks(inputs: Sequence[str], job: str | None) -> Iterator[Callable[[float], tuple[Facts, RanksReport]]]:
    """Gives the same again and again, of what begins at a time or later; of files that grow only what is new is read.

    Raises what :func:`look` does, each time.
    """
    with FollowedInputs(inputs, job=job) as followed:

        def look_again(begin: float) -> tuple[Facts, RanksReport]:
            store = followed.look(begin)
            return _report(store, _query_of_one_job(store))

        yield look_again


def _report(store: Store, query: Query) -> tuple[Facts, RanksReport]:
    facts = gather(query)
    return facts, report_on(facts, query, rejected=store.rejected, limits=store.limits)


def _query_of_one_job(store: Store) -> Query:
    query = queries_of(store.connection, _QUERIES)
    _one_job(query, store.rejected)
    return query


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
