"""The options that several commands share, and what they make of them."""

from __future__ import annotations

import fnmatch
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click

from otelgpu import __version__
from otelgpu.agent import Plan
from otelgpu.cli.completion import (
    complete_containers,
    complete_destinations,
    complete_families,
    complete_profiles,
)
from otelgpu.cli.headings import option_group
from otelgpu.cli.logs import say, start_log
from otelgpu.config import (
    Config,
    default_file,
    family_settings,
    load_config,
    otlp_defaults,
    profiling,
    reporting,
)
from otelgpu.engine import registry
from otelgpu.engine.contract import Family
from otelgpu.export.base import Exporter
from otelgpu.export.destination import Opening
from otelgpu.export.registry import forms, parse_destination
from otelgpu.kernel.privileges.capabilities import perf_events_are_kept
from otelgpu.kernel.scope import Scope
from otelgpu.kernel.trace_context_map import PINNED_AT
from otelgpu.model.resource import AttributeValue
from otelgpu.model.sampling import SamplerName
from otelgpu.processes import mounts
from otelgpu.processes.kubernetes import own_pod
from otelgpu.processes.listing import describe
from otelgpu.processes.resources import ResourceDetector, own_attributes, parse_resource_attributes
from otelgpu.sources.discoveries import observed
from otelgpu.sources.live import LiveSettings

if TYPE_CHECKING:
    from otelgpu.sources.injected import InjectedSource

