"""What families export, as tables of the manual: what all have in common in signals.md, the rest on a page for each.

In: the families' tables of names and descriptions. Out: Markdown. The pages are whole files,
``docs/reference/signals/``: so a family that is added adds one, and changes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otelgpu.engine import description_tables, names, registry
from otelgpu.engine.description_tables import Described, MetricTable
from otelgpu.engine.exchange_signals import ExchangeSignals
from otelgpu.engine.exchange_signals import exchange_signals as signals_by_package
from otelgpu.engine.metric import Metric
from otelgpu.engine.operation_signals import OperationMetric, OperationSignals
from otelgpu.families.gpu.memory import metrics as memory
from tools.examples import exchanges_reported, full_exchange
from tools.loss_reasons import loss_reasons
from tools.markdown import Rows, code, table

ATTRIBUTE_HEADER: Final = ("Attribute", "Type", "Description", "Example", "Present")
_METRIC_HEADER: Final = ("Metric", "Instrument", "Unit", "Description", "Attributes", "Scope")
_BUCKET_HEADER: Final = ("Histogram", "Unit", "Bounds")
_LOSS_HEADER: Final = ("`otelgpu.family`", "`otelgpu.reason`", "One count means")
_FAMILIES: Final = "families."
_ENGINE: Final = "engine"

Measure = tuple[Metric, Sequence[str], str]
"""A metric, the keys of its attributes, its scope."""


def operation_signals() -> dict[str, OperationSignals]:
    """The folders of the families that yield operations."""
    return {
        _folder(package): family.operations.signals
        for package, family in registry.packages().items()
        if family.operations is not None
    }


def exchange_signals() -> dict[str, ExchangeSignals]:
    """The folders of the families that yield exchanges."""
    return {_folder(package): signals for package, signals in signals_by_package().items()}


def _folder(package: str) -> str:
    return package.removeprefix("otelgpu.")


class Undescribed(LookupError):
    """An attribute that no family's ``descriptions.py`` has words for."""


def describe(key: str) -> Described:
    """What an attribute means. Raises :class:`Undescribed`."""
    for owned in description_tables.described():
        if key in owned.descriptions.attributes:
            return owned.descriptions.attributes[key]
    raise Undescribed(f"say in its family's descriptions.py what {key!r} means")


def attribute_row(key: str, kind: str, requirement: str) -> tuple[str, ...]:
    """Of a table with :data:`ATTRIBUTE_HEADER`."""
    meaning, example = describe(key)
    return code(key), kind, meaning, code(example), requirement


# -- Attributes ------------------------------------------------------------------------------------------


def common_attributes() -> str:
    """Attributes of the spans of all calls."""
    rows = (
        attribute_row(names.THREAD_ID, "int", "always"),
        attribute_row(names.CONTEXT_SOURCE, "string", "always"),
        attribute_row(names.COUNT, "int", "folded runs"),
        attribute_row(names.HOST_TIME, "double", "folded runs"),
        attribute_row(names.HOST_LEAST, "double", "folded runs"),
        attribute_row(names.HOST_MOST, "double", "folded runs"),
        attribute_row(names.MERGED, "boolean", "beyond the bound"),
        attribute_row(names.ERROR_TYPE, "string", "failed calls"),
    )
    return table(ATTRIBUTE_HEADER, rows)


def _call_attributes(signals: OperationSignals) -> Rows:
    """What a family's calls have besides."""
    rows: dict[str, tuple[str, ...]] = {}
    if signals.kernel_name:
        module, build_id, offset = signals.kernel_place
        rows[signals.kernel_name] = attribute_row(signals.kernel_name, "string", "launch")
        rows[module] = attribute_row(module, "string", "launch without a name")
        rows[build_id] = attribute_row(build_id, "string", "launch without a name")
        rows[offset] = attribute_row(offset, "int", "launch without a name")
    rows |= {key: attribute_row(key, "string", "always") for key, _ in signals.api_labels}
    integers = [(kind, spec.key, "int") for kind, specs in signals.attributes.items() for spec in specs]
    labels = [(kind, key, "string") for kind, specs in signals.labels.items() for key, *_ in specs]
    for kind, key, kind_name in integers + labels:
        word = kind.name.lower().replace("_", " ")
        known = rows.get(key)
        rows[key] = attribute_row(key, kind_name, f"{known[-1]}, {word}" if known else word)
    return rows.values()


def _totals(signals: OperationSignals) -> Rows:
    return [
        attribute_row(total.key, "int" if total.per_unit == 1 else "double", "when not 0")
        for total in signals.summaries
    ]


# -- Metrics ---------------------------------------------------------------------------------------------


def operation_metrics() -> list[OperationMetric]:
    """Every metric of operations."""
    return [spec for signals in operation_signals().values() for spec in signals.metrics]


def metric_tables(folder: str = "") -> list[MetricTable]:
    """The tables of a folder; of none, all."""
    return [
        each
        for owned in description_tables.described()
        if folder in ("", owned.owner)
        for each in owned.descriptions.metrics
    ]


