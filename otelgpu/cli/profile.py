"""``otelgpu profile``: takes profiles for a while, detaches, and writes what was asked for.

In: processes, a container or a program. Out: files, or a table of what stands out. The probes are off and the observed
program is as it was before the first file is written.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct, structs
from msgspec.structs import replace

from otelgpu import agent as wiring
from otelgpu.child import Child, RunningProcesses
from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.completion import complete_containers, complete_profiles
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.logs import say
from otelgpu.cli.losses import explain, loss_lines
from otelgpu.cli.main import INTERRUPTED
from otelgpu.cli.observe import SETTLE_S, forwarding, open_source
from otelgpu.cli.options import (
    agent_scope,
    common_options,
    configure,
    injected_source,
    load_into,
    openings,
    plan,
)
from otelgpu.cli.parameters import (
    PROGRAM_FOLLOWS,
    Duration,
    force_option,
    pid_option,
    processes_of,
    program_argument,
    refuse_overwriting,
    require_container,
    require_observable,
)
from otelgpu.cli.privilege_plan import give_up, report_missing
from otelgpu.cli.profile_outputs import Outputs, totals_of
from otelgpu.cli.profile_progress import Progress
from otelgpu.cli.profile_totals import write_totals
from otelgpu.config import Config
from otelgpu.engine import registry
from otelgpu.errors import OtelgpuError
from otelgpu.export.registry import forms
from otelgpu.families.profiles.operations import GPU_KERNEL_TIME, KERNEL_LAUNCHES
from otelgpu.kernel.scope import Scope
from otelgpu.model.profiling import ProfileKind
from otelgpu.processes.libraries import resolve_program
from otelgpu.processes.listing import descendants
from otelgpu.sources.discoveries import discovery_of
from otelgpu.sources.joint import Source

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.cli.shared_writeback import SharedWriteback
    from otelgpu.export.memory import MemoryExporter
    from otelgpu.render.profile_totals import KindTotals
    from otelgpu.sources.injected import InjectedSource

DEFAULT_SECONDS: Final = 10.0
"""Of processes that run already; a program that is started is profiled until it ends."""
_FAMILY: Final = "profile"
_MIB: Final = 1 << 20
_WHY_NO_DEVICE_TIME: Final = "cupti_"  # a process has none at all: docs/reference/cupti.md


def parse_kinds(values: Sequence[str]) -> frozenset[ProfileKind]:
    """Words separated by commas, or ``all``. Raises :class:`click.BadParameter` on one that is none."""
    words = [word.strip() for value in values for word in value.split(",") if word.strip()]
    if "all" in words:
        return frozenset(ProfileKind)
    try:
        return frozenset(ProfileKind(word) for word in words)
    except ValueError as error:
        wrong = next(word for word in words if word not in set(ProfileKind))
        known = ", ".join(ProfileKind)
        raise click.BadParameter(f"there is no kind {wrong!r}; there are: {known}, all") from error


def families_for(kinds: frozenset[ProfileKind]) -> tuple[str, ...]:
    """Whose records the kinds need; with calls also what links them to requests and steps."""
    wanted = {name for name in registry.with_records() if discovery_of(name).profiles.kinds & kinds}
    if kinds == frozenset(ProfileKind):
        wanted.update(registry.select(()))
    return tuple(sorted(wanted))


def settings_for(
    config: Config,
    kinds: frozenset[ProfileKind],
    frequency_hz: int,
    *,
    families: tuple[str, ...] = (),
    export: tuple[str, ...] = (),
) -> Config:
    """Of ``config`` what holds for profiles, too. ``families``: whose records are taken; those that the kinds need."""
    return structs.replace(
        config,
        source="uprobe" if config.source == "inject" else config.source,
        families=families or families_for(kinds),
        profiles=tuple(sorted(kinds)),
        profile_frequency_hz=frequency_hz,
        export=export,
    )


def ring_bytes(megabytes: int) -> int:
    """A ring's size is a power of two: the next one."""
    return 1 << (megabytes * _MIB - 1).bit_length()


class Request(Struct, frozen=True, kw_only=True):
    """What was asked for. ``seconds`` None: as long as the program runs. ``see_metrics``: as they are reported.

    ``attached`` is called when probes are in place, and privileges given up.
    """

    config: Config
    seconds: float | None
    delay_s: float
    outputs: Outputs
    quiet: bool
    see_metrics: Callable[[MetricsData], object] | None = None
    device_time: bool = False  # a library in the program asks for it, and its losses say where there is none
    attached: Callable[[], None] = lambda: None
    candidates: bool = False  # say whose the writes to disks may be that are in no request
    spans_per_parent: int = 0  # see SignalSettings


class Attached(Struct, frozen=True, kw_only=True):
    """Probes that are in place, and what is made of what they see."""

    source: Source
    planned: wiring.Plan
    memory: MemoryExporter


