"""``otelgpu diagnose utilization``: watches a job, or reads a recording, and says what its GPUs wait for."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec import structs

from otelgpu.cli.asked_server import KEY, AskedServer, asked_server
from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.file_or_program import (
    FileOrProgram,
    input_options,
    profile_given,
    program_of,
    report_options,
)
from otelgpu.cli.job_watch import JobWatch
from otelgpu.cli.model_files import FoundModel, given_model
from otelgpu.cli.options import common_options, configure
from otelgpu.cli.page_files import utilization_page_files
from otelgpu.cli.parameters import refuse_overwriting
from otelgpu.cli.profile import Request, families_for
from otelgpu.cli.profile_inputs import is_capture, read_profiles_of
from otelgpu.cli.profile_outputs import Output
from otelgpu.cli.verdict_events import verdict_event
from otelgpu.cli.verdict_text import (
    FOUND,
    UNDECIDED,
    Lines,
    counted,
    say_limits,
    say_verdict,
    spent_table,
)
from otelgpu.config import Config
from otelgpu.diagnose.stall.observations import Observations, observe
from otelgpu.diagnose.utilization.diagnosis import Job, calls_of_threads, diagnose
from otelgpu.diagnose.utilization.figures import Workload
from otelgpu.diagnose.utilization.gpu_calls import gpu_calls
from otelgpu.diagnose.utilization.job_facts import calls_by_name
from otelgpu.diagnose.utilization.lost import lost_of
from otelgpu.diagnose.utilization.matrix_products import matrix_products
from otelgpu.diagnose.utilization.peaks import Peak, parse_peaks
from otelgpu.diagnose.utilization.recorded_calls import recorded_calls
from otelgpu.diagnose.utilization.sentences import sentence, shown_figure
from otelgpu.diagnose.utilization.verdicts import INCONCLUSIVE, UtilizationReport
from otelgpu.errors import OtelgpuError
from otelgpu.model.profiling import ProfileKind

if TYPE_CHECKING:
    from otelgpu.export.memory import MemoryExporter

KINDS: Final = frozenset(
    (
        *(ProfileKind.CPU, ProfileKind.OFFCPU, ProfileKind.SYSCALL, ProfileKind.FILE),
        *(ProfileKind.CUDA, ProfileKind.NCCL),
    )
)
"""What is recorded, beside the spans of all calls of CUDA."""
SHORTEST_WAIT_US: Final = 50
Work = Callable[..., Workload]
"""What was said of it, for a shape."""
RING_BYTES: Final = 32 << 20
"""So that calls are recorded, not counted, while the recorder is held up for a second or two."""
CALLS_APART: Final = 1 << 19
"""Calls of a process in 5 s that are kept apart, some 100 MB: 100,000 a second; more are summed, and counted so."""
LONGEST_LINE: Final = 64 << 20


@click.command(cls=FileOrProgram)
@common_options
@input_options("Watch")
@click.option(
    "--model-config",
    metavar="config.json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The model's configuration, as transformers has it: for MFU and MBU (default: that of the model which the "
    "job's command names).",
)
@click.option(
    "--ask-server",
    metavar="URL",
    callback=asked_server,
    help="Ask the job's server, on loopback (http://127.0.0.1:8000), for the model that it serves: GET /v1/models, "
    f"with the key in {KEY}, if any.",
)
@click.option(
    "--tokens-per-step",
    type=click.IntRange(min=1, max=1 << 40),
    metavar="N",
    help="Tokens of a step, of all devices; with --inference the sequences of a batch.",
)
@click.option(
    "--tokens-per-second",
    type=click.FloatRange(min=0, min_open=True, max=1e15),
    metavar="N",
    help="The same, where steps are not found.",
)
@click.option(
    "--context",
    type=click.IntRange(min=0, max=1 << 30),
    default=0,
    metavar="N",
    help="Tokens of a sequence: for attention and the KV cache (default 0: without).",
)
@click.option(
    "--inference", is_flag=True, help="Steps decode, in place of training: 2N FLOPs a token, and MBU."
)
@click.option(
    "--flops",
    is_flag=True,
    help="Count FLOPs of matrix products, by probes on cuBLAS and cuBLASLt: MFU without --model-config, at least.",
)
@report_options("verdicts and figures")
@batch_command("diagnose utilization")
def utilization(
    run: BatchRun,
    /,
    files: tuple[Path, ...],
    pids: tuple[int, ...],
    duration: float | None,
    model_config: Path | None,
    ask_server: AskedServer | None,
    tokens_per_step: int | None,
    tokens_per_second: float | None,
    context: int,
    inference: bool,
    flops: bool,
    as_json: bool,
    output: Path | None,
    force: bool,
    **options: Any,
) -> None:
    """Why a job's GPUs are little used: which of the known causes apply, what each costs, and the change to make.

    When the device is idle is known by its own times where they are measured, else bounded by the calls of CUDA. What
    the thread that launches did meanwhile is the cause: a checkpoint, a copy that blocks, the next batch, a look at a
    result, kernels that are too small; or the job itself: somebody types, it is done, it has the wrong library.

    FILE: what OTELGPU_DETAIL=all otelgpu profile -t cpu,offcpu,syscall,file,cuda,nccl --export file:FILE wrote, or a
    capture.

    Exit code: 0 nothing was found, 3 verdicts, 4 inconclusive: it says what is missing.

    \b
    Examples:
      otelgpu diagnose utilization -p 4242
      otelgpu diagnose utilization -p 4242 -d 60 --model-config config.json --tokens-per-step 16384
      otelgpu diagnose utilization -p 4242 --ask-server http://127.0.0.1:8000 --tokens-per-second 3000
      otelgpu diagnose utilization -o report.html -- python train.py
      otelgpu diagnose utilization profile.jsonl --json
    """
    program = program_of(files, pids, duration)
    if files and model_config is None and (tokens_per_step or tokens_per_second or context or inference):
        raise click.UsageError("tokens, context and --inference of a FILE need --model-config")
    if ask_server is not None and (files or model_config is not None):
        raise click.UsageError("--ask-server is for what runs, and without --model-config")
    if flops and files:
        raise click.UsageError("--flops is for what runs: it takes probes on cuBLAS")
    if output is not None:
        refuse_overwriting([output], force=force)
    work = partial(
        Workload,
        training=not inference,
        tokens_per_step=tokens_per_step or 0,
        tokens_per_second=tokens_per_second or 0.0,
        context=context,
    )
    workload = work(shape=given_model(model_config)) if model_config is not None else None
    config = configure(options)
    if files:
        run.read(*files)
        job, title = _recorded(files[0], config), files[0].name
    else:
        with _to_watch(config, flops=flops) as config:
            job, title, model = _watch(config, pids, program, duration, ask_server)
        workload = workload or _work_of(model, work)
        job.products = job.products if flops else None
    job.workload, job.peaks = workload, installed_peaks()
    report, _ = diagnose(job)
    run.skip(report.input.rejected)
    found = [each for each in report.verdicts if each.klass != INCONCLUSIVE]
    run.conclude(
        verdict_event(each, sentence(each), each.cost.seconds if each.cost else 0.0) for each in found
    )
    if output is not None:
        from otelgpu.diagnose.utilization.utilization_page import utilization_page

        with closing(Output(output)) as file:
            file.write(utilization_page(report, utilization_page_files(), title=title))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False))
    else:
        _write(report)
    sys.exit(FOUND if found else UNDECIDED if report.verdicts else 0)


def report_on(path: Path, config: Config) -> UtilizationReport:
    """Of a file, without a model's configuration. Raises :class:`OtelgpuError` where it cannot be read."""
    job = _recorded(path, config)
    job.peaks = installed_peaks()
    return diagnose(job)[0]


