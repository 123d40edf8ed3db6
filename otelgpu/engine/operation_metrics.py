"""Operations → metrics, by the table of their family: in parts of one process, family, kind and outcome. Pure.

In: operations of one family, in any order. Out: the same rows, copied once, part after part, and in the order of
arrival within each; measurements of :class:`Metrics`, a column at a time. Rules of what is counted name a kind and
whether the call failed, so each rule reads whole parts instead of searching all rows. Which rules a kind of call has,
and the numbers of the functions that a rule names, are found once.

Example: 8,192 rows of one process make some seven parts: one for each kind, and one for the launches that
failed. Invariant: every row is in exactly one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.engine import names
from otelgpu.engine.contract import OperationDecoder
from otelgpu.engine.metric import Instrument
from otelgpu.engine.metrics import Metrics, distribution
from otelgpu.engine.operation_signals import OperationMetric, OperationSignals
from otelgpu.engine.top_kernels import OTHER, TopKernels
from otelgpu.model.codes import Codes, distinct, mix, order_of, values_of
from otelgpu.model.distributions import Distribution
from otelgpu.model.operations import Measure, OperationKind, Operations, api_and_status, concatenate, results
from otelgpu.model.resource import Resource
from otelgpu.spanwriter.library import library
from otelgpu.spanwriter.measuring import RowMeasure, RowMeter

_KINDS: Final = max(OperationKind) + 1

WORTH_MEASURING: Final = 2048
"""Rows of a part that are measured at once; smaller ones wait for more, for a measurement has fixed costs."""


class Part(Struct, frozen=True):
    """Rows that are alike in what they are. ``failed``: their result is known, and an error."""

    tgid: int
    family: int
    kind: OperationKind
    failed: bool
    rows: Operations


def parts_of(rows: Operations, family: int) -> tuple[Operations, list[Part], Codes]:
    """The rows in a new array; its parts, which are views of it, by process, kind and outcome; its order."""
    kinds = rows["kind"].astype(np.intp)
    failed = (rows["status"] != 0) & (rows["returned"] == 1)
    tgids, processes = distinct(np.ascontiguousarray(rows["tgid"]))
    codes, size = mix([(processes, len(tgids)), (kinds, _KINDS), (failed, 2)], len(rows))
    order = order_of(codes, size)
    ordered = rows.take(order)
    ordered["family"] = family
    counts = np.bincount(codes, minlength=size)
    found, begin = [], 0
    for code in np.flatnonzero(counts).tolist():
        end = begin + int(counts[code])
        part = ordered[begin:end]
        kind = OperationKind(int(part["kind"][0]))
        found.append(Part(int(part["tgid"][0]), family, kind, bool(code % 2), part))
        begin = end
    return ordered, found, order


class SmallParts:
    """Parts too small to be worth measuring, until there is more of them or somebody wants to know."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int, OperationKind, bool], list[Part]] = {}

    def pass_on(self, parts: Iterable[Part]) -> list[Part]:
        """Those that are large enough; the others wait."""
        large = []
        for part in parts:
            if len(part.rows) >= WORTH_MEASURING:
                large.append(part)
            else:
                key = (part.tgid, part.family, part.kind, part.failed)
                self._waiting.setdefault(key, []).append(part)
        return large

    def release(self) -> list[Part]:
        """All that wait, those that are alike together."""
        found = [
            parts[0]
            if len(parts) == 1
            else replace(parts[0], rows=concatenate([part.rows for part in parts]))
            for parts in self._waiting.values()
        ]
        self._waiting.clear()
        return found


class _Rule(Struct, frozen=True):
    spec: OperationMetric
    apis: npt.NDArray[np.bool_] | None  # by number of a function, the last for all beyond; None: for all

    def of(self, rows: Operations) -> Operations:
        """Those that it is for."""
        if self.apis is None:
            return rows
        return rows.compress(self.apis[np.minimum(rows["api"], len(self.apis) - 1)])


class _Rules:
    """Those of a kind of call: what is made of whole rows at once, and the others."""

    def __init__(self) -> None:
        self.others: list[_Rule] = []
        self.measured: list[OperationMetric] = []

    def add(self, rule: _Rule) -> None:
        """One more."""
        if _is_measured(rule.spec):
            self.measured.append(rule.spec)
        else:
            self.others.append(rule)

    @cached_property
    def meter(self) -> RowMeter:
        """Takes what is measured."""
        return RowMeter(
            [RowMeasure(measure_of(each), each.metric.buckets, each.returned) for each in self.measured]
        )

    def distributions(self, rows: Operations) -> list[Distribution | None]:
        """What there is of each of ``measured``."""
        if library() is not None:
            return self.meter.measure(rows)
        return [_distribution(each, rows) for each in self.measured]