def _measures(folder: str) -> list[Measure]:
    """Every metric of a folder."""
    found: list[Measure] = []
    if of_exchanges := exchange_signals().get(folder):
        found += _exchange_measures(of_exchanges)
    if of_calls := operation_signals().get(folder):
        for spec in of_calls.metrics:
            keys = [names.ERROR_TYPE] if spec.failed else [spec.attribute[0]] if spec.attribute else []
            measure = (spec.metric, keys, of_calls.scope)
            found += [measure] if measure not in found else []  # one may be fed from several kinds of calls
        if of_calls.memory is not None:
            found += [(metric, keys, memory.SCOPE) for metric, keys in of_calls.memory.metrics.items()]
    for each in metric_tables(folder):
        found += [(metric, keys, each.scope) for metric, keys in each.metrics.items()]
    return found


def all_measures() -> list[Measure]:
    """Every metric that is declared, of all folders."""
    described = {owned.owner for owned in description_tables.described()}
    return [each for folder in sorted(described | set(_rooms())) for each in _measures(folder)]


def _exchange_measures(signals: ExchangeSignals) -> list[Measure]:
    found: dict[str, tuple[Metric, dict[str, None]]] = {}
    for exchange in exchanges_reported(full_exchange()):
        for measured in signals.metrics([exchange], ["/"]):
            _, keys = found.setdefault(measured.metric.name, (measured.metric, {}))
            keys.update(dict.fromkeys(measured.labels))
    return [(metric, list(keys), signals.scope) for metric, keys in found.values()]


def metric_row(metric: Metric, keys: Sequence[str], scope: str) -> tuple[str, ...]:
    """Name, instrument, unit, description, attributes, scope."""
    return (
        code(metric.name),
        metric.instrument.value,
        code(metric.unit) or "–",
        metric.description,
        ", ".join(map(code, keys)) or "–",
        code(scope),
    )


def common_metrics() -> str:
    """The engine's own."""
    return table(_METRIC_HEADER, (metric_row(*each) for each in _measures(_ENGINE)))


def common_buckets() -> str:
    """Of the engine's own."""
    return table(_BUCKET_HEADER, _buckets(_measures(_ENGINE)))


def _buckets(measures: Iterable[Measure]) -> Rows:
    """The explicit bounds of histograms."""
    rows = (
        (code(metric.name), code(metric.unit), ", ".join(f"{bound:.10g}" for bound in metric.buckets))
        for metric, _, _ in measures
        if metric.buckets
    )
    return sorted(set(rows))


# -- Losses ----------------------------------------------------------------------------------------------


def common_losses() -> str:
    """Reasons that each family with probes has, and those of rooms that are no families."""
    own = registry.families().keys()
    return table(_LOSS_HEADER, (row for room, row in _losses() if room not in own))


def _losses() -> list[tuple[str, tuple[str, ...]]]:
    """Each reason's room, and its row."""
    return [
        (room, (code(room) if room != "*" else "each with probes; `process`", code(reason), text))
        for (room, reason), text in loss_reasons().items()
    ]


# -- Pages -----------------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """File name → the page of one folder of ``otelgpu/families``; those that export nothing have none."""
    folders = {owned.owner for owned in description_tables.described()} | set(_rooms())
    found = {folder: _page(folder) for folder in sorted(folders) if folder.startswith(_FAMILIES)}
    return {f"{_title(folder).replace('/', '-')}.md": text for folder, text in found.items() if text}


def _rooms() -> dict[str, str]:
    """Folder → the family that is there, under whose name its losses are counted."""
    return {_folder(package): family.name for package, family in registry.packages().items()}


def _title(folder: str) -> str:
    return folder.removeprefix(_FAMILIES).replace(".", "/")


def _page(folder: str) -> str:
    sections = {name: text for name, text in _sections(folder).items() if text}
    if not sections:
        return ""
    head = (
        f"# Signals of families/{_title(folder)}\n\nWritten from the code by `python -m tools.document`. What all "
        "families have in common: [signals](../signals.md).\n"
    )
    return "\n".join((head, *(f"## {name}\n\n{text}" for name, text in sections.items())))


def _sections(folder: str) -> dict[str, str]:
    calls, measures = operation_signals().get(folder), _measures(folder)
    room = _rooms().get(folder)
    return {
        "Attributes of its calls": _filled(ATTRIBUTE_HEADER, _call_attributes(calls) if calls else ()),
        "Totals on requests, phases and windows": _filled(ATTRIBUTE_HEADER, _totals(calls) if calls else ()),
        "Metrics": _filled(_METRIC_HEADER, (metric_row(*each) for each in measures)),
        "Buckets": _filled(_BUCKET_HEADER, _buckets(measures)),
        "Losses": _filled(_LOSS_HEADER, (row for of, row in _losses() if of == room)),
    }


def _filled(header: Sequence[str], rows: Rows) -> str:
    """A table; nothing where there are no rows."""
    found = list(rows)
    return table(header, found) if found else ""
