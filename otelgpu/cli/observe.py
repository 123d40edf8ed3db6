"""``run``, ``attach``, ``agent`` and ``record``."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from otelgpu import agent as wiring
from otelgpu.child import Child, RunningProcesses
from otelgpu.cli.guidance import Guidance, named
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.logs import say
from otelgpu.cli.main import all_is_given_back
from otelgpu.cli.options import (
    agent_scope,
    attach_source_options,
    configure,
    families_of,
    injected_source,
    live_options,
    live_settings,
    load_into,
    openings,
    read_config,
    scope_options,
    source_options,
)
from otelgpu.cli.parameters import (
    PROGRAM_FOLLOWS,
    duration_option,
    force_option,
    pid_option,
    program_argument,
    refuse_overwriting,
    require_observable,
)
from otelgpu.cli.privilege_plan import report_missing, secured_plan
from otelgpu.cli.reload import Reloader, Reloads, ReloadSignals
from otelgpu.config import Config
from otelgpu.errors import OtelgpuError
from otelgpu.export.destination import Opening
from otelgpu.kernel.garbage import only_new_looked_through
from otelgpu.kernel.scope import Scope
from otelgpu.kernel.stop_guard import StopGuard
from otelgpu.processes.libraries import resolve_program
from otelgpu.processes.listing import descendants
from otelgpu.processes.reader.forker import session_forker
from otelgpu.sources.joint import JointSource, Source
from otelgpu.sources.live import LiveSource

if TYPE_CHECKING:
    from otelgpu.sources.injected import InjectedSource

_log = logging.getLogger("otelgpu.cli")

SETTLE_S: Final = 3.0
"""How long a program waits for its start, or a process to be profiled, for tables by which its stacks are walked."""


def open_source(
    config: Config,
    scope: Scope,
    calls: InjectedSource | None = None,
    *,
    needed: str = "",
    exports: Sequence[Opening] = (),
) -> Source:
    """Probes; with ``calls``, for what a library in the programs does not see, as far as they are allowed.

    ``needed``: a family without whose probes the session has no use; ``exports``: where its results will go.
    Raises :class:`OtelgpuError`.
    """
    families = families_of(config)
    if calls is None:
        source = LiveSource(families, scope, live_settings(config, exports=exports))
        report_missing()
        return source
    rest = {name: family for name, family in families.items() if name in calls.unseen}
    if not rest:
        return calls
    try:
        probes = LiveSource(rest, scope, live_settings(config, calls.resource_detector, exports))
        return JointSource(calls, probes)
    except OtelgpuError as error:
        if needed in rest:
            raise
        say(f"not observed: {', '.join(rest)}, which needs eBPF: {error.message}")
        return calls


def _opened(
    until: ExitStack, config: Config, scope: Scope, calls: InjectedSource | None, guidance: Guidance
) -> Source:
    """As :func:`open_source`; it and ``calls``, whose socket lies in a folder, are closed with ``until``."""
    if calls is not None:
        until.callback(calls.close)
    return until.enter_context(closing(open_source(config, scope, calls, exports=guidance.openings)))


def _guidance(config: Config, capture: Path | None) -> Guidance:
    """Where to look; made before probes are loaded, so that a misspelt destination is refused without them."""
    return Guidance(openings=openings(config, os.environ, needed=capture is None), capture=capture)


def _finish(session: wiring.Agent, guidance: Guidance, quiet: bool) -> None:
    outcome = session.finish()
    if not quiet:
        print_summary(outcome, guidance)
    all_is_given_back()


def print_summary(outcome: wiring.Outcome, guidance: Guidance | None = None) -> None:
    """The tables that end a session, and what to type next, on standard error."""
    from rich.console import Console  # not needed before the end, and slow to import

    from otelgpu.cli.report import print_outcome

    print_outcome(outcome, Console(stderr=True, markup=False, emoji=False), guidance)


def observe_program(config: Config, argv: tuple[str, ...], *, capture: Path | None, quiet: bool) -> int:
    """Start a program, observe it and its children, and return its exit code."""
    guidance = _guidance(config, capture)
    with only_new_looked_through():
        child, source, session = _prepared(config, argv, capture, guidance)
    with wiring.Interrupts(forwarding(child)) as interrupts, closing(source):
        source.start_holding()
        child.start()
        if not quiet:
            say(guidance.beginning(f"{os.path.basename(argv[0])} (process {child.pid}) and its children"))
        code: int | None = None
        try:
            session.work(interrupts, also=child.pidfd)
            if interrupts.requested:
                # The program was asked to end as well; what it still does belongs to the picture.
                interrupts.acknowledge()
                session.work(interrupts, also=child.pidfd)
            code = child.wait()
            _finish(session, guidance, quiet)
        except Exception as error:
            # A fault of ours must not become one of the program's: let it run to its own end.
            _log.debug("observing failed", exc_info=True)
            say(f"internal error, observing ended: {error!r} (OTELGPU_LOG_LEVEL=debug shows where)")
            source.close()
            code = child.wait() if code is None else code
    return code


def _prepared(
    config: Config, argv: tuple[str, ...], capture: Path | None, guidance: Guidance
) -> tuple[Child, Source, wiring.Agent]:
    """The program, which has yet to be started, and all that observes it."""
    injected = injected_source(config) if config.source == "inject" else None
    child = Child(argv, injected.environment(os.environ) if injected is not None else None)
    with ExitStack() as undone:
        undone.callback(child.abandon)
        source = _opened(undone, config, Scope(processes=(child.pid,), newborn=True), injected, guidance)
        planned = secured_plan(config, capture=capture, starts_program=True)
        if injected is not None:
            source.prepare_file(injected.library)  # where stacks of its calls are taken, when they are wanted
        source.observe(child.pid, execs=True)
        program = resolve_program(argv, dict(os.environ), Path.cwd(), source.library_names)
        for path in program.files:
            source.prepare_file(path)
        source.settle((), SETTLE_S)
        session = wiring.Agent(source, planned)
        undone.pop_all()
        return child, source, session


def forwarding(child: Child) -> Callable[[int], None]:
    """Passes a signal that was sent to us alone on; a terminal's Ctrl-C reaches the program by itself."""

    def forward(number: int) -> None:
        if number != signal.SIGINT or not _is_foreground():
            child.signal(number)

    return forward


