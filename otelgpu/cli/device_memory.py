"""``otelgpu diagnose memory``: watches device memory for a while, or reads a profile of it, and says what it is for."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec import Struct, field, structs
from rich.table import Table

from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.file_or_program import (
    FileOrProgram,
    input_options,
    profile_given,
    program_of,
    report_options,
)
from otelgpu.cli.options import common_options, configure
from otelgpu.cli.page_files import memory_page_files
from otelgpu.cli.parameters import refuse_overwriting
from otelgpu.cli.profile import Request, families_for
from otelgpu.cli.profile_inputs import is_capture, read_file, replay_capture
from otelgpu.cli.profile_outputs import Output
from otelgpu.cli.verdict_events import verdict_event
from otelgpu.cli.verdict_text import (
    FOUND,
    UNDECIDED,
    Lines,
    counted,
    number_table,
    say_limits,
    say_verdict,
)
from otelgpu.config import Config
from otelgpu.diagnose.memory.diagnosis import Seen, diagnose
from otelgpu.diagnose.memory.levels import NAMES, Levels
from otelgpu.diagnose.memory.observations import observe
from otelgpu.diagnose.memory.sentences import sentence
from otelgpu.diagnose.memory.verdicts import INCONCLUSIVE, DeviceHeld, HeldAt, MemoryReport
from otelgpu.model.events import Event
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.quantities import duration as written_duration
from otelgpu.model.quantities import size
from otelgpu.model.text import printable
from otelgpu.otlp_json.log_reader import read_events
from otelgpu.otlp_json.reader import Reader
from otelgpu.processes.listing import descendants

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.export.memory import MemoryExporter

KINDS: Final = frozenset((ProfileKind.MEM,))
"""What is recorded."""
EVERY_MS: Final = 1000
"""From one look at what is held, and at what the driver says, to the next."""
_MOST_PLACES: Final = 8


class _Found(Struct):
    """What was recorded, and of whom."""

    profiles: Sequence[ProfileColumns] = ()
    events: Sequence[Event] = ()
    levels: Levels = field(default_factory=Levels)
    subjects: Collection[int] = ()
    title: str = ""

    def see_metrics(self, data: MetricsData) -> None:
        """Those of memory are kept."""
        from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData as Message

        from otelgpu.otlp_json.writer import message_line

        wanted = Message()
        for owner in data.resource_metrics:
            for scope in owner.scope_metrics:
                metrics = [each for each in scope.metrics if each.name in NAMES]
                if metrics:
                    made = wanted.resource_metrics.add(resource=owner.resource)
                    made.scope_metrics.add(scope=scope.scope, metrics=metrics)
        if wanted.resource_metrics:
            self.levels.read([message_line(wanted)])


@click.command(cls=FileOrProgram)
@common_options
@input_options("Record")
@report_options("the verdicts, and each device's memory by category and place")
@batch_command("diagnose memory")
def memory(
    run: BatchRun,
    /,
    files: tuple[Path, ...],
    pids: tuple[int, ...],
    duration: float | None,
    as_json: bool,
    output: Path | None,
    force: bool,
    **options: Any,
) -> None:
    """What holds the memory of a GPU: weights, KV cache, activations, gradients, optimizer, workspace, free cache.

    Says what is held now and at the peak, by category and by place in the code, what grows and is never freed, and why
    an allocation failed. Categories are estimates by the names of the frames that allocate. What was allocated before
    the command attached is not seen: start the program with it, or attach early.

    FILE: what otelgpu profile -t mem --export file:FILE wrote, or a capture.

    Exit code: 0 nothing was found, 3 verdicts, 4 inconclusive: it says what is missing.

    \b
    Examples:
      otelgpu diagnose memory -p 4242 -d 60
      otelgpu diagnose memory -o report.html -- python train.py
      otelgpu diagnose memory profile.jsonl --json
    """
    program = program_of(files, pids, duration)
    if output is not None:
        refuse_overwriting([output], force=force)
    config = configure(options)
    if files:
        run.read(*files)
        found = _read(files[0], config)
    else:
        config = structs.replace(
            config,
            families=families_for(KINDS),
            profiles=tuple(sorted(KINDS)),
            profile_interval_s=EVERY_MS / 1e3,
            device_interval_ms=EVERY_MS,
            metric_interval_ms=EVERY_MS,
            source="uprobe",
            export=(),
        )
        found = _record(config, pids, program, duration)
    report = _report(found)
    run.skip(report.input.rejected)
    faults = [each for each in report.verdicts if each.klass != INCONCLUSIVE]
    run.conclude(verdict_event(each, sentence(each)) for each in faults)
    if output is not None:
        _write_page(output, report, found.title)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False))
    else:
        _write(report)
    sys.exit(FOUND if faults else UNDECIDED if report.verdicts else 0)


def report_on(path: Path, config: Config) -> MemoryReport:
    """Of a file. Raises :class:`OtelgpuError` where it cannot be read."""
    return _report(_read(path, config))


def _report(found: _Found) -> MemoryReport:
    return diagnose(
        Seen(
            profiles=observe(found.profiles),
            levels=found.levels,
            events=found.events,
            subjects=found.subjects,
        )
    )


def _read(path: Path, config: Config) -> _Found:
    found = _Found(title=path.name)
    if is_capture(path):
        config = structs.replace(config, profile_interval_s=EVERY_MS / 1e3)
        kept, _ = replay_capture(path, config, see_metrics=found.see_metrics)
        found.profiles, found.events = kept.profiles, kept.events
        return found
    from otelgpu.render.format import read_profiles

    content = read_file(path)
    lines = content.split(b"\n")
    found.profiles = read_profiles(path.name, content)
    found.levels.read(lines)
    reader = Reader(path.name)
    found.events = list(read_events(lines, reader))
    found.levels.rejected += reader.skips.counts.total()
    return found


def _record(config: Config, pids: tuple[int, ...], program: tuple[str, ...], seconds: float | None) -> _Found:
    found = _Found()

    def finish(request: Request, kept: MemoryExporter, what: str) -> None:
        found.profiles, found.events, found.title = kept.profiles, kept.events, what

    profile_given(config, program, pids, seconds, finish, see_metrics=found.see_metrics)
    if pids:
        found.subjects = {*pids, *descendants(*pids)}
    return found


def _write_page(output: Path, report: MemoryReport, title: str) -> None:
    from otelgpu.diagnose.memory.memory_page import memory_page

    with closing(Output(output)) as file:
        file.write(memory_page(report, memory_page_files(), title=title))


def _write(report: MemoryReport) -> None:
    lines = Lines()
    say = lines.say
    if not report.verdicts:
        say("Nothing was found: nothing grows, and no allocation failed that mattered.", "bold")
    for verdict in report.verdicts:
        undecided = verdict.klass == INCONCLUSIVE
        say_verdict(
            lines, sentence(verdict), verdict.evidence, undecided_next=verdict.next if undecided else None
        )
        if verdict.rule:
            say(f"  known problem: otelgpu diagnose explain {verdict.rule}")
    for device in report.devices:
        say("")
        _write_device(device, lines)
    say("")
    seen = report.input
    say(
        f"{counted(seen.processes, 'process', 'processes')}, {counted(seen.snapshots, 'look')} "
        f"in {seen.seconds:.1f} s, {counted(seen.failures, 'failed allocation')}, {seen.recovered} recovered"
    )
    say_limits(lines, report.remarks, report.limits, seen.rejected, remark="no fault")


def _write_device(device: DeviceHeld, lines: Lines) -> None:
    which = f"device {device.device}" if device.device >= 0 else "a device that is not known"
    of = (
        f", {size(device.free)} of {size(device.total)} free"
        if device.total and device.free is not None
        else ""
    )
    lines.say(f"{device.program} (PID {device.pid}), {which}{of}", "bold")
    for held in (device.peak, device.now):
        lines.say(_summary(held))
    lines.show(_categories(device))
    if device.places:
        lines.show(_places(device))


def _summary(held: HeldAt) -> str:
    older = f", {size(held.older)} of it from before" if held.older else ""
    text = f"{held.when}: {size(held.bytes)}{older}"
    if held.charged is None or held.context is None:
        return text
    if held.context < 0:
        return f"{text}; the driver charged {size(held.charged)}, which is older or newer than this look"
    rest = f"{size(held.context)} are CUDA's context and what was not seen"
    return f"{text}; the driver charges {size(held.charged)}: {rest}"


def _categories(device: DeviceHeld) -> Table:
    table = number_table("By category (estimates)", "at the peak", "share", device.now.when)
    table.add_column("category", no_wrap=True)
    table.add_column("by", overflow="fold")
    now = {each.category: each.bytes for each in device.now.categories}
    for each in device.peak.categories:
        held = now.get(each.category, 0)
        words = (size(each.bytes), f"{each.share:.1%}", size(held), each.category)
        table.add_row(*words, printable("; ".join(each.evidence)))
    return table


def _places(device: DeviceHeld) -> Table:
    table = number_table("Places that held most at the peak", "bytes", "number", "lifetime")
    table.add_column("category", no_wrap=True)
    table.add_column("", overflow="fold")
    for each in device.places[:_MOST_PLACES]:
        place = " ← ".join(each.python or each.stack[:2]) or "not known"
        table.add_row(
            size(each.bytes),
            f"{each.allocations:,}" if each.allocations is not None else "",
            "kept" if each.lifetime_s is None else written_duration(each.lifetime_s * 1e9),
            each.category,
            printable(place),
        )
    return table