DEFAULT_FILE: Final = "file:otelgpu.jsonl"
OTEL_CONFIG_FILE: Final = "OTEL_CONFIG_FILE"
_RESULTS: Final = "Results"
_OF_HOST: Final = ("host.", "os.", "cloud.")
"""What holds for every process here."""
_Command = TypeVar("_Command", bound=Callable[..., Any])
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class _Families(click.Option):
    """``--help`` says which there are; the manual does not, so that it is the same with one more."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option's line of ``--help``."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        return record[0], f"{record[1]} By default: {', '.join(registry.select(()))}."


def _or_default(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None or context.resilient_parsing:
        return value
    return default_file(os.environ)


common_options = option_group(
    "What is observed",
    click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        envvar="OTELGPU_CONFIG",
        callback=_or_default,
        help="YAML file, see docs/reference/configuration.md. Default: otelgpu/config.yaml in the user's folder for "
        "configuration (XDG_CONFIG_HOME, ~/.config), else /etc/otelgpu/config.yaml, where there is one.",
    ),
    click.option(
        "--families",
        cls=_Families,
        metavar="LIST",
        shell_complete=complete_families,
        help="Comma-separated; default: all but those that have to be asked for.",
    ),
    click.option(
        "--probe-file",
        type=click.Path(),
        metavar="FILE",
        help="Probes of your own, in JSON: functions, USDT, tracepoints (docs/how-to/probes.md).",
    ),
)
"""``--config --families --probe-file``: of every command that works with records."""


detail_option = click.option(
    "--detail",
    type=click.Choice(["phases", "ops", "all"]),
    help="Spans under a request: phases only; operations, equal runs folded (default); every call.",
)

_export_options = option_group(
    _RESULTS,
    click.option(
        "--export",
        multiple=True,
        metavar="DEST",
        shell_complete=complete_destinations,
        help=f"{forms()}; repeatable. Default: otlp if OTEL_EXPORTER_OTLP_ENDPOINT "
        "is set, else file:otelgpu.jsonl; of record: none.",
    ),
    detail_option,
    click.option(
        "--traces-sampler",
        type=click.Choice(get_args(SamplerName)),
        metavar="NAME",
        help="always_on, always_off or traceidratio, with parentbased_ before it or not; as OTEL_TRACES_SAMPLER. "
        "Default parentbased_always_on.",
    ),
    click.option(
        "--traces-sampler-arg",
        type=float,
        metavar="RATIO",
        help="Of traceidratio: the share of traces that is kept (default 1).",
    ),
    click.option(
        "--traces-spans-per-second",
        type=int,
        metavar="N",
        help="Beyond N spans a second requests lose their operations, then their spans (default 0: no limit).",
    ),
)


def output_options(command: _Command) -> _Command:
    """``--export --detail``, and the common ones: what to make of the records."""
    return common_options(_export_options(command))


probe_options = option_group(
    "Probes",
    click.option(
        "--ring-bytes", type=int, help="Size of rings of calls and requests, a power of two (8 MiB)."
    ),
    click.option(
        "--probe-program",
        type=click.Path(),
        metavar="FILE",
        help="BPF in C for probes of --probe-file, compiled here by bcc.",
    ),
    click.option(
        "--rdma-budget",
        type=float,
        metavar="PERCENT",
        help="Of a core, that counting RDMA posts and polls may cost each process (default 1; 100: count all).",
    ),
    click.option(
        "--max-overhead",
        type=float,
        metavar="PERCENT",
        help="Of a core, that probes of launches, copies and events may cost each process (default: no bound).",
    ),
    click.option(
        "--hold-on-load/--no-hold-on-load",
        default=None,
        help="Stop a process for the moment in which a newly loaded library gets its probes.",
    ),
)
"""How probes are placed and read."""

_session_options = option_group(
    _RESULTS,
    click.option("--quiet", is_flag=True, help="No summary at the end, and of run no line at its start."),
    click.option(
        "--rdma-transfers/--no-rdma-transfers", default=None, help="A span for each RDMA work request."
    ),
    click.option(
        "--kernel-metrics",
        type=int,
        metavar="N",
        help="Count launches per kernel name, for N names (default 0: none).",
    ),
)

_profile_options = option_group(
    "Continuous profiles",
    click.option(
        "--profiles",
        metavar="LIST",
        shell_complete=complete_profiles,
        help="Kinds: cpu,python,offcpu,syscall,file,block,cuda,kernel,mem,nccl,verbs or all.",
    ),
    click.option(
        "--profile-frequency-hz",
        type=int,
        metavar="HZ",
        help="Of --profiles cpu and python (default 19).",
    ),
)


def live_options(command: _Command) -> _Command:
    """Options of the commands that observe a running system and export what they see."""
    return output_options(probe_options(_session_options(_profile_options(command))))


source_options = option_group(
    "CUDA calls",
    click.option(
        "--source",
        type=click.Choice(["uprobe", "inject"]),
        help="CUDA calls by eBPF probes (default), or by a library loaded into the program.",
    ),
    click.option(
        "--device-time/--no-device-time",
        default=None,
        help="With --source inject: GPU time of kernels and copies, by CUPTI, within a budget.",
    ),
)
"""``--source --device-time``: of the commands that start a program."""

attach_source_options = option_group(
    "CUDA calls",
    click.option(
        "--source",
        type=click.Choice(["uprobe", "inject"]),
        help="CUDA calls by eBPF probes (default), or by a library that is loaded into the running process now.",
    ),
)
"""``--source``: of the command that observes running processes alone."""


def scope_options(command: _Command) -> _Command:
    """``--executable --container --cgroup``: which processes the agent observes."""
    for option in (
        click.option(
            "--cgroup",
            "cgroups",
            multiple=True,
            type=click.Path(),
            metavar="DIR",
            help="Only this cgroup v2 directory.",
        ),
        click.option(
            "--container",
            "containers",
            multiple=True,
            metavar="ID",
            shell_complete=complete_containers,
            help="Only this container (id or its start).",
        ),
        click.option(
            "--executable",
            "executables",
            multiple=True,
            metavar="PATTERN",
            help="Only programs named like this.",
        ),
    ):
        command = option(command)
    return command


def configure(options: dict[str, Any]) -> Config:
    """The configuration, see :func:`read_config`, and what goes for the whole program as it has it."""
    config = read_config(options)
    start_log(config.log_level, config.log_format)
    mounts.trust_all(config.trust_mounts)
    return config


def read_config(options: dict[str, Any]) -> Config:
    """Merge flags, environment and file. ``options`` are the commands' parameters of the same names."""
    common = (
        "detail",
        "export",
        "families",
        "hold_on_load",
        "kernel_metrics",
        "max_overhead",
        "probe_file",
        "probe_program",
        "rdma_budget",
        "rdma_transfers",
        "traces_sampler",
        "traces_sampler_arg",
        "traces_spans_per_second",
    )
    names = (
        *common,
        "profiles",
        "profile_frequency_hz",
        "cgroups",
        "containers",
        "device_time",
        "executables",
        "ring_bytes",
        "source",
    )
    flags = {name: options[name] for name in names if options.get(name) not in (None, ())}
    if "families" in flags:
        flags["families"] = tuple(part.strip() for part in flags["families"].split(",") if part.strip())
    if "profiles" in flags:
        flags["profiles"] = tuple(part.strip() for part in flags["profiles"].split(",") if part.strip())
    declared: Mapping[str, Any] = {}
    if os.environ.get(OTEL_CONFIG_FILE, "").strip():
        from otelgpu.cli.declarative import (
            declared_settings,  # the SDK's parser: a second that most runs do not pay
        )

        declared = declared_settings(os.environ)
    return load_config(options.get("config_file"), os.environ, flags, declared)