def installed_peaks() -> list[Peak]:
    """The table that comes with otelgpu."""
    return parse_peaks(resources.files("otelgpu.diagnose.utilization").joinpath("peaks.json").read_bytes())


def _work_of(model: FoundModel | None, work: Work) -> Workload | None:
    """On the model that a process's command names; None where none does."""
    if model is None:
        return None
    found = work(shape=model.shape, source=model.source)
    return structs.replace(found, training=False) if model.serves else found


def _recorded(path: Path, config: Config) -> Job:
    rejected: Counter[str] = Counter()
    read = read_profiles_of(path, config)
    seen = observe(read.profiles)
    if is_capture(path):
        calls, times = gpu_calls(read.spans, rejected)
    else:
        with path.open("rb") as file:
            calls, times = recorded_calls(_lines(file), rejected)
    if not len(calls):
        calls = calls_of_threads(seen.threads)
    return Job(
        observations=seen,
        calls=calls,
        times=times,
        watched_ns=_span(seen),
        rejected=rejected,
        lost=lost_of({}, beyond=_not_kept(rejected)),
    )


@contextmanager
def _to_watch(config: Config, *, flops: bool) -> Iterator[Config]:
    """What is recorded of a job; ``flops``: with probes on matrix products."""
    config = structs.replace(
        config,
        families=families_for(KINDS),
        profiles=tuple(sorted(KINDS)),
        profile_launches=False,
        ring_bytes=max(config.ring_bytes, RING_BYTES),
        profile_off_cpu_us=min(config.profile_off_cpu_us, SHORTEST_WAIT_US),
        source="uprobe",
        detail="all",
        export=(),
        probe_file="",
        probe_program="",
    )
    if not flops:
        yield config
        return
    resource = resources.files("otelgpu.diagnose.utilization").joinpath("matrix_probes.json")
    with resources.as_file(resource) as path:
        yield structs.replace(config, probe_file=str(path), families=(*config.families, "probe"))


