"""``check``: what can be seen on this machine and in each process, what is blind and why, what to do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any, Final

import click
from msgspec import structs
from rich.console import Console

from otelgpu.check.inspection import InspectedFamily, ProcessInspector, TryProbe, process_of_thread
from otelgpu.check.process_report import ProcessReport, gone, is_thread, judge
from otelgpu.cli.completion import complete_containers
from otelgpu.cli.headings import HeadedCommand
from otelgpu.cli.listing import Finding, Listing, Report
from otelgpu.cli.options import DEFAULT_FILE, common_options, configure, families_of, resource_detector
from otelgpu.cli.parameters import pid_option, require_container
from otelgpu.config import Config, family_settings, otlp_defaults
from otelgpu.engine import registry
from otelgpu.engine.contract import Load
from otelgpu.errors import OtelgpuError
from otelgpu.export.registry import parse_destination
from otelgpu.kernel import features
from otelgpu.kernel.attach import PROBES, hooks_of, places
from otelgpu.kernel.cut_files import survives_cut_files
from otelgpu.kernel.libbpf import BpfError, detach_all
from otelgpu.kernel.loader import Image, LoadedFamily, load_family, read_image
from otelgpu.memory_limit import end_first
from otelgpu.model.profiling import ProfileKind
from otelgpu.processes.coverage import TLS, Inspection, Machine
from otelgpu.processes.listing import list_processes
from otelgpu.sources.discoveries import choice_of, discovery_of
from otelgpu.symbols.fatbin import DECOMPRESSORS

_PROCESS: Final = "process"  # the BPF object that follows processes and mappings; every session loads it
_PROCESS_RING_BYTES: Final = 1 << 20


# -- The machine -----------------------------------------------------------------------------------------


def survey_machine(config: Config, *, quick: bool = False) -> list[Finding]:
    """The kernel and this process's privileges. ``quick``: without what has to be tried on the kernel."""
    found = [_finding(feature) for feature in features.survey()]
    able = not quick and not any(finding.stops for finding in found)
    return [
        *found,
        _namespace(),
        *([_finding(features.probe_links()), _finding(features.profiles())] if able else []),
        _return_probes(config, able=able),
        _decompressors(),
        _cut_files(),
        *_of_families(),
    ]


def _of_families() -> list[Finding]:
    """What families must have of the machine, asked for or not."""
    inspections = [each.inspect() for each in map(discovery_of, registry.families()) if each.inspect]
    return [_finding(each) for found in inspections if found.machine for each in found.machine()]


def _finding(feature: features.Feature) -> Finding:
    return Finding(
        name=feature.name,
        present=feature.present,
        required=feature.required,
        detail=feature.detail,
        consequence=feature.consequence,
        remedy=feature.remedy,
    )


def _namespace() -> Finding:
    own = features.pid_namespace()
    return Finding(
        name="PID namespace",
        present=not own,
        required=False,
        detail=f"number {own}, of a container" if own else "the initial one: every process is there",
        consequence="processes outside this container are not observed",
        remedy="share the host's or the pod's namespace: docker --pid=host, hostPID, shareProcessNamespace",
    )


def _decompressors() -> Finding:
    missing = [package for package in DECOMPRESSORS if find_spec(package) is None]
    return Finding(
        name="device code",
        present=not missing,
        required=False,
        detail=f"missing: {', '.join(missing)}" if missing else "plain and compressed",
        consequence="kernel names of stripped files that are found in their code are not checked against it",
        remedy="pip install 'otelgpu[names]'",
    )


def _cut_files() -> Finding:
    present = survives_cut_files()
    return Finding(
        name="files cut off",
        present=present,
        required=False,
        detail="their missing pages are zeros" if present else "nothing here handles SIGBUS",
        consequence="who cuts a library off while it is read ends the agent",
        remedy="install a wheel, or build where there is a C compiler: make bpf",
    )


def _return_probes(config: Config, *, able: bool) -> Finding:
    present: bool | None = None
    detail = "not tried"
    if config.return_probes != "auto":
        present = config.return_probes == "on"
        detail = f"return_probes: {config.return_probes}"
    elif able:
        try:
            present = features.return_probes_are_safe()
            detail = (
                "tried on a child process" if present else "a process with a seccomp filter would be killed"
            )
        except (BpfError, OSError) as error:
            detail = _one_line(str(error))
    return Finding(
        name="return probes",
        present=present,
        required=False,
        detail=detail,
        consequence="library calls are seen without duration and result",
        remedy="update the kernel; or set return_probes: on where no observed process has a seccomp filter",
    )


