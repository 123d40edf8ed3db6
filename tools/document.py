"""Write what the code knows into ``docs/``: marked regions, and the pages of ``reference/signals/`` and ``man/`` in it.

And what reasons of losses mean, for the summary that ends a session, into ``otelgpu/cli/loss_reasons/``; dashboards
(:mod:`tools.dashboards`) into ``deploy/grafana/dashboards/``.

A region begins with ``<!-- generated: NAME -->`` and ends with ``<!-- end -->``. What stands between is
replaced by the function that :data:`REGIONS` has for NAME. With ``--check`` nothing is written and the
exit code says whether something is stale; tests/unit/test_docs.py does the same.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import click
import msgspec
import yaml
from msgspec.structs import replace

from otelgpu import config
from otelgpu.cli.commands import cli
from otelgpu.cli.headings import headed
from otelgpu.cli.mcp.tools import OBSERVING, READING
from otelgpu.cli.reload import LIVE
from otelgpu.engine import description_tables, names
from otelgpu.engine.description_tables import EXAMPLE, TEXT, MetricTable, Page, Table
from otelgpu.engine.exchange_signals import ExchangeSignals
from otelgpu.engine.prometheus_names import metric_name
from otelgpu.export import events as sdk_events
from otelgpu.export import registry as exporters
from otelgpu.kernel.privileges.capabilities import NEEDS, Capability, Need
from otelgpu.model.exchange import UNKNOWN_ENDPOINT, Exchange, Role
from otelgpu.render.format import FORMATS
from otelgpu.store import reasons, tables
from tools import chart_values, dashboards, diagnosis, man_pages
from tools.cuda_calls import rows as calls
from tools.examples import exchanges_reported, full_exchange, reported, step_attributes
from tools.loss_reasons import export_reasons, printed
from tools.markdown import code, table
from tools.signal_tables import (
    ATTRIBUTE_HEADER,
    attribute_row,
    common_attributes,
    common_buckets,
    common_losses,
    common_metrics,
    describe,
    exchange_signals,
    metric_row,
    metric_tables,
    pages,
)
from tools.volume import volume

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
PAGES: Final = DOCS / "reference" / "signals"
"""Pages that are written whole: see :mod:`tools.signal_tables`."""
MAN: Final = DOCS / "man"
"""Likewise: see :mod:`tools.man_pages`."""
ALERTS: Final = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARDS: Final = ROOT / "deploy" / "grafana" / "dashboards"
LOSSES: Final = ROOT / "otelgpu" / "cli" / "loss_reasons"
"""Files that are written whole: see :func:`tools.loss_reasons.printed`."""
_REGION: Final = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


# -- Settings and commands -------------------------------------------------------------------------------


def assistant_tools() -> str:
    """What an assistant may call, and with what."""
    rows = [
        (
            code(tool.name),
            f"{tool.text}{' Only with `--allow-profile`.' if tool.observes else ''}",
            ", ".join(code(name) for name in tool.input_schema["properties"]),
        )
        for tool in (*READING, *OBSERVING)
    ]
    return table(("Tool", "What it gives", "Arguments"), rows)


def commands() -> dict[str, click.Command]:
    """Every command by name."""
    context = click.Context(cli, info_name="otelgpu")
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def options(command: click.Command) -> list[click.Option]:
    """The options of a command, in the order that --help has them."""
    found = headed(command, click.Context(command, **cli.context_settings))
    return [option for under in found.values() for option in under]


def spelling(option: click.Option) -> str:
    """``-o, --output PATH``."""
    flags = ", ".join(sorted((*option.opts, *option.secondary_opts), key=len))
    if option.is_flag:
        return flags
    return f"{flags} {option.make_metavar(click.Context(cli))}"


def leaves() -> dict[str, click.Command]:
    """Every command that does something, by name: ``diagnose ranks``."""
    found: dict[str, click.Command] = {}
    for name, command in commands().items():
        within = command.commands if isinstance(command, click.Group) else {}
        found |= {f"{name} {word}": each for word, each in within.items()} or {name: command}
    return found


def options_of(name: str) -> str:
    """The table of the options of a command."""
    rows = [(code(spelling(option)), option.help or "") for option in options(leaves()[name])]
    return table(("Option", "Meaning"), rows)


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
        return " ".join([_type_name(get_args(annotation)[0]), *bounds])
    if "dict" in text:
        return "mapping"
    if "tuple" in text:
        return "list"
    return {"bool": "true or false", "int": "integer", "float": "number"}.get(
        getattr(annotation, "__name__", ""), "text"
    )


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return str(value)


# -- Signals ---------------------------------------------------------------------------------------------


_KINDS: Final = {Role.SERVER: "SERVER spans", Role.CLIENT: "CLIENT spans"}


def exchange_attributes(signals: ExchangeSignals, exchange: Exchange) -> dict[str, object]:
    """The attributes of one exchange."""
    return {each.key: reported(each) for each in signals.attributes([exchange], ["/"])}


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
            server=UNKNOWN_ENDPOINT,
            client=UNKNOWN_ENDPOINT,
        )
        always = {role: exchange_attributes(signals, replace(bare, role=role)) for role in _KINDS}
        sometimes: dict[str, object] = {}
        for exchange in exchanges_reported(rich):
            sometimes |= exchange_attributes(signals, exchange)
        for key, value in sometimes.items():
            rare = "generations" if "gen_ai." in key else "when known"
            on = [kind for role, kind in _KINDS.items() if key in always[role]]
            present = "always" if len(on) == len(_KINDS) else on[0] if on else rare
            rows.append(attribute_row(key, _value_type(value), present))
    rows.append(attribute_row(names.DROPPED, "int", "when any"))
    return table(ATTRIBUTE_HEADER, rows)


def _value_type(value: object) -> str:
    kinds = {bool: "boolean", int: "int", float: "double", str: "string", tuple: "string[]"}
    return kinds[type(value)]


def engine_attributes() -> str:
    """Attributes of steps, and of requests by the steps that served them."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for place, found in step_attributes().items():
        for key, value in found.items():
            rows.setdefault(key, []).append((place, _value_type(value)))
    return table(
        ("Attribute", "Type", "Description", "Example", "On"),
        [
            attribute_row(key, places[0][1], ", ".join(place for place, _ in places))
            for key, places in rows.items()
        ],
    )


