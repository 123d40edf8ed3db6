"""Operations → metrics, by the table of their family."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from otelgpu.families.base import OperationDecoder, OperationMetric, OperationSignals
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.resource import Resource
from otelgpu.signals.metrics import Metrics


def measure_operations(
    metrics: Metrics,
    rows: Operations,
    families: Sequence[tuple[OperationDecoder, OperationSignals]],
    resource_of: Callable[[int], Resource],
) -> None:
    """Feed every metric that the families of ``rows`` define. ``resource_of`` answers a tgid."""
    failed = (rows["status"] != 0) & (rows["returned"] == 1)
    for tgid in np.unique(rows["tgid"]):
        of_process = rows["tgid"] == tgid
        for index, (decoder, signals) in enumerate(families):
            mine = of_process & (rows["family"] == index)
            chosen: dict[tuple[tuple[OperationKind, ...], bool], Operations] = {}
            for spec in signals.metrics:
                rule = (spec.kinds, spec.failed)
                if rule not in chosen:
                    among = mine & np.isin(rows["kind"], spec.kinds) & (failed == spec.failed)
                    chosen[rule] = rows.compress(among)
                _feed(metrics, spec, chosen[rule], decoder, signals.scope, resource_of(int(tgid)))


def _feed(
    metrics: Metrics,
    spec: OperationMetric,
    rows: Operations,
    decoder: OperationDecoder,
    scope: str,
    owner: Resource,
) -> None:
    if spec.apis:
        codes = [code for code, name in decoder.apis.items() if name in spec.apis]
        rows = rows.compress(np.isin(rows["api"], codes))
    if not len(rows):
        return
    values = spec.value(rows) if spec.value is not None else np.ones(len(rows), dtype=np.int64)
    if spec.attribute is None:
        metrics.add(spec.metric, scope, owner, {}, values)
        return
    key, label, column = spec.attribute
    by_row = column(rows)
    for code in np.unique(by_row):
        metrics.add(spec.metric, scope, owner, {key: label(int(code))}, values[by_row == code])
