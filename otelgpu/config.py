"""Settings: command-line flags over environment variables over a YAML file over OTEL_CONFIG_FILE over the defaults.

One table, :class:`Config`, defines every setting once: its YAML key is the field's name, its environment
variable is ``OTELGPU_`` and the name in capitals. ``OTEL_EXPORTER_OTLP_*``, ``OTEL_SERVICE_NAME``,
``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_TRACES_SAMPLER`` and ``OTEL_METRIC_EXPORT_INTERVAL`` are read where the
specification says.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from otelgpu.errors import OtelgpuError
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.sampling import Exclusion, Sampler, SamplerName, TailRule
from otelgpu.model.settings import Detail, OwnSpans, Settings, SignalSettings, captures_content
from otelgpu.model.text import did_you_mean

SYSTEM_FILE: Final = Path("/etc/otelgpu/config.yaml")
_log: Final = logging.getLogger("otelgpu.config")
_PREFIX: Final = "OTELGPU_"
_ALL: Final = "all"
_RATIO: Final = "traceidratio"
_PROFILES: Final = (*ProfileKind, _ALL)
_PATTERNS: Final = (
    "executables",
    "containers",
    "cgroups",
    "traces_exclude_paths",
    "traces_exclude_user_agents",
)
"""Lists in which nothing is a mistake."""
_REMOVED: Final = {
    "kubernetes_api": "was removed: the Collector's k8s_attributes processor names pods and workloads, as "
    "collector-config/daemonset.yaml has it (docs/reference/identity.md)",
}
"""Settings that there were → what takes their place."""
_STANDARD: Final = {
    "metric_interval_ms": "OTEL_METRIC_EXPORT_INTERVAL",
    "traces_sampler": "OTEL_TRACES_SAMPLER",
    "traces_sampler_arg": "OTEL_TRACES_SAMPLER_ARG",
}
"""Settings that a variable of the specification sets too."""
_OTHER_SAMPLERS: Final = ("jaeger_remote", "parentbased_jaeger_remote", "xray")
"""What else the specification has for OTEL_TRACES_SAMPLER, and a service that is started with it."""
_FLAGS: Final = {"cgroups": "--cgroup", "containers": "--container", "executables": "--executable"}
"""Those that are not named as their setting."""
_CONTAINER_ID: Final = re.compile(r"[0-9a-f][0-9a-f-]*")
_SHOWN: Final = 80
"""Characters of a value that a message repeats."""
_RingBytes = Annotated[int, msgspec.Meta(ge=65_536, le=1 << 30)]


class ConfigError(OtelgpuError):
    """A setting is wrong; the message names where it was given."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting and its default. See docs/reference/configuration.md."""

    families: tuple[str, ...] = ()
    """What to observe; empty: every family but `torch`, which is asked for by its name, or by profiles of `mem`."""
    export: tuple[str, ...] = ()
    """Destinations, as `--export` has them. Empty: otlp when an endpoint is set, else a file."""
    detail: Detail = "ops"
    """phases: no operation spans; ops: equal calls folded; all: a span for each call (to 16,384 a parent)."""
    source: Literal["uprobe", "inject"] = "uprobe"
    """Where CUDA calls come from: eBPF probes, or a library loaded into the programs (docs/explanation/inject.md)."""
    inject_socket: str = ""
    """agent, with source inject: the Unix socket at which it waits for programs that bring the library."""
    device_time: bool = False
    """With source inject: when kernels and copies ran on the GPU, by CUPTI, in a budget (docs/reference/cupti.md)."""
    kernel_metrics: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Launches per kernel name as a metric, for the first so many names; the others are "other". 0: none."""
    device_interval_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 10_000
    """How often NVML is read for hw.gpu.* (needs the extra "gpu"); 0: never."""
    fabric_interval_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 2_000
    """How often RDMA ports are read for rdma.*, and whether the kernel's log is, for Xids; 0: never."""
    rdma_budget: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    """Percent of a core that counting a process's RDMA posts and polls may cost it. 0: neither; 100: all, always."""
    max_overhead: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    """Percent of a core that probes of launches, copies and events may cost a process, in windows. 0: no bound."""
    rdma_transfers: bool = False
    """A span for each RDMA work request (while all are counted): for looking into one, not to be left on."""
    probe_file: str = ""
    """Functions, USDT and tracepoints to probe beside all that, in a file of JSON (docs/how-to/probes.md)."""
    probe_program: str = ""
    """BPF in C, compiled by bcc, for the probes of probe_file that name a function of it."""
    file_slow_ms: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 1.0
    """Where NCCL is used: calls on files that take so long are reported, in steps of training and as metrics."""
    traces_sampler: SamplerName = "parentbased_always_on"
    """Which requests are traces (docs/how-to/sampling.md); OTEL_TRACES_SAMPLER sets it too. Metrics are of all."""
    traces_sampler_arg: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """The share of traces of traceidratio; OTEL_TRACES_SAMPLER_ARG sets it too."""
    traces_keep_errors: bool = True
    """Report requests that failed though the sampler left them out."""
    traces_keep_first_token_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 10.0
    """The same for those whose first token took so long, in seconds; 0: not."""
    traces_keep_first_token_quantile: Annotated[float, msgspec.Meta(ge=0, le=0.999)] = 0.0
    """The same for those whose first token was slower than this share of the last 1,000 of their service; 0: not."""
    traces_spans_per_second: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0
    """Spans a second, of this agent: beyond it requests lose their operations, then their spans. 0: no limit."""
    traces_exclude_paths: tuple[str, ...] = ()
    """Requests for paths that match one of these patterns (fnmatch) are no traces, as /health* and /metrics."""
    traces_exclude_user_agents: tuple[str, ...] = ()
    """The same by who asks, as kube-probe/* and ELB-HealthChecker/*."""
    collective_sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Share of the collectives that are reported as traces: the same ones on every rank. Metrics have them all."""
    switch_file: str = ""
    """agent: annotations of the node's pods, from otelgpu watch-pods: more detail for a pod. "": nobody asks."""
    switch_longest_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 600.0
    """The longest time for which an annotation may ask for more detail."""
    switch_at_once: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Pods of a node that have more detail at once."""
    switch_pause_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    """From one time that a pod has more detail to the next, beginning to beginning."""
    own_spans: OwnSpans = "auto"
    """Of requests whose process makes spans itself. auto: GPU work goes under those; always: ours beside them."""
    model_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes that a decode step reads, the model's weights: with memory_bandwidth, for MBU. 0: not known."""
    memory_bandwidth: Annotated[int, msgspec.Meta(ge=0)] = 0
    """A device's peak memory bandwidth in bytes per second. 0: not known."""
    gpu_idle_watts: Annotated[float, msgspec.Meta(ge=0, le=2000)] = 0.0
    """What a GPU draws while nobody uses it, in watts: no request is charged that. 0: as measured."""
    price_per_kwh: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """What a kilowatt-hour costs: with it, or the next, requests have a cost (docs/reference/energy.md). 0: nothing."""
    price_per_gpu_hour: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """What an hour of a GPU costs: a request pays for its part of the time in which it worked for requests."""
    currency: str = ""
    """Of both prices, as EUR: it goes beside the cost, and converts nothing."""
    carbon_grams_per_kwh: Annotated[float, msgspec.Meta(ge=0, le=1e5)] = 0.0
    """Carbon intensity: grams of CO2 equivalent that a kilowatt-hour emits. With it requests have them too. 0: none."""
    publish_context: bool = False
    """Write which request each thread works for into the pinned map traces_ctx_v1, for other eBPF tools."""
    hold_on_load: bool = False
    """Stop a process, for a second at most, while a library it has just mapped gets its probes."""
    trust_mounts: bool = False
    """Open files also on mounts of other user namespaces (rootless containers), whose owners may keep us waiting."""
    return_probes: Literal["auto", "on", "off"] = "auto"
    """off: entry probes only, so neither durations nor results; auto: on where the kernel is safe."""
    ring_bytes: _RingBytes = 8 << 20
    """Size of the rings of calls and requests; a power of two. Families with fewer records have 2 MiB, or a quarter."""
    interval_ms: Annotated[int, msgspec.Meta(ge=10, le=10_000)] = 200
    """How often rings are drained while anything comes; 1 s once that is steady and cheap, 2 s once nothing does."""
    metric_interval_ms: Annotated[int, msgspec.Meta(ge=100)] = 60_000
    """How often metrics are exported; OTEL_METRIC_EXPORT_INTERVAL sets it too."""
    memory_limit_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """Near so much, things are given up (docs/how-to/operations.md); 0: what the container leaves, without one 512."""
    executables: tuple[str, ...] = ()
    """agent: only processes whose executable's file name matches one of these patterns (fnmatch)."""
    cgroups: tuple[str, ...] = ()
    """agent: only processes in these cgroup v2 directories."""
    containers: tuple[str, ...] = ()
    """agent: only processes in these containers, by id or the beginning of one."""
    resource_attributes: dict[str, str] = {}
    """Added to every resource."""
    otlp: dict[str, str] = {}
    """OTEL_EXPORTER_OTLP_* by their names in small letters without the prefix (endpoint, headers, …)."""
    health_address: str = ""
    """agent: PORT, HOST:PORT or [IPV6]:PORT that serves /healthz, /readyz and /metrics; loopback without a host."""
    profiles: tuple[str, ...] = ()
    """Continuous profiles: cpu, python, offcpu, syscall, file, block, cuda, kernel, mem, nccl, verbs; or all."""
    profile_frequency_hz: Annotated[int, msgspec.Meta(ge=19, le=997)] = 19
    """How often a second cpu and python look at what runs on each CPU."""
    profile_interval_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 10.0
    """How long one profile covers."""
    profile_off_cpu_us: Annotated[int, msgspec.Meta(ge=0, le=60_000_000)] = 1000
    """offcpu and python: shorter waits are passed over."""
    profile_launches: bool = True
    """cuda and kernel: calls that launch too; false: without, of programs that launch too often to take each stack."""
    drop_privileges: bool = True
    """Give up the capabilities that are not needed once the probes are loaded (docs/reference/privileges.md)."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """Of this program's own log, on standard error."""
    log_format: Literal["text", "json"] = "text"
    """json: each line of the log is a JSON object."""


