"""Write what the code knows into the marked regions of ``docs/``: ``python -m tools.document``.

A region begins with ``<!-- generated: NAME -->`` and ends with ``<!-- end -->``. What stands between is
replaced by the function that :data:`REGIONS` has for NAME. With ``--check`` nothing is written and the
exit code tells whether something is stale; tests/unit/test_docs.py does the same.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import click
import msgspec

from otelgpu import config
from otelgpu.cli.commands import cli
from otelgpu.cli.reload import LIVE
from otelgpu.correlate.hints import HINTS
from otelgpu.export.prometheus import metric_name
from otelgpu.export.sender import LOSS_REASONS
from otelgpu.families.base import ExchangeSignals, Instrument, Metric, OperationMetric, OperationSignals
from otelgpu.families.registry import families
from otelgpu.kernel.capabilities import NEEDS, Capability, Need
from otelgpu.model.exchange import NOWHERE, Exchange, Role, StartSource
from otelgpu.model.operations import ContextSource
from otelgpu.render.format import FORMATS
from otelgpu.signals import (
    block_session,
    collective_metrics,
    collective_names,
    device_time,
    devices,
    fabric_ports,
    memory,
    names,
    queue_pair_names,
    self_metrics,
    step_metrics,
    step_names,
    tensor_metrics,
    training_metrics,
    training_names,
)
from otelgpu.signals.losses import LOSSES as LOSSES_METRIC
from tools import collective_tables, fabric_tables, queue_pair_tables, training_tables
from tools.cuda_calls import rows as calls
from tools.examples import MBU, exchanges_told, full_exchange, full_step, step_attributes, told
from tools.loss_reasons import loss_reasons
from tools.meanings import ATTRIBUTES, CONTEXT_SOURCES, LOSSES, START_SOURCES, words_for

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
_REGION: Final = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Rows = Iterable[Sequence[str]]


def table(header: Sequence[str], rows: Rows) -> str:
    """A Markdown table; ``|`` in a cell is escaped."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(" --- " for _ in header) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """``text`` as inline code, or nothing."""
    return f"`{text}`" if text else ""


# -- Settings and commands -------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Every command by name."""
    context = click.Context(cli, info_name="otelgpu")
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def options(command: click.Command) -> list[click.Option]:
    """The options of a command, in the order that --help has them."""
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def spelling(option: click.Option) -> str:
    """``-o, --output PATH``."""
    flags = ", ".join(sorted((*option.opts, *option.secondary_opts), key=len))
    if option.is_flag:
        return flags
    return f"{flags} {option.make_metavar(click.Context(cli))}"


def options_of(name: str) -> str:
    """The table of a command's options."""
    rows = [(code(spelling(option)), option.help or "") for option in options(commands()[name])]
    return table(("Option", "Meaning"), [*rows, (code("-h, --help"), "Show the synopsis and the options.")])


def field_docs() -> dict[str, str]:
    """Setting → the docstring under its field in ``Config``."""
    tree = ast.parse(inspect.getsource(config.Config)).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs, current = {}, ""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            current = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and current:
            docs[current] = inspect.cleandoc(str(node.value.value))
    return docs


def settings() -> str:
    """The table of every setting."""
    flags: dict[str, str] = {}
    for command in commands().values():
        for option in options(command):
            flags.setdefault(option.name or "", max(option.opts, key=len))
    docs = field_docs()
    rows = []
    for field in msgspec.structs.fields(config.Config):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        rows.append(
            (
                code(field.name),
                code(f"OTELGPU_{field.name.upper()}"),
                code(flags.get(field.name, "")) or "–",
                _type_name(field.type),
                code(_yaml(default)),
                docs[field.name],
            )
        )
    return table(("YAML key", "Environment", "Flag", "Type", "Default", "Meaning"), rows)


def _type_name(annotation: Any) -> str:
    text = str(annotation)
    if "Literal" in text:
        return ", ".join(code(str(choice)) for choice in get_args(annotation))
    if "Annotated" in text:
        meta = get_args(annotation)[1]
        bounds = [
            f"{word} {bound}" for word, bound in (("from", meta.ge), ("to", meta.le)) if bound is not None
        ]
        return " ".join(["integer", *bounds])
    if "dict" in text:
        return "mapping"
    if "tuple" in text:
        return "list"
    return {"bool": "true or false", "int": "integer"}.get(getattr(annotation, "__name__", ""), "text")


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return str(value)


