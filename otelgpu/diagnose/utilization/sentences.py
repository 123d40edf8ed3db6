"""A verdict on utilisation in one sentence, for who reads no JSON. Pure."""

from __future__ import annotations

from otelgpu.diagnose.stall.sentences import shown_line
from otelgpu.diagnose.utilization.causes import CAUSES
from otelgpu.diagnose.utilization.verdicts import INCONCLUSIVE, Figure, UtilizationVerdict
from otelgpu.model.quantities import duration


def sentence(verdict: UtilizationVerdict) -> str:
    """Who does what, where, what it costs and what to do."""
    if verdict.klass == INCONCLUSIVE or verdict.process is None:
        return f"Inconclusive: {verdict.evidence[0].text}"
    cause, place = CAUSES[verdict.cause], verdict.process
    parts = [
        f"Low utilisation ({verdict.cause}): {place.program} (PID {place.pid}) {cause.says}",
        f" at {shown_line(verdict.line)}" if verdict.line is not None else "",
        f" ({verdict.file})" if verdict.file else "",
        f"; it costs {duration(verdict.cost.seconds * 1e9)} of GPU time at most, {verdict.cost.share:.0%}"
        if verdict.cost is not None
        else "",
        f": {cause.next}.",
    ]
    return "".join(parts)


def shown_figure(figure: Figure) -> str:
    """``mfu 41.2% (…)``."""
    if figure.value is None:
        return f"{figure.name}: not known: {figure.text}"
    if figure.unit == "s":
        value = duration(figure.value * 1e9)
    elif figure.unit == "1" and figure.name != "blocks_per_sm":
        value = f"{figure.value:.1%}"
    else:
        value = f"{figure.value:,.3g}"
    return f"{figure.name} {value} ({figure.text})"