def default_file(environ: Mapping[str, str], system: Path = SYSTEM_FILE) -> Path | None:
    """The file that is read where none is named: the user's, else the system's, else none.

    Raises :class:`ConfigError` for one that somebody else could have written: it names programs to be loaded.
    """
    home = environ.get("XDG_CONFIG_HOME") or (environ.get("HOME") and f"{environ['HOME']}/.config")
    for path in (*([Path(home, "otelgpu/config.yaml")] if home else []), system):
        try:
            found = path.stat()
        except OSError:  # there is none, or it is nothing of ours
            continue
        if not os.access(path, os.R_OK):
            continue
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
            raise ConfigError(
                f"{path} belongs to user {found.st_uid}, or everybody may write to it",
                hint="name the file to read it all the same: --config, or OTELGPU_CONFIG",
            )
        return path
    return None


def load_config(
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
    declared: Mapping[str, Any] = MappingProxyType({}),
) -> Config:
    """Merge the sources. ``flags`` holds only what was given; ``declared`` is what OTEL_CONFIG_FILE says.

    Raises :class:`ConfigError`.
    """
    merged: dict[str, Any] = {**declared}
    if path is not None:
        merged |= _from_file(path)
    merged |= _from_environment(environ)
    merged |= flags
    try:
        config = msgspec.convert(merged, Config, strict=False)
    except msgspec.ValidationError as error:
        name = _setting_at_fault(error)
        raise ConfigError(
            f"{_place(name, path, environ, flags)}: {_must_be(name, merged.get(name))}"
        ) from error
    if config.ring_bytes & (config.ring_bytes - 1):
        place = _place("ring_bytes", path, environ, flags)
        raise ConfigError(f"{place}: {config.ring_bytes} is not a power of two")
    for name in _PATTERNS:
        for value in getattr(config, name):
            if not value.strip():
                raise ConfigError(f"{_place(name, path, environ, flags)}: an empty value picks nothing")
    for container in config.containers:
        if _CONTAINER_ID.fullmatch(container) is None:
            place = _place("containers", path, environ, flags)
            raise ConfigError(
                f"{place}: {container!r} is no container id",
                hint="give hexadecimal digits, as `docker ps` or `crictl ps` has them; names are not known here",
            )
    for kind in config.profiles:
        if kind not in _PROFILES:
            place = _place("profiles", path, environ, flags)
            raise ConfigError(f"{place}: {kind!r} is no kind of profile; write {', '.join(_PROFILES)}")
    return config