def destinations(
    config: Config, environ: Mapping[str, str], *, needed: bool = True
) -> Callable[[], Sequence[Exporter]]:
    """A function that opens the exporters; see :func:`openings`."""
    wanted = openings(config, environ, needed=needed)
    return lambda: [opening.open() for opening in wanted]


def openings(config: Config, environ: Mapping[str, str], *, needed: bool = True) -> list[Opening]:
    """Where the results go; what is misspelt is found at once.

    ``needed``: without a destination in the settings there is a default one.
    """
    endpoint = config.otlp.get("endpoint") or any(environ.get(name) for name in _ENDPOINTS)
    default = ("otlp",) if endpoint else (DEFAULT_FILE,)
    wanted = config.export or (default if needed else ())
    return [Opening(parse_destination(text), dict(environ), otlp_defaults(config)) for text in wanted]


def families_of(config: Config) -> dict[str, Family]:
    """What is observed: what was selected, what profiles need, and a user's probes."""
    return observed(config.families, family_settings(config))


def plan(config: Config, *, capture: Path | None = None, serves: bool = False) -> Plan:
    """How the session works. ``serves``: probes and scrapes are answered, where an address is set."""
    return Plan(
        families=families_of(config),
        settings=reporting(config, os.environ),
        profiling=profiling(config),
        open_exporters=destinations(config, os.environ, needed=capture is None),
        capture=capture,
        attributes=detected(os.environ)
        | base_attributes(config, os.environ)
        | own_attributes(own_pod(os.environ)),
        interval_s=config.interval_ms / 1e3,
        metric_interval_s=config.metric_interval_ms / 1e3,
        polling=family_settings(config),
        publish_context=config.publish_context,
        health_address=config.health_address if serves else "",
        memory_limit_bytes=config.memory_limit_mib << 20,
    )


def base_attributes(config: Config, environ: Mapping[str, str]) -> dict[str, AttributeValue]:
    """Attributes of every observed process, unless it says otherwise of itself.

    From the host, OTEL_EXPERIMENTAL_RESOURCE_DETECTORS (of the host only), OTEL_RESOURCE_ATTRIBUTES,
    OTEL_SERVICE_NAME and the configuration, the later winning.
    """
    found: dict[str, AttributeValue] = {
        "host.name": os.uname().nodename,
        "telemetry.sdk.name": "otelgpu",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": __version__,
    }
    found |= {key: value for key, value in detected(environ).items() if key.startswith(_OF_HOST)}
    found |= parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := environ.get("OTEL_SERVICE_NAME"):
        found["service.name"] = name
    return found | config.resource_attributes