def attach(
    request: Request,
    scope: Scope,
    calls: InjectedSource | None = None,
    *,
    into: Iterable[int] = (),
    starts_program: bool = False,
) -> Attached:
    """Load what is asked for; then give up what is not needed from here on, before threads are there.

    ``calls``: where those of CUDA come from, if not from probes; the caller's to close where this raises. ``into``:
    running processes that its library is loaded into.
    """
    from otelgpu.export.memory import MemoryExporter

    config, memory = request.config, MemoryExporter(see_metrics=request.see_metrics)
    source = open_source(config, scope, calls, needed=_FAMILY)
    try:
        if _FAMILY not in source.rings:
            raise OtelgpuError("nothing can be profiled on this kernel", "otelgpu check says what it lacks")
        if calls is not None:
            report_missing()
            if into:
                load_into(calls, into)
        wanted = openings(config, os.environ, needed=False)
        files = {
            number: opening.open()
            for number, opening in enumerate(wanted)
            if opening.destination.is_opened_early
        }
        planned = plan(config)
        planned = replace(
            planned,
            profiling=replace(planned.profiling, keep_times=True),
            settings=replace(planned.settings, spans_per_parent=request.spans_per_parent),
            open_exporters=lambda: [
                memory,
                *(files.get(number) or opening.open() for number, opening in enumerate(wanted)),
            ],
        )
        if config.drop_privileges:
            give_up(config, starts_program=starts_program)
    except BaseException:
        source.close()
        raise
    return Attached(source=source, planned=planned, memory=memory)


def take(
    request: Request,
    attached: Attached,
    what: str,
    interrupts: wiring.Interrupts,
    *,
    of: Collection[int],
    ended: int | None = None,
    lives: Callable[[], bool] = lambda: True,
) -> MemoryExporter:
    """Collect until the time is over, everybody has ended or somebody says so; then detach.

    ``of``: processes that it is of, with their descendants. ``ended``: a descriptor that is readable when ``lives`` may
    have changed. The source is closed at return.
    """
    source = attached.source
    writeback = _shared_writeback() if request.candidates else None
    session = wiring.Agent(source, attached.planned)
    source.start_holding()
    request.attached()
    until = time.monotonic() + request.seconds if request.seconds is not None else None
    goes = str(request.outputs) if request.outputs else "standard output"
    with Progress(source, what, goes, request.seconds).shown() as progress:
        while lives() and not interrupts.requested:
            now = time.monotonic()
            if until is not None and now >= until:
                break
            turns = [until] if until is not None else []
            if progress.every_s is not None:
                turns.append(now + progress.every_s)
            session.work(interrupts, until=min(turns, default=None), also=ended)
            progress.refresh()
    if writeback is not None:
        writeback.end(of)
    reasons = {reason for (_, reason), count in source.totals().items() if count}
    outcome = session.finish()
    attached.memory.losses = outcome.summary.losses if outcome.summary is not None else {}
    if not request.quiet:
        _report_losses(outcome)
        for reason in sorted(reasons):
            if reason.startswith(_WHY_NO_DEVICE_TIME):
                say(f"{explain('cuda', reason)[1]} ({reason}); see docs/reference/cupti.md")
    if writeback is not None and (text := writeback.sentence(attached.memory.profiles, reasons)):
        say(text)
    return attached.memory


def _shared_writeback() -> SharedWriteback:
    from otelgpu.cli.shared_writeback import SharedWriteback  # not every kind needs it

    return SharedWriteback()


def _report_losses(outcome: wiring.Outcome) -> None:
    losses = outcome.summary.losses if outcome.summary is not None else {}
    mine = {key: count for key, count in losses.items() if key[0] == _FAMILY and count}
    for line in loss_lines(mine) if mine else ():
        say(line)


NO_DEVICE_TIME: Final = (
    "launches have no time on the device: that takes a library in the process; --inject loads it into one that runs, "
    "and programs that otelgpu starts have it (otelgpu profile -t kernel -- COMMAND)"
)


def lacks_device_time(totals: Iterable[KindTotals]) -> bool:
    """Whether kernels were launched, and nobody measured how long they ran."""
    types = {each.type for each in totals if each.samples}
    return KERNEL_LAUNCHES.type in types and GPU_KERNEL_TIME.type not in types


def write(request: Request, memory: MemoryExporter, what: str) -> None:
    """The files; where none is asked for, tables on standard output."""
    totals = totals_of(memory.profiles)
    if lacks_device_time(totals) and not request.device_time and not request.quiet:
        say(NO_DEVICE_TIME)
    if not request.outputs:
        from rich.console import Console

        width = None if sys.stdout.isatty() else 160
        console = Console(markup=False, emoji=False, highlight=False, width=width)
        write_totals(totals, console)
        return
    request.outputs.write(memory.profiles, memory.spans, f"otelgpu profile of {what}")
    if not request.quiet:
        counts = (f"{each.type} {each.samples:,}" for each in totals)
        say(f"written to {request.outputs}: {', '.join(counts) or 'no samples'}")