def events() -> str:
    """The events of batch commands, and what each is."""
    return table(("Event", "It says"), [(code(name), says) for name, says in sdk_events.EVENTS.items()])


def event_attributes() -> str:
    """The attributes of those events and of the commands' metrics."""
    return table(
        ("Attribute", "Meaning"), [(code(name), says) for name, says in sdk_events.ATTRIBUTES.items()]
    )


def command_metrics() -> str:
    """The metrics of batch commands."""
    rows = [(code(name), *about) for name, about in sdk_events.METRICS.items()]
    return table(("Metric", "Kind", "Unit", "Description"), rows)


def own_metrics() -> str:
    """What the agent reports of itself, by the names that OTLP and Prometheus have for it."""
    rows = []
    own = [each for each in metric_tables() if each.scope == names.SELF_SCOPE]
    for metric, keys in (item for each in own for item in each.metrics.items()):
        there = metric_name(metric.name, metric.unit, metric.instrument)
        rows.append((code(metric.name), code(there), metric.description, ", ".join(map(code, keys)) or "–"))
    return table(("Metric", "In /metrics", "Meaning", "Attributes"), rows)


def reloaded() -> str:
    """The settings that SIGHUP changes."""
    return ", ".join(code(field) for field in config.Config.__struct_fields__ if field in LIVE) + ".\n"


def alerts() -> str:
    """The alerts of ``deploy/prometheus``."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    rows = [
        (
            code(rule["alert"]),
            rule["labels"]["severity"],
            *map(rule["annotations"].get, ("summary", "runbook")),
        )
        for rule in rules
    ]
    return table(("Alert", "Severity", "What it says", "What to do"), rows)


# -- Losses ----------------------------------------------------------------------------------------------


def export_losses() -> str:
    """What an exporter can lose."""
    return table(("Reason", "Meaning"), [(code(name), text) for name, text in export_reasons().items()])


# -- Regions ---------------------------------------------------------------------------------------------


def cuda_calls() -> str:
    """Each function of the CUDA API that has a probe."""
    return table(("Function", "Library", "Kind", "Fields read", "Probed at"), calls())


def metrics_of(each: MetricTable) -> str:
    """The metrics of one page."""
    rows = (metric_row(metric, keys, "")[:5] for metric, keys in each.metrics.items())
    return table(("Metric", "Instrument", "Unit", "Description", "Attributes"), rows)


def page(each: Page) -> str:
    """The attributes of one page."""
    rows = []
    for key, cells in each.rows.items():
        words = describe(key)
        rows.append(
            (code(key), *({TEXT: words.text, EXAMPLE: words.example}.get(cell, cell) for cell in cells))
        )
    return table(each.header, rows)


def other_table(each: Table) -> str:
    """A table that is a family's own."""
    return table(each.header, each.rows())


def family_regions() -> dict[str, Callable[[], str]]:
    """What the families have of their own in the manual, by region."""
    found: dict[str, Callable[[], str]] = {}
    for _, each in description_tables.described():
        found |= {of.page: partial(metrics_of, of) for of in each.metrics if of.page}
        found |= {name: partial(page, of) for name, of in each.pages.items()}
        found |= {name: partial(other_table, of) for name, of in each.tables.items()}
    return found


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


def destinations() -> str:
    """How exporters are written behind ``--export``, and what that does."""
    rows = [(code(form), says) for kind in exporters.kinds().values() for form, says in kind.forms.items()]
    return table(("`--export`", "Result"), rows)