# -- Signals ---------------------------------------------------------------------------------------------


def operation_signals() -> dict[str, OperationSignals]:
    """The families that yield operations."""
    return {
        name: family.signals
        for name, family in families().items()
        if isinstance(family.signals, OperationSignals)
    }


def exchange_signals() -> dict[str, ExchangeSignals]:
    """The families that yield exchanges."""
    return {
        name: family.signals
        for name, family in families().items()
        if isinstance(family.signals, ExchangeSignals)
    }


def _attribute_row(key: str, kind: str, requirement: str) -> tuple[str, ...]:
    meaning, example = words_for(ATTRIBUTES, key)
    return code(key), kind, meaning, code(example), requirement


_KINDS: Final = {Role.SERVER: "SERVER spans", Role.CLIENT: "CLIENT spans"}
_ATTRIBUTE_HEADER: Final = ("Attribute", "Type", "Description", "Example", "Present")


def exchange_attributes(signals: ExchangeSignals, exchange: Exchange) -> dict[str, object]:
    """The attributes of one exchange."""
    return {each.key: told(each) for each in signals.attributes([exchange], ["/"])}


def request_attributes() -> str:
    """Attributes of the spans of requests, SERVER and CLIENT."""
    rows = []
    for signals in exchange_signals().values():
        rich = full_exchange()
        bare = replace(
            rich,
            generation=None,
            error="",
            status_code=0,
            user_agent="",
            first_byte_ns=0,
            server=NOWHERE,
            client=NOWHERE,
        )
        always = {role: exchange_attributes(signals, replace(bare, role=role)) for role in _KINDS}
        sometimes: dict[str, object] = {}
        for exchange in exchanges_told(rich):
            sometimes |= exchange_attributes(signals, exchange)
        for key, value in sometimes.items():
            rare = "generations" if "gen_ai." in key else "when known"
            on = [kind for role, kind in _KINDS.items() if key in always[role]]
            present = "always" if len(on) == len(_KINDS) else on[0] if on else rare
            rows.append(_attribute_row(key, _value_type(value), present))
    rows.append(_attribute_row(names.DROPPED, "int", "when any"))
    rows += [(code(key), "int", *_summary_meaning(key), "when not 0") for key in summary_keys()]
    return table(_ATTRIBUTE_HEADER, rows)


def summary_keys() -> list[str]:
    """Keys of the totals that requests, phases and windows carry."""
    return [key for signals in operation_signals().values() for key, _, _ in signals.summaries]


def _summary_meaning(key: str) -> tuple[str, str]:
    meaning, example = words_for(ATTRIBUTES, key)
    return meaning, code(example)


def _value_type(value: object) -> str:
    kinds = {bool: "boolean", int: "int", float: "double", str: "string", tuple: "string[]"}
    return kinds[type(value)]


def operation_attributes() -> str:
    """Attributes of the spans of calls."""
    rows: dict[str, tuple[str, ...]] = {
        names.THREAD_ID: _attribute_row(names.THREAD_ID, "int", "always"),
        names.CONTEXT_SOURCE: _attribute_row(names.CONTEXT_SOURCE, "string", "always"),
        names.COUNT: _attribute_row(names.COUNT, "int", "folded runs"),
        names.HOST_TIME: _attribute_row(names.HOST_TIME, "int", "folded runs"),
        names.MERGED: _attribute_row(names.MERGED, "boolean", "beyond the bound"),
        names.ERROR_TYPE: _attribute_row(names.ERROR_TYPE, "string", "failed calls"),
    }
    for signals in operation_signals().values():
        if signals.kernel_name:
            rows[signals.kernel_name] = _attribute_row(signals.kernel_name, "string", "launch")
        rows |= {key: _attribute_row(key, "string", "always") for key, _ in signals.api_labels}
        integers = [(kind, spec.key, "int") for kind, specs in signals.attributes.items() for spec in specs]
        labels = [(kind, key, "string") for kind, specs in signals.labels.items() for key, *_ in specs]
        for kind, key, kind_name in integers + labels:
            word = kind.name.lower().replace("_", " ")
            known = rows.get(key)
            rows[key] = _attribute_row(key, kind_name, f"{known[-1]}, {word}" if known else word)
    return table(_ATTRIBUTE_HEADER, rows.values())