Finish = Callable[[Request, "MemoryExporter", str], None]
"""What is made of a profile once the probes are off: :func:`write`, or another command's."""


def profile_processes(request: Request, pids: tuple[int, ...], finish: Finish = write) -> int:
    """Running processes, and the children that they have or get."""
    require_observable(pids)
    what = f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
    with wiring.Interrupts(abandon=request.outputs.close) as interrupts:
        if not _waited(request.delay_s, interrupts.fd):
            return INTERRUPTED
        members = dict.fromkeys(member for tgid in pids for member in (tgid, *descendants(tgid)))
        attached = _attach_to_running(request, pids, members)
        with closing(attached.source):
            attached.source.settle(members, SETTLE_S)
            for member in members:
                attached.source.observe(member)
            with RunningProcesses(members) as living:
                memory = take(
                    request, attached, what, interrupts, of=members, ended=living.fd, lives=living.some
                )
    finish(request, memory, what)
    return 0


def _attach_to_running(request: Request, pids: tuple[int, ...], members: Collection[int]) -> Attached:
    if not request.device_time:
        return attach(request, Scope(processes=pids))
    calls = injected_source(structs.replace(request.config, device_time=True))
    try:
        return attach(request, Scope(processes=pids), calls, into=members)
    except BaseException:
        calls.close()
        raise


def profile_container(request: Request, container: str) -> int:
    """What runs in a container, by its id or the beginning of it."""
    require_container(container)
    scope = agent_scope(structs.replace(request.config, containers=(container,), executables=(), cgroups=()))
    what = f"container {container[:12]}"
    with wiring.Interrupts(abandon=request.outputs.close) as interrupts:
        if not _waited(request.delay_s, interrupts.fd):
            return INTERRUPTED
        attached = attach(request, scope)
        with closing(attached.source):
            members = processes_of(container)
            attached.source.settle(members, SETTLE_S)
            attached.source.observe_running()
            memory = take(request, attached, what, interrupts, of=members)
    write(request, memory, what)
    return 0


def profile_program(
    request: Request,
    argv: tuple[str, ...],
    finish: Finish = write,
    started: Callable[[int], None] = lambda pid: None,
) -> int:
    """Start a program and profile it and its children; its exit code. It goes on where the time is over first.

    ``started`` is told its process id.
    """
    calls = None if request.delay_s else _calls_with_device_time(request.config)
    request = structs.replace(request, device_time=calls is not None)
    child = Child(argv, calls.environment(os.environ) if calls is not None else None)
    started(child.pid)
    what = os.path.basename(argv[0])
    try:
        attached = None if request.delay_s else _attach_to_newborn(request, child.pid, argv, calls)
    except BaseException:
        child.abandon()
        if calls is not None:
            calls.close()  # its socket lies in a folder
        raise
    ending = wiring.Interrupts(forwarding(child), abandon=request.outputs.close)
    with ending as interrupts, ExitStack() as stack:
        if attached is not None:
            stack.enter_context(closing(attached.source))
        child.start()
        try:
            if attached is None and _waited(request.delay_s, interrupts.fd, child.pidfd):
                attached = attach(request, Scope(processes=(child.pid,)), starts_program=True)
                stack.enter_context(closing(attached.source))
                members = (child.pid, *descendants(child.pid))
                attached.source.settle(members, SETTLE_S)
                for member in members:
                    attached.source.observe(member)
            if attached is None:
                raise OtelgpuError(f"{what} ended, or was ended, within the {request.delay_s:g} s of --delay")
            memory = take(
                request,
                attached,
                what,
                interrupts,
                of=(child.pid,),
                ended=child.pidfd,
                lives=lambda: _runs(child.pidfd),
            )
            finish(request, memory, what)
        finally:
            stack.close()  # what fails here does not become a fault of the program's: it runs to its own end
            code = child.wait()
    return code


def _calls_with_device_time(config: Config) -> InjectedSource | None:
    """Of a program that is started for it, kernels are timed on the device: by a library in it.

    None where nobody asked for kernels, or the library is not there, which is said.
    """
    if ProfileKind.KERNEL not in config.profiles:
        return None
    try:
        return injected_source(structs.replace(config, device_time=True))
    except OtelgpuError as error:
        say(f"kernels without times on the device: {error.message}")
        return None


