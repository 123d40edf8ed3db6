"""One name, one meaning: every table of every family, and of the engine, side by side.

A metric has one definition and one scope, an attribute one description, and each has one owner: a second family that
wants a name takes it from the engine, where both can have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from otelgpu.engine import names, registry
from otelgpu.engine.description_tables import Described, Descriptions, MetricTable, Owned, described
from otelgpu.engine.exchange_signals import ExchangeSignals, exchange_signals
from otelgpu.engine.memory_names import memory_names
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.operation_signals import CallAttribute, OperationMetric, OperationSignals
from otelgpu.families.gpu.cuda.signals import SIGNALS as CUDA
from otelgpu.families.gpu.memory.metrics import SCOPE as MEMORY_SCOPE
from otelgpu.model.operations import OperationKind
from tools.examples import exchanges_reported, full_exchange

ENGINE = "engine"


class Claim(NamedTuple):
    """Somebody says that a metric is his, or that an attribute means something."""

    owner: str
    metric: Metric
    scope: str


class Tables(NamedTuple):
    """What there is: ``signals`` by the folder of their family, as ``descriptions`` are."""

    signals: Mapping[str, OperationSignals | ExchangeSignals]
    descriptions: Iterable[Owned]


def real() -> Tables:
    """Those of the program."""
    signals: dict[str, OperationSignals | ExchangeSignals] = {
        package.removeprefix("otelgpu."): table for package, table in exchange_signals().items()
    }
    for package, family in registry.packages().items():
        if family.operations is not None:
            signals[package.removeprefix("otelgpu.")] = family.operations.signals
    return Tables(signals, described())


def metrics(tables: Tables) -> Iterator[Claim]:
    for owner, signals in tables.signals.items():
        if isinstance(signals, OperationSignals):
            yield from (Claim(owner, spec.metric, signals.scope) for spec in signals.metrics)
            if signals.memory is not None:
                yield from (Claim(owner, metric, MEMORY_SCOPE) for metric in signals.memory.metrics)
        else:
            for exchange in exchanges_reported(full_exchange()):
                for each in signals.metrics([exchange], ["/"]):
                    yield Claim(owner, each.metric, signals.scope)
    for owned in tables.descriptions:
        for table in owned.descriptions.metrics:
            yield from (Claim(owned.owner, metric, table.scope) for metric in table.metrics)


def attributes(signals: OperationSignals) -> set[str]:
    """Keys that a table of operations has."""
    found = {spec.key for table in signals.attributes.values() for spec in table}
    found |= {key for table in signals.labels.values() for key, _, _ in table}
    found |= {key for key, _ in signals.api_labels} | {total.key for total in signals.summaries}
    found |= {spec.attribute[0] for spec in signals.metrics if spec.attribute}
    if signals.memory is not None:
        found |= {key for keys in signals.memory.metrics.values() for key in keys}
    return (found | {signals.kernel_name}) - {""}


def clashes(tables: Tables) -> list[str]:
    """Each name that has two meanings, two owners, or none."""
    found = []
    first: dict[str, Claim] = {}
    for claim in metrics(tables):
        known = first.setdefault(claim.metric.name, claim)
        if known.metric != claim.metric:
            found.append(f"{claim.metric.name}: {known.owner} and {claim.owner} define it differently")
        elif (known.owner, known.scope) != (claim.owner, claim.scope):
            found.append(f"{claim.metric.name}: of {known.owner} and of {claim.owner}")
    meant: dict[str, str] = {}
    for owned in tables.descriptions:
        for key in owned.descriptions.attributes:
            if meant.setdefault(key, owned.owner) != owned.owner:
                found.append(f"{key}: described by {meant[key]} and by {owned.owner}")
    for owner, signals in tables.signals.items():
        for key in sorted(attributes(signals)) if isinstance(signals, OperationSignals) else ():
            if key not in meant:
                found.append(f"{key}: {owner} exports it, and nobody describes it")
            elif meant[key] not in (owner, ENGINE):
                found.append(f"{key}: {owner} exports it, and it is {meant[key]}'s")
    used = (
        (owned.owner, key)
        for owned in tables.descriptions
        for table in owned.descriptions.metrics
        for keys in table.metrics.values()
        for key in keys
    )
    return found + [
        f"{key}: {owner} has it, and nobody describes it" for owner, key in used if key not in meant
    ]


def with_family(signals: OperationSignals, **attributes: str) -> Tables:
    """The program's tables, and those of one more family: its attributes with "__" for "."."""
    tables = real()
    said = {key.replace("__", "."): Described(text) for key, text in attributes.items()}
    own = Owned("families.gpu.imagined", Descriptions(attributes=said))
    return Tables({**tables.signals, own.owner: signals}, [*tables.descriptions, own])


