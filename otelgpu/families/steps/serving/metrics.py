"""Steps → metrics, and the memory bandwidth that decoding used. Pure.

In: steps of one process. Out: measurements. The names of these metrics are written here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from otelgpu.engine import names
from otelgpu.engine.metric import Instrument, Measured, Metric
from otelgpu.families.steps.step import Membership, ServedStep, StepPhase

DURATION: Final = Metric(
    name="otelgpu.step.duration",
    unit="s",
    instrument=Instrument.HISTOGRAM,
    description="From an engine step's first call to the return of the wait for its results.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)
BATCH_SIZE: Final = Metric(
    name="otelgpu.step.batch_size",
    unit="{request}",
    instrument=Instrument.HISTOGRAM,
    description="Requests that a step gave tokens to, of the steps of which all are known.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
)
TOKENS: Final = Metric(
    name="otelgpu.step.tokens",
    unit="{token}",
    instrument=Instrument.COUNTER,
    description="Tokens that steps gave, by what they did for the request: `prefill` gives its first.",
)
MBU: Final = Metric(
    name="otelgpu.step.mbu",
    unit="1",
    instrument=Instrument.HISTOGRAM,
    description="Model bandwidth utilisation of steps that only decode: a lower bound, without the KV cache.",
    buckets=(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)

METRICS: Final = (DURATION, BATCH_SIZE, TOKENS, MBU)


def utilisation(step: ServedStep, model_bytes: int, bandwidth: float) -> float | None:
    """Share of the peak bandwidth that reading the weights once took; None of a step that did not only decode.

    ``model_bytes`` are read once per decoding step whatever its batch. What is read of the KV cache is not known and
    not in it; and the duration is the host's: the true figure is not lower.
    """
    decodes = step.membership is Membership.KNOWN and step.count(StepPhase.DECODE) == len(step.members)
    if not decodes or model_bytes <= 0 or bandwidth <= 0 or step.step.duration_ns <= 0:
        return None
    return model_bytes / (step.step.duration_ns * 1e-9) / bandwidth


def step_metrics(steps: Sequence[ServedStep], mbu: Sequence[float | None] | None = None) -> list[Measured]:
    """What the steps of one process add; ``mbu``: of each, where it is known. ``Measured.rows`` index ``steps``."""
    found = [_measured(DURATION, [(row, step.step.duration_ns * 1e-9) for row, step in enumerate(steps)])]
    known = [
        (row, len(step.members)) for row, step in enumerate(steps) if step.membership is Membership.KNOWN
    ]
    found.append(_measured(BATCH_SIZE, known))
    for phase in StepPhase:
        given = [
            (row, sum(member.new_tokens for member in step.members if member.phase is phase))
            for row, step in enumerate(steps)
        ]
        found.append(_measured(TOKENS, [each for each in given if each[1]], {names.PHASE: str(phase)}))
    if mbu is not None:
        found.append(_measured(MBU, [(row, value) for row, value in enumerate(mbu) if value is not None]))
    return [each for each in found if each.values]


def _measured(
    metric: Metric, values: Sequence[tuple[int, float]], labels: Mapping[str, str | int] | None = None
) -> Measured:
    return Measured(
        metric=metric,
        labels=labels or {},
        values=[value for _, value in values],
        rows=[row for row, _ in values],
    )