def load_families(
    config: Config, stack: ExitStack, *, able: bool
) -> tuple[list[Finding], list[LoadedFamily]]:
    """Load the objects of all families, for as long as ``stack`` is open."""
    found, loaded = [], []
    everything = family_settings(structs.replace(config, profiles=tuple(ProfileKind)))
    for name, needed in _to_load(config).items():
        try:
            image = read_image(name)
            if not able:
                found.append(_family(name, None, "not tried: see above", needed=needed))
                continue
            size = _PROCESS_RING_BYTES if name == _PROCESS else config.ring_bytes
            chosen = choice_of(name, everything)
            family = load_family(
                image, constants={**chosen.constants}, ring_bytes=size, wanted=chosen.programs
            )
        except OtelgpuError as error:
            found.append(_family(name, False, error.message, error.hint, needed=needed))
            continue
        stack.callback(family.close)
        loaded.append(family)
        found.append(_family(name, True, f"{len(family.programs)} programs load", needed=needed))
    return found, loaded


def _to_load(config: Config) -> dict[str, bool]:
    """Objects that a session or another command may load → whether a session cannot begin without it."""
    selected = families_of(config)
    needed = {name: discovery_of(name).required and each.at_once(selected) for name, each in selected.items()}
    asked = [name for name, each in registry.with_records().items() if each.load is Load.ASKED]
    return {_PROCESS: True, **needed, **{name: False for name in asked if name not in selected}}


def look_for_families(config: Config) -> list[Finding]:
    """Whether the objects of all families are there."""
    found = []
    for name, needed in _to_load(config).items():
        try:
            read_image(name)
        except BpfError as error:
            found.append(_family(name, False, error.message, error.hint, needed=needed))
        else:
            found.append(_family(name, None, "the object is there; not loaded", needed=needed))
    return found


def _family(name: str, present: bool | None, detail: str, remedy: str = "", *, needed: bool) -> Finding:
    """``needed``: it is loaded at the start; without one that is loaded when a library turns up all others go on."""
    return Finding(
        name=name,
        present=present,
        required=needed,
        detail=detail,
        consequence="no session can start with this family"
        if needed
        else "nothing of this family is observed",
        remedy=remedy or "report it with the lines above and the kernel's version",
    )


def wanted_symbols(images: Iterable[Image]) -> dict[str, frozenset[str]]:
    """Library → symbols, from the ``SEC()`` names of objects that need not be loaded."""
    wanted: dict[str, set[str]] = {}
    for image in images:
        for section in image.sections:
            if section.partition("/")[0] in PROBES:
                for library, symbol in places(section):
                    wanted.setdefault(library, set()).add(symbol)
    return {library: frozenset(symbols) for library, symbols in wanted.items()}


def _probe_trial(loaded: Sequence[LoadedFamily]) -> TryProbe | None:
    """Attaches a probe to a file for this process only, which does not map it: nothing else feels it."""
    programs = {
        hook.symbol: hook.program for family in loaded for hook in hooks_of(family) if not hook.is_return
    }
    if not programs:
        return None

    def attempt(symbol: str, path: str, offset: int) -> str:
        try:
            detach_all(programs[symbol].attach_uprobes(path, [offset], [0], tgid=os.getpid()))
        except BpfError as error:
            return os.strerror(error.errno) if error.errno else _one_line(error.message)
        return ""

    return attempt


# -- Where the results go --------------------------------------------------------------------------------


def try_destinations(config: Config, environ: Mapping[str, str], *, connects: bool = True) -> list[Finding]:
    """Each destination that a session started now would use."""
    found: list[Finding] = []
    for text in config.export or _standard_destination(config, environ):
        try:
            found += _try_destination(text, environ, otlp_defaults(config), connects)
        except OtelgpuError as error:
            found.append(_destination(text, False, error.message, error.hint))
    return found