def _attach_to_newborn(
    request: Request, tgid: int, argv: tuple[str, ...], calls: InjectedSource | None
) -> Attached:
    """To a program that has not been started yet."""
    attached = attach(request, Scope(processes=(tgid,), newborn=True), calls, starts_program=True)
    if calls is not None:
        attached.source.prepare_file(calls.library)  # where stacks of its calls are taken
    attached.source.observe(tgid)
    for path in resolve_program(argv, dict(os.environ), Path.cwd(), attached.source.library_names).files:
        attached.source.prepare_file(path)
    attached.source.settle((), SETTLE_S)
    return attached


def _runs(pidfd: int) -> bool:
    return not select.select([pidfd], [], [], 0)[0]


def _waited(seconds: float, *others: int) -> bool:
    """Whether the time went by before one of the descriptors was readable."""
    return not seconds or not select.select(others, [], [], seconds)[0]


@click.command(cls=HeadedCommand, context_settings=PROGRAM_FOLLOWS)
@common_options
@pid_option("Running processes.")
@click.option(
    "--container",
    metavar="ID",
    shell_complete=complete_containers,
    help="Processes of this container (id or its start).",
)
@click.option(
    "-t",
    "--type",
    "types",
    multiple=True,
    default=("python,cpu",),
    metavar="LIST",
    shell_complete=complete_profiles,
    help=f"Kinds: {','.join(ProfileKind)}; or all. Default: python,cpu.",
)
@click.option(
    "-d",
    "--duration",
    type=Duration(above=True),
    metavar="TIME",
    help="Stop after so long: 30, 90s, 5m (default 10 s; of a program that is started: when it ends).",
)
@click.option(
    "--delay",
    type=Duration(),
    default=0.0,
    metavar="TIME",
    help="Attach so much later: nothing is observed before.",
)
@click.option(
    "--frequency",
    type=click.IntRange(min=19, max=997),
    default=99,
    metavar="HZ",
    help="CPU samples per second and thread, 19 to 997 (default 99).",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Write a file, by its name's end: docs/reference/profiles.md; repeatable. Default: tables on standard output.",
)
@click.option(
    "--inject",
    is_flag=True,
    help="Load a library into the processes of -p, for the GPU's time in kernels: docs/explanation/inject.md.",
)
@force_option
@click.option("--export", multiple=True, metavar="DEST", help=f"Send it there too: {forms()}.")
@click.option(
    "--buffer",
    type=click.IntRange(min=1, max=1024),
    metavar="MB",
    help="Size of each ring in MiB, rounded up to a power of two (default 8).",
)
@click.option("--quiet", is_flag=True, help="Say nothing of losses, and of what was written.")
@program_argument()
@batch_command("profile")
def profile(
    run: BatchRun,
    /,
    command: tuple[str, ...],
    pids: tuple[int, ...],
    container: str | None,
    types: tuple[str, ...],
    duration: float | None,
    delay: float,
    frequency: int,
    outputs: tuple[Path, ...],
    inject: bool,
    force: bool,
    buffer: int | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Take profiles of running processes, a container or a program, then detach.

    Ctrl-C ends it early, and what was seen until then is written. The exit code is 0, or the started program's.

    \b
    Examples:
      otelgpu profile -p 4242                               # the Python and CPU time of ten seconds, as tables
      otelgpu profile -p 4242 -t all -d 30 -o flame.html
      otelgpu profile -t cpu,offcpu,file -o out.pb.gz -o out.folded -- python train.py
      otelgpu profile -t kernel -p 4242 --inject            # with the GPU's time: loads a library into the process
      otelgpu profile --container 8a3b -t cuda,kernel -o gpu.svg
    """
    if sum((bool(pids), container is not None, bool(command))) != 1:
        raise click.UsageError(
            "give processes (-p PID), a container (--container ID) or a program (-- COMMAND)"
        )
    kinds = parse_kinds(types)
    if inject and (not pids or ProfileKind.KERNEL not in kinds):
        raise click.UsageError("--inject is for kernels of running processes: -t kernel -p PID")
    if not kinds:
        raise click.BadParameter("give at least one kind", param_hint="-t")
    refuse_overwriting(outputs, force=force)
    if buffer is not None:
        options["ring_bytes"] = ring_bytes(buffer)
    config = configure(options)
    families = config.families if options.get("families") else ()
    config = settings_for(config, kinds, frequency, families=families, export=options["export"])
    seconds = duration if duration is not None or command else DEFAULT_SECONDS
    with Outputs(outputs) as files:
        if files.want_calls:
            config = structs.replace(config, detail="all")
        request = Request(
            config=config,
            seconds=seconds,
            delay_s=delay,
            outputs=files,
            quiet=quiet,
            device_time=inject,
            candidates=ProfileKind.BLOCK in kinds and not quiet,
        )
        if command:
            code = profile_program(request, command)
        elif container is not None:
            code = profile_container(request, container)
        else:
            code = profile_processes(request, pids)
    sys.exit(code)