EMPTY = replace(
    CUDA,
    scope="otelgpu.imagined",
    attributes={},
    labels={},
    api_labels=(),
    metrics=(),
    summaries=(),
    kernel_name="",
    memory=None,
)


def counter(name: str, unit: str = "{call}", description: str = "Calls.") -> OperationMetric:
    metric = Metric(name=name, unit=unit, instrument=Instrument.COUNTER, description=description)
    return OperationMetric(metric=metric, kinds=(OperationKind.LAUNCH,))


def test_no_two_tables_mean_different_things_by_one_name() -> None:
    assert clashes(real()) == []


def test_all_tables_are_looked_at() -> None:
    tables = real()
    owners = {owned.owner for owned in tables.descriptions} | tables.signals.keys()
    assert {ENGINE, "families.gpu.cuda", "families.gpu.devices", "families.nccl", "families.rdma"} <= owners
    assert {"families.requests", "families.steps.serving", "families.steps.training"} <= owners
    assert len({claim.metric.name for claim in metrics(tables)}) > 150


def test_a_family_with_its_own_names_does_not_clash() -> None:
    own = replace(
        EMPTY, metrics=(counter("gpu.imagined.kernel.launch.calls"),), memory=memory_names("imagined")
    )
    said = {"imagined__memory__kind": "What was allocated.", "imagined__device__index": "The ordinal."}
    assert clashes(with_family(own, **said)) == []


@pytest.mark.parametrize(
    ("signals", "said", "complaint"),
    [
        (
            replace(EMPTY, metrics=(counter("gpu.cuda.errors", unit="s"),)),
            {},
            "gpu.cuda.errors: families.gpu.cuda and families.gpu.imagined define it differently",
        ),
        (
            replace(
                EMPTY, metrics=tuple(spec for spec in CUDA.metrics if spec.metric.name == "gpu.cuda.errors")
            ),
            {},
            "gpu.cuda.errors: of families.gpu.cuda and of families.gpu.imagined",
        ),
        (
            replace(EMPTY, metrics=(counter("rdma.qp.work_requests"),)),
            {},
            "rdma.qp.work_requests: families.gpu.imagined and families.rdma define it differently",
        ),
        (
            replace(EMPTY, metrics=(counter(names.LOSSES),)),
            {},
            "otelgpu.losses: families.gpu.imagined and engine define it differently",
        ),
        (
            replace(EMPTY, memory=memory_names("cuda")),
            {},
            "gpu.cuda.memory.usage: of families.gpu.cuda and of families.gpu.imagined",
        ),
        (
            EMPTY,
            {"nccl__rank": "Something else."},
            "nccl.rank: described by families.nccl and by families.gpu.imagined",
        ),
        (EMPTY, {"error__type": "Mine."}, "error.type: described by engine and by families.gpu.imagined"),
        (
            replace(
                EMPTY,
                attributes={OperationKind.COPY: (CallAttribute("cuda.stream", lambda rows: rows["stream"]),)},
            ),
            {},
            "cuda.stream: families.gpu.imagined exports it, and it is families.gpu.cuda's",
        ),
        (
            replace(EMPTY, kernel_name="imagined.kernel.name"),
            {},
            "imagined.kernel.name: families.gpu.imagined exports it, and nobody describes it",
        ),
    ],
)
def test_a_clash_is_reported(signals: OperationSignals, said: dict[str, str], complaint: str) -> None:
    assert complaint in clashes(with_family(signals, **said))


def test_a_table_without_spans_clashes_as_well() -> None:
    metric = Metric(name="hw.power", unit="W", instrument=Instrument.GAUGE, description="Mine.")
    own = Owned(
        "families.power", Descriptions(metrics=[MetricTable(scope="mine", metrics={metric: ("power.rail",)})])
    )
    tables = real()
    assert clashes(Tables(tables.signals, [*tables.descriptions, own])) == [
        "hw.power: families.gpu.devices and families.power define it differently",
        "power.rail: families.power has it, and nobody describes it",
    ]


@pytest.mark.parametrize(
    "metric",
    {claim.metric.name: claim.metric for claim in metrics(real())}.values(),
    ids=lambda each: each.name,
)
def test_only_histograms_have_bounds_and_they_ascend(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.instrument is Instrument.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