def engine_attributes() -> str:
    """Attributes of steps, and of requests by the steps that served them."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for place, found in step_attributes().items():
        for key, value in found.items():
            rows.setdefault(key, []).append((place, _value_type(value)))
    return table(
        ("Attribute", "Type", "Description", "Example", "On"),
        [
            _attribute_row(key, places[0][1], ", ".join(place for place, _ in places))
            for key, places in rows.items()
        ],
    )


def training_attributes() -> str:
    """Attributes of steps of training."""
    return table(
        ("Attribute", "What it tells"),
        [(code(key), text) for key, text in training_tables.ATTRIBUTES.items()],
    )


def hints() -> str:
    """Each hint, and from which share on it is given."""
    rows = [
        (code(name), code(step_names.HINT_EVIDENCE + name), hint.meaning, f"{hint.least:g}")
        for name, hint in HINTS.items()
    ]
    return table((f"`{step_names.HINTS}`", "Evidence", "What it is a share of", "From"), rows)


def context_sources() -> str:
    """Each value of ``otelgpu.context.source``."""
    rows = [(code(each.name.lower()), words_for(CONTEXT_SOURCES, each)) for each in ContextSource]
    return table((f"`{names.CONTEXT_SOURCE}`", "The call is tied to a span by"), rows)


def start_sources() -> str:
    """Each value of ``otelgpu.start.source``."""
    rows = [(code(each.value), words_for(START_SOURCES, each)) for each in StartSource]
    return table(("`otelgpu.start.source`", "The span starts when"), rows)


def operation_metrics() -> list[tuple[OperationMetric, str]]:
    """Every metric of operations with its scope."""
    return [(spec, signals.scope) for signals in operation_signals().values() for spec in signals.metrics]


def metrics() -> str:
    """Every metric."""
    rows = []
    for _, signals in exchange_signals().items():
        keys: dict[str, tuple[Metric, dict[str, None]]] = {}
        rich = full_exchange()
        for exchange in exchanges_told(rich):
            for measured in signals.metrics([exchange], ["/"]):
                _, known = keys.setdefault(measured.metric.name, (measured.metric, {}))
                known.update(dict.fromkeys(measured.labels))
        rows += [_metric_row(metric, list(labels), signals.scope) for metric, labels in keys.values()]
    for spec, scope in operation_metrics():
        keys_of = [names.ERROR_TYPE] if spec.failed else [spec.attribute[0]] if spec.attribute else []
        row = _metric_row(spec.metric, keys_of, scope)
        rows += [row] if row not in rows else []  # one metric may be fed from several kinds of calls
    labels_of: dict[str, dict[str, None]] = {metric.name: {} for metric in step_metrics.METRICS}
    for found in step_metrics.step_metrics([full_step()], [MBU]):
        labels_of[found.metric.name].update(dict.fromkeys(found.labels))
    rows += [
        _metric_row(metric, list(labels_of[metric.name]), step_names.SCOPE) for metric in step_metrics.METRICS
    ]
    rows += [_metric_row(metric, keys, memory.SCOPE) for metric, keys in memory.METRICS.items()]
    tensors = tensor_metrics
    rows += [_metric_row(metric, [tensors.DEVICE], tensors.SCOPE) for metric in tensors.METRICS]
    rows.append(_metric_row(device_time.KERNEL_DURATION, [], device_time.SCOPE))
    rows.append(_metric_row(device_time.CALLS, [device_time.SAMPLED], device_time.SCOPE))
    rows += [_metric_row(metric, [], devices.SCOPE) for metric in devices.METRICS]
    rows += [
        _metric_row(metric, block_session.LABELS, block_session.SCOPE) for metric in block_session.METRICS
    ]
    rows += [
        _metric_row(metric, keys, fabric_ports.SCOPE)
        for metric, keys in fabric_tables.metric_labels().items()
    ]
    rows += [
        _metric_row(metric, keys, queue_pair_names.SCOPE)
        for metric, keys in queue_pair_tables.metric_labels().items()
    ]
    rows += [
        _metric_row(metric, keys, collective_names.SCOPE)
        for metric, keys in collective_metrics.METRICS.items()
    ]
    rows += [
        _metric_row(metric, keys, training_names.SCOPE)
        for metric, keys in training_tables.metric_labels().items()
    ]
    rows.append(_metric_row(LOSSES_METRIC, [names.LOSS_FAMILY, names.LOSS_REASON], names.SELF_SCOPE))
    rows += [_metric_row(metric, keys, names.SELF_SCOPE) for metric, keys in self_metrics.SELF_METRICS]
    return table(("Metric", "Instrument", "Unit", "Description", "Attributes", "Scope"), rows)


def own_metrics() -> str:
    """What the agent tells of itself, by the names that OTLP and Prometheus have for it."""
    rows = []
    for metric, keys in ((LOSSES_METRIC, (names.LOSS_FAMILY, names.LOSS_REASON)), *self_metrics.SELF_METRICS):
        counter = metric.instrument is Instrument.COUNTER
        there = metric_name(metric.name, metric.unit, counter=counter)
        rows.append((code(metric.name), code(there), metric.description, ", ".join(map(code, keys)) or "–"))
    return table(("Metric", "In /metrics", "Meaning", "Attributes"), rows)


def reloaded() -> str:
    """The settings that SIGHUP changes."""
    return ", ".join(code(field) for field in config.Config.__struct_fields__ if field in LIVE) + ".\n"


def _metric_row(metric: Metric, keys: Sequence[str], scope: str) -> tuple[str, ...]:
    return (
        code(metric.name),
        metric.instrument.value,
        code(metric.unit) or "–",
        metric.description,
        ", ".join(map(code, keys)) or "–",
        code(scope),
    )


def buckets() -> str:
    """The explicit bounds of every histogram."""
    found = [device_time.KERNEL_DURATION, *(spec.metric for spec, _ in operation_metrics())]
    found.append(block_session.DURATION)
    found += step_metrics.METRICS
    found += collective_metrics.METRICS
    found += [metric for metric, _ in self_metrics.SELF_METRICS]
    found.append(training_metrics.DURATION)
    found += [metric for metric in queue_pair_names.METRICS if metric.buckets]
    exchanges = exchanges_told(full_exchange())
    for signals in exchange_signals().values():
        found += [measured.metric for measured in signals.metrics(exchanges, ["/"] * len(exchanges))]
    rows = [
        (code(metric.name), code(metric.unit), ", ".join(f"{bound:.10g}" for bound in metric.buckets))
        for metric in found
        if metric.buckets
    ]
    return table(("Histogram", "Unit", "Bounds"), sorted(set(rows)))


# -- Losses ----------------------------------------------------------------------------------------------


def losses() -> str:
    """The table of reasons."""
    probing = ", ".join(map(code, (*families(), "process")))
    rows = [
        (code(room) if room != "*" else probing, code(reason), text)
        for (room, reason), text in loss_reasons().items()
    ]
    return table(("`otelgpu.family`", "`otelgpu.reason`", "One count means"), rows)


def export_losses() -> str:
    """What an exporter can lose."""
    reasons = (*LOSS_REASONS, "unencodable", "write_failed")
    return table(
        ("Reason", "Meaning"), [(code(name), words_for(LOSSES, ("export", name))) for name in reasons]
    )


# -- Regions ---------------------------------------------------------------------------------------------


def cuda_calls() -> str:
    """Each function of the CUDA API that has a probe."""
    return table(("Function", "Library", "Kind", "Fields read", "Probed at"), calls())


def fabric_metrics() -> str:
    """Each metric of RDMA ports."""
    labels = fabric_tables.metric_labels().items()
    rows = (_metric_row(metric, keys, fabric_ports.SCOPE)[:5] for metric, keys in labels)
    return table(("Metric", "Instrument", "Unit", "Description", "Attributes"), rows)


def queue_pair_metrics() -> str:
    """Each metric of queue pairs and registered memory."""
    labels = queue_pair_tables.metric_labels().items()
    rows = (_metric_row(metric, keys, queue_pair_names.SCOPE)[:5] for metric, keys in labels)
    return table(("Metric", "Instrument", "Unit", "Description", "Attributes"), rows)


def queue_pair_attributes() -> str:
    """What queue pairs are described by."""
    rows = [(code(key), *texts) for key, texts in queue_pair_tables.ATTRIBUTES.items()]
    return table(("Attribute", "Meaning", "Example"), rows)


def queue_pair_losses() -> str:
    """Counters of ports whose growth is divided among queue pairs."""
    return table(("Counter", f"`{queue_pair_names.LOSS_KIND}`"), queue_pair_tables.losses())


def fabric_attributes() -> str:
    """What ports and errors are described by."""
    return table(
        ("Attribute", "Meaning"), [(code(key), text) for key, text in fabric_tables.ATTRIBUTES.items()]
    )


def fabric_counters() -> str:
    """Each counter of RDMA drivers that has a meaning here."""
    return table(("Counter", "Metric", "Attributes", "Factor"), fabric_tables.counters())


def xids() -> str:
    """Each Xid that has a meaning here."""
    return table(("Xid", "Name", "Class", "Action"), fabric_tables.xids())


def xid_actions() -> str:
    """What each action of an Xid is in words."""
    return table(("Action", "What to do"), fabric_tables.actions())


def collective_metrics_table() -> str:
    """Each metric of collectives as a whole."""
    rows = (_metric_row(metric, keys, "")[:5] for metric, keys in collective_metrics.METRICS.items())
    return table(("Metric", "Instrument", "Unit", "Description", "Attributes"), rows)


def collective_attributes() -> str:
    """What collectives, their calls and waits are described by."""
    rows = [(code(key), where, text) for key, (where, text) in collective_tables.ATTRIBUTES.items()]
    return table(("Attribute", "On", "Meaning"), rows)


def collective_sources() -> str:
    """Where numbers of collectives are from."""
    rows = [(code(name), text) for name, text in collective_tables.sources()]
    return table(("`nccl.sequence.source`", "Where the number is from"), rows)


def privileges() -> str:
    """What each feature needs capabilities for."""
    rows = [
        (
            need.name,
            names_of(sorted(need.capabilities)),
            need.does,
            need.when or "always",
            _stays(need),
            need.without,
        )
        for need in NEEDS
    ]
    return table(("Feature", "Capabilities", "For", "Needed", "Kept", "Without"), rows)


def names_of(capabilities: Iterable[Capability]) -> str:
    """As code."""
    return ", ".join(code(str(each)) for each in capabilities)


def _stays(need: Need) -> str:
    return "yes" if need.later else "no"


def profile_formats() -> str:
    """What the name of a file of profiles asks for."""
    return table(("Name ends in", "It is"), [(code(suffix), says) for suffix, says in FORMATS.items()])


REGIONS: Final[Mapping[str, Callable[[], str]]] = {
    "settings": settings,
    "profile formats": profile_formats,
    "privileges": privileges,
    "request attributes": request_attributes,
    "operation attributes": operation_attributes,
    "step attributes": engine_attributes,
    "training attributes": training_attributes,
    "hints": hints,
    "context sources": context_sources,
    "start sources": start_sources,
    "metrics": metrics,
    "own metrics": own_metrics,
    "reloaded settings": reloaded,
    "buckets": buckets,
    "losses": losses,
    "export losses": export_losses,
    "cuda calls": cuda_calls,
    "fabric metrics": fabric_metrics,
    "fabric attributes": fabric_attributes,
    "fabric counters": fabric_counters,
    "queue pair metrics": queue_pair_metrics,
    "queue pair attributes": queue_pair_attributes,
    "queue pair losses": queue_pair_losses,
    "collective metrics": collective_metrics_table,
    "collective attributes": collective_attributes,
    "collective sources": collective_sources,
    "xids": xids,
    "xid actions": xid_actions,
    **{f"options {name}": partial(options_of, name) for name in commands()},
}


def renewed(text: str) -> str:
    """A document with its regions written anew. Raises KeyError for a region that nobody makes."""
    return _REGION.sub(lambda found: f"{found[1]}\n{REGIONS[found[2]]()}\n{found[3]}", text)


def main(arguments: Sequence[str]) -> int:
    """Write, or with --check only tell; 1 when something was stale."""
    stale = 0
    for path in sorted(DOCS.glob("*.md")):
        old = path.read_text()
        new = renewed(old)
        if new != old:
            stale += 1
            print(f"  {'STALE' if '--check' in arguments else 'WROTE':8} {path.relative_to(ROOT)}")
            if "--check" not in arguments:
                path.write_text(new)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