def profile_formats() -> str:
    """What the name of a file of profiles asks for."""
    return table(("Name ends in", "It is"), [(code(suffix), says) for suffix, says in FORMATS.items()])


def table_columns(name: str) -> str:
    """The columns of a table of collected operations."""
    rows = [
        (code(each.name), code(each.type), each.unit or "–", _or_required(each.default), each.text)
        for each in (tables.TABLES | tables.OF_HOSTS)[name]
    ]
    return table(("Column", "Type", "Unit", "Where a file lacks it", "What it says"), rows)


def derived_columns(name: str) -> str:
    """The columns of a table that no file has."""
    rows = [(code(each.name), code(each.type), each.unit or "–", each.text) for each in tables.DERIVED[name]]
    return table(("Column", "Type", "Unit", "What it says"), rows)


def _or_required(default: str | None) -> str:
    return "required" if default is None else code(default)


def operation_kinds() -> str:
    """The values of ``ops.kind``."""
    rows = [
        (code(kind), "yes" if kind in tables.OWN_KINDS else "no", text) for kind, text in tables.KINDS.items()
    ]
    return table(("`kind`", "The rank's own", "What the time is of"), rows)


def rejections() -> str:
    """Why rows and files are left out."""
    return table(("Reason", "One count is"), [(code(name), text) for name, text in reasons.MEANINGS.items()])


REGIONS: Final[Mapping[str, Callable[[], str]]] = {
    "settings": settings,
    "destinations": destinations,
    "profile formats": profile_formats,
    "mcp tools": assistant_tools,
    "privileges": privileges,
    "request attributes": request_attributes,
    "operation attributes": common_attributes,
    "step attributes": engine_attributes,
    "metrics": common_metrics,
    "own metrics": own_metrics,
    "events": events,
    "event attributes": event_attributes,
    "command metrics": command_metrics,
    "reloaded settings": reloaded,
    "alerts": alerts,
    "chart values": chart_values.values,
    "buckets": common_buckets,
    "losses": common_losses,
    "export losses": export_losses,
    "cuda calls": cuda_calls,
    "operation kinds": operation_kinds,
    "rejections": rejections,
    **{f"table {name}": partial(table_columns, name) for name in tables.TABLES | tables.OF_HOSTS},
    **{f"table {name}": partial(derived_columns, name) for name in tables.DERIVED},
    "diagnosis classes": diagnosis.classes,
    "diagnosis bounds": diagnosis.bounds,
    "known problems": diagnosis.known_problems,
    "memory categories": diagnosis.memory_categories,
    "memory causes": diagnosis.memory_causes,
    "memory bounds": diagnosis.memory_bounds,
    "stall classes": diagnosis.stall_classes,
    "stall causes": diagnosis.stall_causes,
    "stall bounds": diagnosis.stall_bounds,
    "stall gallery": diagnosis.stall_gallery,
    "topology marks": diagnosis.topology_marks,
    "topology paths": diagnosis.topology_paths,
    "utilization classes": diagnosis.utilization_classes,
    "utilization causes": diagnosis.utilization_causes,
    "utilization bounds": diagnosis.utilization_bounds,
    "device peaks": diagnosis.peaks,
    "volume": volume,
    **family_regions(),
    **{f"options {name}": partial(options_of, name) for name in leaves()},
}


def renewed(text: str) -> str:
    """A document with its regions written anew. Raises KeyError for a region that nobody makes."""
    return _REGION.sub(lambda found: f"{found[1]}\n{REGIONS[found[2]]()}\n{found[3]}", text)


def manual() -> dict[Path, str | None]:
    """Each file that is written as it should be; None: there should be none, for nobody makes it."""
    wanted: dict[Path, str | None] = {path: renewed(path.read_text()) for path in sorted(DOCS.rglob("*.md"))}
    wanted |= dict.fromkeys(sorted((*PAGES.glob("*.md"), *MAN.glob("*"), *LOSSES.glob("*.json"))))
    wanted |= {MAN / name: text for name, text in man_pages.pages().items()}
    wanted |= {LOSSES / name: text for name, text in printed().items()}
    wanted |= dict.fromkeys(sorted(DASHBOARDS.glob("*"))) | {
        DASHBOARDS / name: text for name, text in dashboards.files().items()
    }
    wanted[DOCS / "reference" / "stall.schema.json"] = diagnosis.stall_schema()
    return wanted | {PAGES / name: text for name, text in pages().items()}


def main(arguments: Sequence[str]) -> int:
    """Write, or with --check only report; 1 when something was stale."""
    stale = 0
    for path, new in manual().items():
        if new == (path.read_text() if path.exists() else None):
            continue
        stale += 1
        print(f"  {'STALE' if '--check' in arguments else 'WROTE':8} {path.relative_to(ROOT)}")
        if "--check" not in arguments:
            write(path, new)
    return 1 if stale and "--check" in arguments else 0


def write(path: Path, text: str | None) -> None:
    """Or delete."""
    if text is None:
        path.unlink()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