def _from_file(path: Path) -> dict[str, Any]:
    import yaml  # most runs have no file

    try:
        text = path.read_text()
        content = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"configuration file {path} must hold a mapping of settings")
    check_settings(content, lambda name: f"{path}:{_line_of_key(text, name)}" if name else f"{path}")
    return content


def check_settings(content: dict[str, Any], place: Callable[[str], str]) -> None:
    """Refuse what is no setting, or no value of one. ``place``: where a key stands, for the message; of "" all of it.

    Raises :class:`ConfigError`.
    """
    for name, what in _REMOVED.items():
        if name in content:
            raise ConfigError(f"{place(name)}: {name} {what}")
    for name in content:
        if name not in Config.__struct_fields__:
            near = did_you_mean(str(name), Config.__struct_fields__)
            raise ConfigError(f"{place(str(name))}: there is no setting {str(name)!r}{near}")
    try:
        msgspec.convert(content, Config)
    except msgspec.ValidationError as error:
        name = _setting_at_fault(error)
        raise ConfigError(f"{place(name)}: {name} {_must_be(name, content[name])}") from error


def _setting_at_fault(error: msgspec.ValidationError) -> str:
    """The setting that a path as ``$.name[0]`` begins with."""
    place = re.search(r"\$\.(\w+)", str(error))
    if place is None:
        raise error
    return place.group(1)


