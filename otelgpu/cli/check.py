"""``check``: what can be seen on this machine and in each process, what is blind and why, what to do."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import click
from elftools.elf.elffile import ELFFile
from rich.console import Console

from otelgpu.cli.listing import Finding, Listing, Report
from otelgpu.cli.options import DEFAULT_FILE, common_options, configure, describer, families_of
from otelgpu.config import Config, otlp_defaults
from otelgpu.discover.evidence import Examiner, TryProbe, process_of_thread
from otelgpu.discover.processes import list_processes
from otelgpu.discover.resources import Describer
from otelgpu.discover.visibility import TLS, Machine, Verdict, gone, is_thread, judge
from otelgpu.errors import OtelgpuError
from otelgpu.export.base import Signal
from otelgpu.export.destination import ConsoleDestination, FileDestination, parse_destination
from otelgpu.export.settings import OtlpSettings
from otelgpu.families import registry
from otelgpu.families.base import Load
from otelgpu.families.http.protocols import BUILT_IN, installed
from otelgpu.kernel import features, profiling
from otelgpu.kernel.attach import PROBES, hooks_of, places
from otelgpu.kernel.kernel_btf import has_typed_tracepoint
from otelgpu.kernel.libbpf import BpfError, detach_all
from otelgpu.kernel.loader import Image, LoadedFamily, load_family, read_image
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.symbols.fatbin import DECOMPRESSORS

CONNECT_SECONDS: Final = 1.0
KUBERNETES_SECONDS: Final = 5.0
_PROCESS: Final = "process"  # the BPF object that follows processes and mappings; every session loads it
_PROCESS_RING_BYTES: Final = 1 << 20
_PROFILE: Final = "profile"  # that of profiles, which a session goes on without


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
        _arrivals(),
        _decompressors(),
        _protocols(),
    ]


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


def _kubernetes(names: Describer) -> Finding:
    trouble = names.wait_for_pods(KUBERNETES_SECONDS)
    return Finding(
        name="Kubernetes API",
        present=trouble is None,
        required=False,
        detail=trouble or "lists the pods of this node",
        consequence="of pods only the uid is known, and of the agent's own what the downward API says",
        remedy="see docs/identity.md for the variables and the role that are needed; or set kubernetes_api: false",
    )


def _arrivals() -> Finding:
    present = has_typed_tracepoint("tcp_probe")
    return Finding(
        name="arrival times",
        present=present,
        required=False,
        detail="tracepoint tcp/tcp_probe" if present else "the kernel has no tracepoint tcp/tcp_probe",
        consequence="a request begins when it is read: what it waited in the socket before is not known",
        remedy="use a kernel of 4.16 or later built with CONFIG_TRACEPOINTS=y and CONFIG_DEBUG_INFO_BTF=y",
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


def _protocols() -> Finding:
    plugins = installed()
    left_out = "; ".join(f"{name}: {_one_line(why)}" for name, why in plugins.failed.items())
    known = ", ".join(spec.name for spec in (*BUILT_IN, *plugins.specs))
    return Finding(
        name="protocols",
        present=not left_out,
        required=False,
        detail=f"left out: {left_out}" if left_out else known,
        consequence="connections that speak what a plug-in knows are not followed",
        remedy="mend the plug-in, or pip uninstall it",
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
    for name, needed in _to_load(config).items():
        try:
            image = read_image(name)
            if not able:
                found.append(_family(name, None, "not tried: see above", needed=needed))
                continue
            size = _PROCESS_RING_BYTES if name == _PROCESS else config.ring_bytes
            family = (
                _load_profile(image, size)
                if name == _PROFILE
                else load_family(image, knobs={}, ring_bytes=size)
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
    needed = {name: name != _PROFILE and each.at_once(selected) for name, each in selected.items()}
    asked = [name for name, each in registry.families().items() if each.load is Load.ASKED]
    return {_PROCESS: True, **needed, **{name: False for name in asked if name not in selected}}


def _load_profile(image: Image, ring_bytes: int) -> LoadedFamily:
    settings = ProfileSettings(kinds=frozenset(ProfileKind))
    return load_family(
        image,
        knobs=profiling.knobs(settings),
        ring_bytes=ring_bytes,
        wanted=profiling.wanted(settings.kinds),
    )


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
    """Library stem → symbols, from the ``SEC()`` names of objects that need not be loaded."""
    wanted: dict[str, set[str]] = {}
    for image in images:
        for section in ELFFile(io.BytesIO(image.data)).iter_sections():
            if section.name.partition("/")[0] in PROBES:
                for stem, symbol in places(section.name):
                    wanted.setdefault(stem, set()).add(symbol)
    return {stem: frozenset(symbols) for stem, symbols in wanted.items()}


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
) -> list[Finding]:
    destination = parse_destination(text)
    if isinstance(destination, ConsoleDestination):
        return [_destination(text, True, "standard output")]
    if isinstance(destination, FileDestination):
        return [_try_file(text, Path(destination.path))]
    signals = [
        OtlpSettings.from_environment(environ, signal, endpoint=destination.endpoint, defaults=defaults)
        for signal in (Signal.TRACES, Signal.METRICS)
    ]
    distinct = {(settings.protocol, settings.address): settings for settings in signals}
    return [
        _try_endpoint(text, settings, address if connects else None)
        for (_, address), settings in distinct.items()
    ]


def _try_file(text: str, path: Path) -> Finding:
    detail = f"results go to {path.absolute()}"
    if text == DEFAULT_FILE:
        detail = f"no collector is configured (OTEL_EXPORTER_OTLP_ENDPOINT is not set): {detail}"
    if not os.access(path if path.exists() else path.parent, os.W_OK, effective_ids=True):
        return _destination(
            text, False, f"{path.absolute()} cannot be written", "name another: --export file:PATH"
        )
    return _destination(text, True, detail)


def _try_endpoint(text: str, settings: OtlpSettings, address: tuple[str, int] | None) -> Finding:
    if address is None:
        return _destination(text, None, f"{settings.protocol.value} to {settings.shown}: not tried")
    host, port = address
    what = f"{settings.protocol.value} to {host} port {port}{' (TLS)' if settings.secure else ''}"
    scheme = "https" if settings.secure else "http"
    if getproxies().get(scheme) and not proxy_bypass(host):
        return _destination(text, None, f"{what}: not tried, a proxy is set ({scheme}_proxy)")
    error = _connect(host, port)
    if not error:
        return _destination(text, True, f"{what}: accepts connections")
    remedy = (
        "start the Collector or correct the endpoint; until then a session retries and counts what is lost"
    )
    return _destination(text, False, f"{what}: no connection: {error}", remedy, required=False)


def _connect(host: str, port: int) -> str:
    """What stops a TCP connection, or "". The name's look-up has no time limit of its own, so a thread has it."""
    said: list[str] = []

    def attempt() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            said.append("")
        except (OSError, UnicodeError) as error:
            said.append(getattr(error, "strerror", None) or str(error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(3 * CONNECT_SECONDS)
    return said[0] if said else "the host's name or address does not answer in time"


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


def judge_processes(pids: Sequence[int], examiner: Examiner, machine: Machine) -> list[Verdict]:
    """A verdict for each of ``pids``, or for every process that looks worth it when there are none."""
    if not pids:
        chosen = [pid for pid in list_processes() if pid != os.getpid() and examiner.is_interesting(pid)]
        return [verdict for pid in chosen if (verdict := _judge(pid, examiner, machine)).found]
    return [_judge(pid, examiner, machine) for pid in dict.fromkeys(pids)]


def _judge(pid: int, examiner: Examiner, machine: Machine) -> Verdict:
    process = process_of_thread(pid)
    if process is None:
        return gone(pid)
    if process != pid:
        return is_thread(pid, process)
    observed = examiner.observe(pid)
    return judge(observed, machine) if observed is not None else gone(pid)


def make_quick_report(config: Config, environ: Mapping[str, str]) -> Report:
    """What can be told without loading a program, looking at a process or connecting to anything."""
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
        names = stack.enter_context(closing(describer(config, environ)))
        if config.kubernetes_api:
            machine = [*machine, _kubernetes(names)]
        families, loaded = load_families(config, stack, able=able)
        images = _images(registry.select((*selected, "torch")))  # which is told of, asked for or not
        # OpenSSL is judged by itself, every program has the C library, and a provider's functions have no names.
        wanted = {
            stem: symbols
            for stem, symbols in wanted_symbols(images).items()
            if stem not in (TLS, "libc") and stem.startswith("lib")
        }
        offsets = [
            image.btf.enumerators("verbs_context_offset") for image in images if image.family == "verbs"
        ]
        verdicts = judge_processes(
            pids,
            Examiner(wanted, _probe_trial(loaded), next(iter(offsets), None), names),
            Machine(
                wanted=wanted,
                http="http" in selected,
                syscalls=present["tracefs"] is not False,
                return_probes=present["return probes"],
            ),
        )
    return Report(
        features=machine,
        families=families,
        collector=try_destinations(config, environ),
        processes=verdicts,
        asked=bool(pids),
    )


def _images(families: Iterable[str]) -> list[Image]:
    images = []
    for name in families:
        try:
            images.append(read_image(name))
        except BpfError:
            continue  # told by load_families
    return images


# -- The command -----------------------------------------------------------------------------------------


def _pids(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    try:
        return tuple(int(part) for value in values for part in value.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter("give process ids, separated by commas") from error


@click.command()
@click.option(
    "-p", "--pid", "pids", multiple=True, callback=_pids, metavar="PID[,PID…]", help="Only these processes."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document; see docs/cli.md.")
@click.option(
    "--quick", is_flag=True, help="For probes: load no program, look at no process, connect to nothing."
)
@click.option(
    "--export", multiple=True, metavar="DEST", help="Try this destination: as for the other commands."
)
@common_options
def check(pids: tuple[int, ...], as_json: bool, quick: bool, **options: Any) -> None:
    """Tell what is visible, what is blind and why, and what to do about it.

    Changes nothing. Exit code 0: observing is possible; 1: something required is missing.

    \b
    Examples:
      otelgpu check
      otelgpu check -p $(pgrep -d, gunicorn)
      otelgpu check --json | jq '.processes[].blind'
      otelgpu check --quick --json | jq -e '.state != "blocked"'
    """
    if quick and pids:
        raise click.UsageError("--quick looks at no process: leave out -p")
    config = configure(options)
    report = make_quick_report(config, os.environ) if quick else make_report(config, pids, os.environ)
    if as_json:
        click.echo(json.dumps(report.shown(), indent=2))
    else:
        Listing(Console(file=sys.stdout)).write(report)
    sys.exit(0 if report.ok else 1)
