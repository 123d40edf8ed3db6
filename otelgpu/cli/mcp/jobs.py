"""``list_jobs``: the training jobs of an input."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from otelgpu.cli.mcp import untrusted
from otelgpu.cli.mcp.answers import Found, Next
from otelgpu.cli.mcp.arguments import InputName
from otelgpu.cli.mcp.session import Session
from otelgpu.store.queries import named, tuples


class ListJobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments."""

    input: InputName


class JobRow(Struct, frozen=True, kw_only=True):
    """``job``: its name, empty where no rank says one. Times are those of the hosts, in seconds since 1970."""

    job: str
    ranks: int
    hosts: int
    steps: int
    begin_unix_s: float
    end_unix_s: float


class JobList(Struct, frozen=True, kw_only=True):
    """``rejected``: what was left out of the input, reason → rows or files; ``limits``: what it cannot say."""

    jobs: list[JobRow]
    rejected: Mapping[str, int]
    limits: list[str]


def list_jobs(session: Session, arguments: ListJobs) -> Found[JobList]:
    """Read all operations."""
    with session.recordings.operations(arguments.input) as store:
        found = tuples(named(store.run, __package__)("jobs"))
        rejected, limits = dict(store.rejected), list(store.limits)
    rows = [
        JobRow(
            job=untrusted.name(job),
            ranks=int(ranks),
            hosts=int(hosts),
            steps=int(steps),
            begin_unix_s=float(begin),
            end_unix_s=float(end),
        )
        for job, ranks, hosts, steps, begin, end in found
    ]
    following = [
        Next(
            tool="diagnose_ranks",
            arguments={"input": arguments.input, **({"job": row.job} if row.job else {})},
            why=f"which of the {row.ranks} ranks is slow, since when and why",
        )
        for row in rows[:4]
    ]
    if not rows:
        following = [Next(tool="list_inputs", why="what other inputs there are")]
        if session.recordings.may_have_spans(arguments.input):
            why = "requests, if it has some"
            following.insert(0, Next(tool="list_requests", arguments={"input": arguments.input}, why=why))
    return Found(result=JobList(jobs=rows, rejected=rejected, limits=limits), next=following)
