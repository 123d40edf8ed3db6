"""``diagnose_*``: what ``otelgpu diagnose`` says of an input, in sentences and as its document. One more is a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from otelgpu.cli.device_memory import report_on as memory_of
from otelgpu.cli.mcp.answers import Found, Next
from otelgpu.cli.mcp.arguments import InputName, UnixSeconds, Word
from otelgpu.cli.mcp.session import Session
from otelgpu.cli.rank_reports import query_of_one_job, report_of
from otelgpu.cli.utilization import report_on as utilization_of
from otelgpu.config import Config
from otelgpu.diagnose.memory.sentences import sentence as memory_sentence
from otelgpu.diagnose.memory.verdicts import MemoryReport
from otelgpu.diagnose.ranks.sentences import sentence as rank_sentence
from otelgpu.diagnose.ranks.verdicts import RanksReport
from otelgpu.diagnose.stall.diagnosis import diagnose as diagnose_stalls
from otelgpu.diagnose.stall.observations import observe
from otelgpu.diagnose.stall.sentences import sentence as stall_sentence
from otelgpu.diagnose.stall.verdicts import StallReport
from otelgpu.diagnose.utilization.sentences import sentence as utilization_sentence
from otelgpu.diagnose.utilization.verdicts import UtilizationReport

_Report = TypeVar("_Report")
_MOST_SAID: Final = 20


class Diagnosed(Struct, Generic[_Report], frozen=True, kw_only=True):
    """``sentences``: a verdict each, the costliest first; ``report``: the document of ``--json``."""

    sentences: list[str]
    report: _Report


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One kind: its tool is ``diagnose_NAME``. ``report``: the type of what ``run`` gives."""

    name: str
    title: str
    text: str
    arguments: type[Struct]
    report: Any
    run: Callable[[Session, Any], Found[Any]]


class DiagnoseRanks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments. ``job``: where the input has several; times are of operations' beginnings."""

    input: InputName
    job: Word | None = None
    begin_unix_s: UnixSeconds | None = None
    end_unix_s: UnixSeconds | None = None


class OfProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments: one file with profiles."""

    input: InputName


def _ranks(session: Session, arguments: DiagnoseRanks) -> Found[Diagnosed[RanksReport]]:
    with session.recordings.operations(
        arguments.input,
        job=arguments.job,
        begin_s=arguments.begin_unix_s,
        end_s=arguments.end_unix_s,
    ) as tables:
        _, report = report_of(tables, query_of_one_job(tables), session.rules)
    has_spans = session.recordings.may_have_spans(arguments.input)
    following = [
        Next(
            tool="get_trace",
            arguments={"input": arguments.input, "trace_id": link.trace_id, "span_id": link.span_id},
            why=f"step {link.step} of rank {link.rank}, which shows it",
        )
        for verdict in report.verdicts
        for link in verdict.links[:1]
        if has_spans
    ]
    following += [
        Next(tool="explain", arguments={"words": [known.rule]}, why="a known problem that the evidence shows")
        for known in report.known
    ]
    return _found(map(rank_sentence, report.verdicts), report, following)


def _stall(session: Session, arguments: OfProfile) -> Found[Diagnosed[StallReport]]:
    report, _ = diagnose_stalls(observe(session.recordings.profiles(arguments.input)))
    return _found(map(stall_sentence, report.verdicts), report, ())


def _memory(session: Session, arguments: OfProfile) -> Found[Diagnosed[MemoryReport]]:
    report = memory_of(session.recordings.whole_file(arguments.input), Config())
    return _found(map(memory_sentence, report.verdicts), report, ())


def _utilization(session: Session, arguments: OfProfile) -> Found[Diagnosed[UtilizationReport]]:
    report = utilization_of(session.recordings.whole_file(arguments.input), Config())
    return _found(map(utilization_sentence, report.verdicts), report, ())


def _found(sentences: Any, report: _Report, following: Sequence[Next]) -> Found[Diagnosed[_Report]]:
    said = list(sentences)[:_MOST_SAID]
    return Found(result=Diagnosed(sentences=said or ["Nothing is wrong."], report=report), next=following[:8])


DIAGNOSES: Final = (
    Diagnosis(
        name="ranks",
        title="Slow ranks of a training job",
        text="Which rank of a training job is slow, since when, why, what it costs and what to do: from operations of "
        "all ranks (a folder, Parquet, OTLP lines, torch.profiler traces, Flight Recorder dumps, ClickHouse).",
        arguments=DiagnoseRanks,
        report=RanksReport,
        run=_ranks,
    ),
    Diagnosis(
        name="stall",
        title="What a program stands still for",
        text="Why a program stands still time and again: the line, the file, how long, how often, and the change to "
        "make: from a profile with the kinds cpu, offcpu, syscall and file, or a capture.",
        arguments=OfProfile,
        report=StallReport,
        run=_stall,
    ),
    Diagnosis(
        name="utilization",
        title="Why GPUs are little used",
        text="Which of the known causes leave a job's GPUs idle, what each costs, the change to make: from a profile "
        "with the kinds cpu, offcpu, syscall, file, cuda and nccl, or a capture.",
        arguments=OfProfile,
        report=UtilizationReport,
        run=_utilization,
    ),
    Diagnosis(
        name="memory",
        title="What holds a GPU's memory",
        text="What device memory is for, now and at the peak, by category and place in the code; what grows and is "
        "never freed; why an allocation failed: from a profile of kind mem, or a capture.",
        arguments=OfProfile,
        report=MemoryReport,
        run=_memory,
    ),
)
"""All there are."""
