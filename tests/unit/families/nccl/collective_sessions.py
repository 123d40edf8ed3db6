"""An agent's collectives, in a few lines: a session with two families, and its spans read out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from otelgpu.engine.call_roles import StepCalls
from otelgpu.engine.contract import ContextStep
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.operation_signals import OperationSignals
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.families.nccl.collectives import CollectiveSession
from otelgpu.model.operations import OperationKind, Operations, concatenate
from otelgpu.model.resource import resource
from otelgpu.model.settings import SignalSettings
from otelgpu.model.spans import SpanColumns, Text
from tests.unit.families.nccl.collectives_simulated import CUDA_APIS, NCCL_APIS, Rank

SECOND = 1_000_000_000


@dataclass
class _Decoder:
    apis: Mapping[int, str]
    context_steps: Mapping[int, ContextStep] = field(default_factory=dict)

    def decode(self, batch: Any) -> Operations:
        raise NotImplementedError


def _signals(scope: str) -> OperationSignals:
    return OperationSignals(
        scope=scope,
        result_name=lambda call, status: f"{call} result {status}",
        attributes=dict.fromkeys(OperationKind, ()),
        labels=dict.fromkeys(OperationKind, ()),
        api_labels=(),
        kernel_name="kernel",
        metrics=(),
        summaries=(),
    )


VOCABULARY = Vocabulary(
    families=((_Decoder(NCCL_APIS), _signals("otelgpu.nccl")), (_Decoder(CUDA_APIS), _signals("cuda"))),
    kernels=("unknown",),
    short_kernels=("unknown",),
)


class Agent:
    """One agent's session, that sees some ranks."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        self.metrics = Metrics(0)
        reporting = SignalSettings(**{key: settings.pop(key) for key in list(settings) if key in _REPORTING})
        self.session = CollectiveSession(
            self.metrics,
            VOCABULARY,
            StepCalls([NCCL_APIS, CUDA_APIS]),
            lambda tgid: resource({"process.pid": tgid}),
            seed=seed,
            settings=reporting,
            **settings,
        )
        self.now_ns = 0

    def feed(self, ranks: Iterable[Rank], *, order: Any = None) -> None:
        """What the ranks did since the last time. ``order``: shuffles rows."""
        for rank in ranks:
            rows, _ = rank.take()
            if order is not None:
                rows = rows[order.permutation(len(rows))]
            if len(rows):
                self.session.take(rows, np.zeros(len(rows), dtype=np.int64))
            self.session.see_waits(rank.take_device_calls())

    def report(self, now_ns: int = 0, *, final: bool = False) -> list[dict[str, Any]]:
        self.now_ns = max(self.now_ns, now_ns)
        return [span for batch in self.session.report(self.now_ns, 0, final) for span in read(batch)]


_REPORTING = ("collective_sample_ratio", "detail")


def read(batch: SpanColumns) -> list[dict[str, Any]]:
    """Spans as mappings; attributes that are absent are left out."""
    found = []
    for row in range(len(batch)):
        attributes: dict[str, Any] = {}
        for attribute in batch.attributes:
            if attribute.present is None or attribute.present[row]:
                assert attribute.key not in attributes
                attributes[attribute.key] = _value(attribute.values, row)
        links, dropped = [], 0
        if batch.links is not None:
            dropped = int(batch.links.dropped[row]) if batch.links.dropped is not None else 0
            links = [
                batch.links.span_id[at].tobytes().hex() for at in np.flatnonzero(batch.links.span == row)
            ]
        found.append(
            {
                "trace": batch.trace_id[row].tobytes().hex(),
                "span": batch.span_id[row].tobytes().hex(),
                "parent": batch.parent_span_id[row].tobytes().hex(),
                "name": _value(batch.name, row),
                "start": int(batch.start_unix_ns[row]),
                "end": int(batch.end_unix_ns[row]),
                "status": int(batch.status[row]),
                "state": _value(batch.trace_state, row) if batch.trace_state else "",
                "pid": batch.resource.get("process.pid"),
                "links": links,
                "dropped": dropped,
                **attributes,
            }
        )
    return found


def _value(values: Any, row: int) -> Any:
    return values.table[values.codes[row]] if isinstance(values, Text) else values[row].item()


def joined(parts: list[Operations]) -> Operations:
    return concatenate(parts)