def _is_foreground() -> bool:
    """Whether what is typed at a terminal interrupts this process group, wherever standard input comes from."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False  # there is none
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def observe_processes(
    config: Config,
    tgids: tuple[int, ...],
    *,
    inject: bool,
    duration: float | None,
    capture: Path | None,
    quiet: bool,
) -> int:
    """Observe running processes and the children they have or get.

    ``inject``: it was asked for on the command line that a library be loaded into them.
    """
    if config.source == "inject" and not inject:
        raise OtelgpuError(
            "source inject loads a library into a process that runs already, which is not done unasked",
            hint="give --source inject on the command line, or --source uprobe",
        )
    require_observable(tgids)
    guidance = _guidance(config, capture)
    with ExitStack() as opened:
        guard = opened.enter_context(closing(_forked_early()))
        with only_new_looked_through():
            members = dict.fromkeys(member for tgid in tgids for member in (tgid, *descendants(tgid)))
            calls = injected_source(config) if inject else None
            source = _opened(opened, config, Scope(processes=tgids), calls, guidance)
            if calls is not None:
                load_into(calls, members)  # before privileges are given up, and threads are there
            planned = secured_plan(config, capture=capture)
            source.settle(members, SETTLE_S)
            for member in members:
                source.observe(member)
        living = opened.enter_context(RunningProcesses(members))
        return _observe_until(
            config, source, planned, guard, guidance, named(tgids), duration, quiet, living=living
        )


def observe_everything(
    config: Config,
    *,
    duration: float | None,
    capture: Path | None,
    quiet: bool,
    reloads: Reloads | None = None,
    guidance: Guidance | None = None,
) -> int:
    """Observe every process that the configuration admits.

    ``reloads``: of the agent. ``guidance``: what is said, where the user is not to be told of the destinations.
    """
    if config.source == "inject" and not config.inject_socket:
        raise OtelgpuError(
            "source inject needs a place where programs can find the agent",
            hint="set inject_socket (OTELGPU_INJECT_SOCKET) to a path, and give the programs the same: "
            "docs/explanation/inject.md",
        )
    guidance = guidance or _guidance(config, capture)
    with ExitStack() as opened:
        guard = opened.enter_context(closing(_forked_early()))
        with only_new_looked_through():
            injected = injected_source(config) if config.source == "inject" else None
            source = _opened(opened, config, agent_scope(config), injected, guidance)
            planned = secured_plan(config, capture=capture, serves=reloads is not None)
            if injected is not None:
                source.prepare_file(injected.library)
            source.observe_running()
        return _observe_until(
            config, source, planned, guard, guidance, "every matching process", duration, quiet, reloads
        )


def _forked_early() -> StopGuard:
    """The process that forks readers' workers, while there is little that it keeps for itself; it is the guard, too."""
    return StopGuard(session_forker().watch)


def _observe_until(
    config: Config,
    source: Source,
    planned: wiring.Plan,
    guard: StopGuard,
    guidance: Guidance,
    what: str,
    duration: float | None,
    quiet: bool,
    reloads: Reloads | None = None,
    living: RunningProcesses | None = None,
) -> int:
    with only_new_looked_through():
        session = wiring.Agent(source, planned)
    until = time.monotonic() + duration if duration is not None else None
    with wiring.Interrupts(guard=guard) as interrupts, closing(source):
        source.start_holding()  # before it is said: who reads it may let a program go on at once
        for_long = f"for {duration:g} s" if duration is not None else "Ctrl-C ends it"
        say(guidance.beginning(what, for_long), config.log_format)
        with guard:
            if living is not None:
                _work_while_they_live(session, interrupts, until, living)
            elif reloads is None:
                session.work(interrupts, until=until)
            else:
                reloader = Reloader(reloads.read, config, session, source)
                _work_and_reload(session, interrupts, until, reloads.reload_signals, reloader)
        _finish(session, guidance, quiet or config.log_format == "json")
    return 0