def _standard_destination(config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return ("otlp",) if config.otlp.get("endpoint") or any(map(environ.get, named)) else (DEFAULT_FILE,)


def _try_destination(
    text: str, environ: Mapping[str, str], defaults: Mapping[str, str], connects: bool
) -> Iterator[Finding]:
    for trial in parse_destination(text).trials(environ, defaults, connects=connects):
        detail = trial.detail
        if trial.present and text == DEFAULT_FILE:
            detail = f"no collector is configured (OTEL_EXPORTER_OTLP_ENDPOINT is not set): {detail}"
        yield _destination(text, trial.present, detail, trial.remedy, required=trial.required)


def _destination(
    text: str, present: bool | None, detail: str, remedy: str = "", *, required: bool = True
) -> Finding:
    return Finding(
        name=_without_password(text),
        present=present,
        required=required,
        detail=detail,
        consequence="nothing can be exported there",
        remedy=remedy,
    )


def _without_password(text: str) -> str:
    kind, at, host = text.rpartition("@")
    return f"{kind.partition(':')[0]}:{host}" if at else text


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


# -- The processes ---------------------------------------------------------------------------------------


def judge_processes(
    pids: Sequence[int], inspector: ProcessInspector, machine: Machine, families: Sequence[Inspection] = ()
) -> list[ProcessReport]:
    """A report for each of ``pids``, or for every process that looks worth it when there are none."""
    if not pids:
        chosen = [pid for pid in list_processes() if pid != os.getpid() and inspector.is_interesting(pid)]
        return [report for pid in chosen if (report := _judge(pid, inspector, machine, families)).found]
    return [_judge(pid, inspector, machine, families) for pid in dict.fromkeys(pids)]


def _judge(
    pid: int, inspector: ProcessInspector, machine: Machine, families: Sequence[Inspection]
) -> ProcessReport:
    process = process_of_thread(pid)
    if process is None:
        return gone(pid)
    if process != pid:
        return is_thread(pid, process)
    observed = inspector.observe(pid)
    return judge(observed, machine, families) if observed is not None else gone(pid)


def make_quick_report(config: Config, environ: Mapping[str, str]) -> Report:
    """What can be reported without loading a program, looking at a process or connecting to anything."""
    return Report(
        features=survey_machine(config, quick=True),
        families=look_for_families(config),
        collector=try_destinations(config, environ, connects=False),
        processes=(),
        asked=False,
    )


def make_report(config: Config, pids: Sequence[int], environ: Mapping[str, str]) -> Report:
    """Look at everything."""
    machine = survey_machine(config)
    able = not any(finding.stops for finding in machine)
    present = {finding.name: finding.present for finding in machine}
    selected = families_of(config)
    with ExitStack() as stack:
        families, loaded = load_families(config, stack, able=able)
        inspected = _inspected(selected)
        images = _images({**selected, **inspected})
        wanted = _library_symbols(images)
        by_name = {image.family: image for image in images}
        inspections = {name: _examined_by(found, by_name.get(name)) for name, found in inspected.items()}
        reports = judge_processes(
            pids,
            ProcessInspector(wanted, _probe_trial(loaded), inspections, resource_detector(config, environ)),
            Machine(
                wanted=wanted,
                syscalls=present["tracefs"] is not False,
                return_probes=present["return probes"],
            ),
            [*inspected.values()],
        )
    return Report(
        features=machine,
        families=families,
        collector=try_destinations(config, environ),
        processes=reports,
        asked=bool(pids),
    )


def _inspected(selected: Container[str]) -> dict[str, Inspection]:
    """Of the families that are selected, and of those that have to be asked for: what they would see is said too."""
    return {
        name: discovery.inspect()
        for name, family in registry.families().items()
        if name in selected or family.load is Load.ASKED
        for discovery in (discovery_of(name),)
        if discovery.inspect is not None
    }


def _examined_by(inspection: Inspection, image: Image | None) -> InspectedFamily:
    if image is None:
        return InspectedFamily(inspection=inspection)
    functions = frozenset().union(*_library_symbols([image]).values())
    return InspectedFamily(inspection=inspection, functions=functions, btf=image.btf)


def _library_symbols(images: Iterable[Image]) -> dict[str, frozenset[str]]:
    """Of vendors' libraries: not the C library, which every program has, nor OpenSSL, which is judged by itself."""
    return {
        name: symbols
        for name, symbols in wanted_symbols(images).items()
        if name not in (TLS, "libc") and name.startswith("lib")
    }


def _images(families: Iterable[str]) -> list[Image]:
    images = []
    for name in families:
        try:
            images.append(read_image(name))
        except BpfError:
            continue  # reported by load_families
    return images


# -- The command -----------------------------------------------------------------------------------------


@click.command(cls=HeadedCommand)
@pid_option("Only these processes.")
@click.option(
    "--container",
    metavar="ID",
    shell_complete=complete_containers,
    help="Only processes of this container (id or its start).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document; see docs/reference/cli.md.")
@click.option(
    "--quick", is_flag=True, help="For probes: load no program, look at no process, connect to nothing."
)
@click.option(
    "--export", multiple=True, metavar="DEST", help="Try this destination: as for the other commands."
)
@common_options
def check(pids: tuple[int, ...], container: str | None, as_json: bool, quick: bool, **options: Any) -> None:
    """Report what is visible, what is blind and why, and what to do about it.

    Changes nothing. Exit code 0: observing is possible; 1: something required is missing.

    \b
    Examples:
      otelgpu check
      otelgpu check -p $(pgrep -d, gunicorn)
      otelgpu check --json | jq '.processes[].blind'
      otelgpu check --quick --json | jq -e '.state != "blocked"'
    """
    if pids and container is not None:
        raise click.UsageError("give processes (-p PID) or a container (--container ID)")
    if quick and (pids or container is not None):
        raise click.UsageError("--quick looks at no process: leave out -p and --container")
    end_first()
    config = configure(options)
    if container is not None:
        pids = tuple(require_container(container))
    report = make_quick_report(config, os.environ) if quick else make_report(config, pids, os.environ)
    if as_json:
        click.echo(json.dumps(report.shown(), indent=2))
    else:
        Listing(Console(file=sys.stdout)).write(report)
    sys.exit(0 if report.ok else 1)