def _not_kept(rejected: Mapping[str, int]) -> int:
    return sum(rejected.get(reason, 0) for reason in ("calls_merged", "calls_beyond_limit", "calls_left_out"))


def _lines(file: Any) -> Iterator[bytes | None]:
    while line := file.readline(LONGEST_LINE):
        yield line


def _span(seen: Observations) -> tuple[int, int]:
    rows = [row for thread in seen.threads for row in thread.rows]
    return min((row.begin_ns for row in rows), default=0), max((row.end_ns for row in rows), default=0)


def _watch(
    config: Config,
    pids: tuple[int, ...],
    program: tuple[str, ...],
    seconds: float | None,
    server: AskedServer | None,
) -> tuple[Job, str, FoundModel | None]:
    watch = JobWatch(server=server)
    found: list[tuple[Job, str, FoundModel | None]] = []

    def finish(request: Request, memory: MemoryExporter, what: str) -> None:
        watch.stop()
        found.append((_job(watch, memory), what, watch.model))

    profile_given(
        config,
        program,
        pids,
        seconds,
        finish,
        begun=watch.pids.append,
        attached=watch.start,
        spans_per_parent=CALLS_APART,
    )
    if not found:
        raise OtelgpuError("it was ended before anything was seen")
    return found[0]


def _job(watch: JobWatch, memory: MemoryExporter) -> Job:
    rejected: Counter[str] = Counter()
    calls, times = gpu_calls(memory.spans, rejected)
    return Job(
        products=matrix_products(memory.spans, rejected),
        names=calls_by_name(memory.spans),
        host=_host(),
        observations=observe(memory.profiles),
        calls=calls,
        times=times,
        watched_ns=(watch.begin_ns, watch.end_ns),
        subjects=watch.pids,
        processes=watch.processes,
        devices=watch.devices(),
        device_note=watch.device_note(),
        server_note=watch.server_note(),
        surroundings=watch.surroundings(),
        rejected=rejected,
        lost=lost_of(memory.losses, beyond=_not_kept(rejected) + memory.stats()["spans_lost_memory_full"]),
    )


def _host() -> dict[str, str]:
    node = os.uname()
    return {"name": node.nodename, "kernel": node.release, "CPUs": str(os.cpu_count() or "")}


def _write(report: UtilizationReport) -> None:
    lines = Lines()
    say = lines.say
    if not report.verdicts:
        say("Nothing was found: no cause takes a share of the GPU's time.", "bold")
    for verdict in report.verdicts:
        undecided = verdict.klass == INCONCLUSIVE
        say_verdict(
            lines, sentence(verdict), verdict.evidence, undecided_next=verdict.next if undecided else None
        )
        if not undecided:
            say(f"  · confidence {verdict.confidence:.0%}")
        for line in verdict.code.splitlines():
            say(f"      {line}")
    say("")
    for figure in report.figures:
        say(shown_figure(figure))
    say("")
    if report.table:
        lines.show(spent_table("What the thread did while the GPU was idle", report.table, cause=""))
        say("")
    seen = report.input
    idle = (
        f"; the GPU was idle {seen.idle_share:.0%} (by {seen.idle_basis})"
        if seen.idle_share is not None
        else ""
    )
    say(
        f"{counted(seen.processes, 'process', 'processes')}, {seen.calls:,} calls of CUDA in {seen.seconds:.1f} s{idle}"
    )
    say_limits(lines, report.remarks, report.limits, seen.rejected, remark="not one of the causes")