def _is_measured(spec: OperationMetric) -> bool:
    """Whether a rule's histogram is of declared measures, and of one series."""
    plain = not spec.apis and spec.attribute is None and not spec.failed and not spec.by_kernel
    return plain and spec.metric.instrument is Instrument.HISTOGRAM and isinstance(spec.value, Measure)


def measure_of(spec: OperationMetric) -> Measure:
    """What a histogram of declared measures is fed with."""
    assert isinstance(spec.value, Measure)
    return spec.value


def _distribution(spec: OperationMetric, rows: Operations) -> Distribution | None:
    """The same without the library, and what it is compared with."""
    if spec.returned and not (rows["returned"] == 1).all():
        rows = rows.compress(rows["returned"] == 1)
    if not len(rows):
        return None
    measure = measure_of(spec)
    return distribution(measure(rows), spec.metric.buckets, measure.total(rows))


class OperationMeter:
    """Feeds every metric that the families define. ``resource_of`` answers a tgid.

    With ``kernels``, launches are reported by the names that it has.
    """

    def __init__(
        self,
        metrics: Metrics,
        families: Sequence[tuple[OperationDecoder, OperationSignals]],
        resource_of: Callable[[int], Resource],
        kernels: TopKernels | None = None,
    ) -> None:
        self._metrics = metrics
        self._families = families
        self._resource_of = resource_of
        self._kernels = kernels
        self._rules: dict[tuple[int, OperationKind, bool], _Rules] = {}
        for family, (decoder, signals) in enumerate(families):
            for spec in signals.metrics:
                rule = _Rule(spec, _named(spec, decoder) if spec.apis else None)
                for kind in spec.kinds:
                    self._rules.setdefault((family, kind, spec.failed), _Rules()).add(rule)

    def measure(self, parts: Iterable[Part]) -> None:
        """Feed all that the rules say of these operations."""
        for part in parts:
            owner = self._resource_of(part.tgid)
            rules = self._rules.get((part.family, part.kind, part.failed))
            if rules is None:
                continue
            for rule in rules.others:
                self._feed(rule, part, owner)
            if rules.measured:
                scope = self._families[part.family][1].scope
                for spec, found in zip(rules.measured, rules.distributions(part.rows), strict=True):
                    if found is not None:
                        self._metrics.add_distribution(spec.metric, scope, owner, {}, found)

    def count(self, family: int, kind: OperationKind, api: str, owner: Resource, count: int) -> None:
        """Feed the counters of calls with some of which nothing but their number is known."""
        decoder, signals = self._families[family]
        number = next((code for code, name in decoder.apis.items() if name == api), None)
        rules = self._rules.get((family, kind, False))
        for rule in rules.others if rules is not None else ():
            spec = rule.spec
            of_calls = spec.metric.instrument is Instrument.COUNTER and spec.value is None
            if of_calls and (rule.apis is None or (number is not None and rule.apis[number])):
                labels = {signals.kernel_name: OTHER} if spec.by_kernel and self._kernels is not None else {}
                self._metrics.add(spec.metric, signals.scope, owner, labels, count)

    def _feed(self, rule: _Rule, part: Part, owner: Resource) -> None:
        spec, rows = rule.spec, rule.of(part.rows)
        if spec.returned and not (rows["returned"] == 1).all():
            rows = rows.compress(rows["returned"] == 1)
        if not len(rows):
            return
        scope = self._families[part.family][1].scope
        split = self._split(spec, rows, part.family)
        if split is None:
            values = spec.value(rows) if spec.value is not None else len(rows)
            self._metrics.add(spec.metric, scope, owner, {}, values)
            return
        values = spec.value(rows) if spec.value is not None else np.ones(len(rows), dtype=np.int64)
        key, label, by_row = split
        for code in values_of(by_row):
            self._metrics.add(spec.metric, scope, owner, {key: label(code)}, values[by_row == code])

    def _split(
        self, spec: OperationMetric, rows: Operations, family: int
    ) -> tuple[str, Callable[[int], str], npt.NDArray[Any]] | None:
        """The key that distinguishes the series of a metric, the label of a code, and each row's code."""
        decoder, signals = self._families[family]
        if spec.failed:

            def result(code: int) -> str:
                api, status = api_and_status(code)
                return signals.result_name(decoder.apis.get(api, ""), status)

            return names.ERROR_TYPE, result, results(rows)
        if spec.by_kernel and self._kernels is not None:
            return signals.kernel_name, self._kernels.label, self._kernels.codes(rows["name"])
        if spec.attribute is None:
            return None
        key, label, column = spec.attribute
        return key, label, column(rows)


def _named(spec: OperationMetric, decoder: OperationDecoder) -> npt.NDArray[np.bool_]:
    """Whether each function is one of those that the rule names."""
    named = np.zeros(max(decoder.apis, default=0) + 2, dtype=np.bool_)
    named[[code for code, name in decoder.apis.items() if name in spec.apis]] = True
    return named