def _work_while_they_live(
    session: wiring.Agent, interrupts: wiring.Interrupts, until: float | None, living: RunningProcesses
) -> None:
    while living.some():
        session.work(interrupts, until=until, also=living.fd)
        if interrupts.requested or (until is not None and time.monotonic() >= until):
            return


def _work_and_reload(
    session: wiring.Agent,
    interrupts: wiring.Interrupts,
    until: float | None,
    reload_signals: ReloadSignals,
    reloader: Reloader,
) -> None:
    while True:
        session.work(interrupts, until=until, also=reload_signals.fd)
        if interrupts.requested or not reload_signals.take() or reload_signals.lost_terminal:
            return
        reloader.reload()


@click.command(cls=HeadedCommand, context_settings=PROGRAM_FOLLOWS)
@live_options
@source_options
@program_argument(required=True)
def run(command: tuple[str, ...], quiet: bool, **options: Any) -> None:
    """Start a program and observe it and its children.

    The exit code is the program's own. Probes are in place before its first instruction.

    \b
    Examples:
      otelgpu run -- python serve.py
      otelgpu run --export console -- ./train --epochs 1
      otelgpu run --source inject -- ./train          # no eBPF and no root for the CUDA calls
      OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 otelgpu run -- vllm serve m
    """
    sys.exit(observe_program(configure(options), command, capture=None, quiet=quiet))


@click.command(cls=HeadedCommand)
@live_options
@attach_source_options
@pid_option("Running processes.")
@duration_option
def attach(pids: tuple[int, ...], duration: float | None, quiet: bool, **options: Any) -> None:
    """Observe running processes and their children, until they have ended, Ctrl-C or --duration.

    \b
    Examples:
      otelgpu attach -p 4242
      otelgpu attach -p $(pgrep -d, gunicorn) --duration 30 --export file:trace.jsonl
      otelgpu attach --source inject -p 4242     # loads a library into it: times on the GPU, by CUPTI
    """
    if not pids:
        raise click.UsageError("give at least one process: -p PID")
    inject = options.get("source") == "inject"
    config = configure(options)
    sys.exit(observe_processes(config, pids, inject=inject, duration=duration, capture=None, quiet=quiet))


@click.command(cls=HeadedCommand)
@live_options
@scope_options
@duration_option
def agent(duration: float | None, quiet: bool, **options: Any) -> None:
    """Observe every matching process of this host or pod: the sidecar's and the DaemonSet's mode.

    SIGHUP has the file of --config read again: see docs/how-to/operations.md.

    \b
    Examples:
      otelgpu agent --export otlp:http://localhost:4317
      otelgpu agent --export 'file:/var/log/otelgpu.jsonl?max_bytes=64MiB&max_files=5'
      otelgpu agent --executable 'python3*' --executable vllm
      otelgpu agent --traces-sampler parentbased_traceidratio --traces-sampler-arg 0.05
      otelgpu agent --config /etc/otelgpu/config.yaml
    """
    with (
        ReloadSignals() as reload_signals
    ):  # from the first moment on: without it, one that comes early ends the agent
        config = configure(options)
        read = partial(read_config, options) if options["config_file"] is not None else None
        sys.exit(
            observe_everything(
                config, duration=duration, capture=None, quiet=quiet, reloads=Reloads(reload_signals, read)
            )
        )


@click.command(cls=HeadedCommand, context_settings=PROGRAM_FOLLOWS)
@live_options
@source_options
@pid_option("Running processes.")
@duration_option
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The capture file.")
@force_option
@program_argument()
def record(
    command: tuple[str, ...],
    pids: tuple[int, ...],
    duration: float | None,
    output: Path,
    force: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Write what the probes see to a capture, to be replayed anywhere.

    Without a program and without -p it observes what `agent` would.

    \b
    Examples:
      otelgpu record -o slow.capture -p 4242 --duration 10
      otelgpu record -o slow.capture -- python serve.py
      otelgpu replay slow.capture --export console
    """
    config = configure(options)
    if command and pids:
        raise click.UsageError("give processes or a program, not both")
    refuse_overwriting([output], force=force)
    if command:
        sys.exit(observe_program(config, command, capture=output, quiet=quiet))
    if pids:
        inject = options.get("source") == "inject"
        sys.exit(
            observe_processes(config, pids, inject=inject, duration=duration, capture=output, quiet=quiet)
        )
    sys.exit(observe_everything(config, duration=duration, capture=output, quiet=quiet))