def _must_be(name: str, value: object) -> str:
    """What a setting takes and did not get. Values of mappings are not shown: they may be secrets."""
    got = f", not {value!r}" if isinstance(value, str | int | float) and len(str(value)) <= _SHOWN else ""
    return f"must be {_taken(name)}{got}"


def _taken(name: str) -> str:
    """Its values in words, from its type."""
    from msgspec import inspect  # of errors only

    hint = get_type_hints(Config, include_extras=True)[name]
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    of = inspect.type_info(hint)
    if isinstance(of, inspect.IntType | inspect.FloatType):
        number = "a whole number" if isinstance(of, inspect.IntType) else "a number"
        if of.le is None:
            return f"{number}, {of.ge} at least"
        return f"{number} from {of.ge} to {of.le}"
    names = {
        inspect.BoolType: "true or false",
        inspect.VarTupleType: "a list of texts",
        inspect.StrType: "a text",
    }
    return names.get(type(of), "a mapping of names to texts")


def _line_of_key(text: str, name: str) -> int | None:
    import yaml

    root = yaml.compose(text)
    if not isinstance(root, yaml.MappingNode):
        return None
    return next((int(key.start_mark.line) + 1 for key, _ in root.value if key.value == name), None)


def _place(name: str, path: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> str:
    """Where the value of a setting that is not the default was given."""
    if name in flags:
        return _FLAGS.get(name, f"--{name.replace('_', '-')}")
    variable = _PREFIX + name.upper()
    if environ.get(variable):
        return variable
    standard = _STANDARD.get(name, "")
    if environ.get(standard):
        return standard
    if path is None:
        return variable
    return f"{path}:{_line_of_key(path.read_text(), name)}: {name}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    for name, what in _REMOVED.items():
        if environ.get(_PREFIX + name.upper()):
            raise ConfigError(f"{_PREFIX + name.upper()} {what}")
    found: dict[str, Any] = {}
    for name, variable in _STANDARD.items():
        value = environ.get(variable, "").strip()
        if value in _OTHER_SAMPLERS:
            _log.warning("%s=%s is not known here: requests are sampled as by default", variable, value)
        elif value:
            found[name] = value
    if not found.get("traces_sampler", "").endswith(_RATIO):
        found.pop("traces_sampler_arg", None)  # another sampler's, which is none of ours
    for name, annotation in get_type_hints(Config).items():
        value = environ.get(_PREFIX + name.upper(), "")
        if not value:
            continue
        if annotation is bool:
            found[name] = _boolean(_PREFIX + name.upper(), value)
        elif str in get_args(annotation) and "tuple" in str(annotation):
            found[name] = tuple(part.strip() for part in value.split(",") if part.strip())
        elif "dict" in str(annotation):
            found[name] = _pairs(_PREFIX + name.upper(), value)
        else:
            found[name] = value
    return found


def _boolean(variable: str, value: str) -> bool:
    """OpenTelemetry's rule (true or false in any case), with 1 and 0 besides."""
    answers = {"true": True, "1": True, "false": False, "0": False}
    if value.lower() not in answers:
        raise ConfigError(f"{variable} is {value!r}; write true or false")
    return answers[value.lower()]


def _pairs(variable: str, value: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    for position, (_, equals, _) in enumerate(pairs, start=1):
        if not equals:  # the value may hold a secret, so it is not shown
            raise ConfigError(f"{variable}: part {position} has no '='; write key=value,key=value")
    return {key.strip(): text.strip() for key, _, text in pairs}


def reporting(config: Config, environ: Mapping[str, str]) -> SignalSettings:
    """What the session is asked to report. Content is reported only by the conventions' own opt-in variable."""
    return SignalSettings(
        detail=config.detail,
        kernel_metrics=config.kernel_metrics,
        own_spans=config.own_spans,
        capture_content=captures_content(environ),
        model_bytes=config.model_bytes,
        memory_bandwidth=config.memory_bandwidth,
        gpu_idle_watts=config.gpu_idle_watts,
        price_per_kwh=config.price_per_kwh,
        price_per_gpu_hour=config.price_per_gpu_hour,
        currency=config.currency,
        carbon_grams_per_kwh=config.carbon_grams_per_kwh,
        sampler=Sampler.of(config.traces_sampler, config.traces_sampler_arg),
        tail=TailRule(
            errors=config.traces_keep_errors,
            slow_first_token_s=config.traces_keep_first_token_s,
            slow_first_token_quantile=config.traces_keep_first_token_quantile,
        ),
        exclusion=Exclusion(paths=config.traces_exclude_paths, user_agents=config.traces_exclude_user_agents),
        spans_per_second=config.traces_spans_per_second,
        switch_longest_s=config.switch_longest_s,
        switch_at_once=config.switch_at_once,
        switch_pause_s=config.switch_pause_s,
        collective_sample_ratio=config.collective_sample_ratio,
    )


def profiling(config: Config) -> ProfileSettings:
    """What the session is asked to profile: equal observations of an interval are summed, as long as it runs."""
    asked = config.profiles
    return ProfileSettings(
        kinds=frozenset(ProfileKind if _ALL in asked else map(ProfileKind, asked)),
        frequency_hz=config.profile_frequency_hz,
        off_cpu_least_us=config.profile_off_cpu_us,
        launches=config.profile_launches,
        file_slow_ms=max(round(config.file_slow_ms), 1),
        interval_s=config.profile_interval_s,
        keep_times=False,
    )


def family_settings(config: Config) -> Settings:
    """All settings by name, of which each family takes its own; ``profiling``: as :func:`profiling` has it."""
    return Settings({**msgspec.structs.asdict(config), "profiling": profiling(config)})


def otlp_defaults(config: Config) -> dict[str, str]:
    """The file's ``otlp`` section under the names of the standard variables."""
    return {f"OTEL_EXPORTER_OTLP_{key.upper()}": value for key, value in config.otlp.items()}