def detected(environ: Mapping[str, str]) -> dict[str, AttributeValue]:
    """What the SDK's resource detectors find out of this program and its host; without names of them nothing."""
    names = environ.get("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "").strip()
    return dict(_detected(names)) if names else {}


@functools.cache
def _detected(names: str) -> dict[str, AttributeValue]:
    from otelgpu.export.sdk import detected_attributes  # the SDK: 40 ms that those who ask for it pay

    found = detected_attributes([name.strip() for name in names.split(",")])
    return {
        key: tuple(map(str, value)) if isinstance(value, list | tuple) else value
        for key, value in found.items()
        if not key.startswith(("telemetry.", "service."))
    }


def resource_detector(config: Config, environ: Mapping[str, str]) -> ResourceDetector:
    """What describes the processes of a session."""
    return ResourceDetector(base_attributes(config, environ), own=own_pod(environ))


def live_settings(
    config: Config, shared: ResourceDetector | None = None, exports: Sequence[Opening] = ()
) -> LiveSettings:
    """How the live source is set up. ``shared``: of the source beside it; ``exports``: what will be opened."""
    return LiveSettings(
        default_ring_bytes=config.ring_bytes,
        hold_on_load=config.hold_on_load,
        return_probes={"auto": None, "on": True, "off": False}[config.return_probes],
        resource_detector=shared or resource_detector(config, os.environ),
        # What we write there ourselves would be taken for the processes' own.
        trace_contexts=None if config.publish_context else PINNED_AT,
        families=family_settings(config),
        late_tracepoints=not (config.drop_privileges and perf_events_are_kept()),
        meanwhile=functools.partial(_import_the_rest, config, exports),
    )


def _import_the_rest(config: Config, exports: Sequence[Opening]) -> None:
    """What is not needed before the probes are loaded: half of what there is."""
    import_module("otelgpu.engine.pipeline")
    registry.import_handlers(families_of(config))
    for each in exports:
        each.prepare()


def injected_source(config: Config) -> InjectedSource:
    """The source that is a library in the program."""
    from otelgpu.sources.injected import InjectedSource  # most sessions have none

    return InjectedSource(
        families_of(config),
        resource_detector=resource_detector(config, os.environ),
        device_time=config.device_time,
        ring_bytes=max(config.ring_bytes // 8, 65_536),  # one for each thread
        socket_path=Path(config.inject_socket) if config.inject_socket else None,
    )


def load_into(source: InjectedSource, members: Iterable[int]) -> None:
    """Load the library into running processes, having said so. Raises :class:`OtelgpuError` where it is in none.

    Those without CUDA are passed over, as long as one has it.
    """
    from otelgpu.processes.live_injection.refusals import InjectionRefused, NoCuda, refuse_unsuitable

    refused: list[InjectionRefused] = []
    observed = 0
    for tgid in members:
        try:
            refuse_unsuitable(tgid)
            say(LOADING.format(tgid))
            source.load_into(tgid)
            observed += 1
        except InjectionRefused as error:
            refused.append(error)
    if not observed:
        raise next((each for each in refused if not isinstance(each, NoCuda)), refused[0])
    for each in refused:
        if not isinstance(each, NoCuda):
            say(each.message)


LOADING: Final = (
    "loading a library into process {}: one of its threads is held for a moment; the library asks CUPTI "
    "for times as long as otelgpu runs, then stays mapped and does nothing"
)


def agent_scope(config: Config) -> Scope:
    """Every process, or those that the configuration picks."""
    picks = bool(config.executables or config.containers)
    return Scope(
        everything=not config.cgroups and not picks,
        cgroups=tuple(Path(directory) for directory in config.cgroups),
        admits=(lambda tgid: admits(tgid, config.executables, config.containers)) if picks else None,
    )


def admits(tgid: int, executables: Sequence[str], containers: Sequence[str]) -> bool:
    """Whether a process's executable fits one of the patterns and its container one of the ids (if any)."""
    facts = describe(tgid)
    if facts is None:
        return False
    name = os.path.basename(facts.executable)
    return (not executables or any(fnmatch.fnmatch(name, pattern) for pattern in executables)) and (
        not containers or any(facts.container_id.startswith(container) for container in containers)
    )
