"""Whether something grows: samples over time in, a verdict for each quantity out. Pure.

A line is laid through the samples after the warm-up as Theil and Sen do, by the median of all slopes between two
of them, so that a peak or a collection that was late does not tilt it. What it rises from the first to the last
sample is compared with a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from otelgpu.engine.function_names import PLACES
from otelgpu.families.profiles.discover.interpreters import MAX_ENDED
from otelgpu.families.steps.serving.request_index import REMEMBERED
from otelgpu.processes.address_resolver import MAX_FILES

WARM_UP: Final = 0.25
"""The share of the samples that is left out: caches fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a quantity may rise: ``absolute``, or this share of its median if that is more."""

    absolute: float
    share: float

    def of(self, median: float) -> float:
        """In the quantity's unit."""
        return max(self.absolute, self.share * median)


RSS: Final = Bound(absolute=4096, share=0.04)
DESCRIPTORS: Final = Bound(absolute=8, share=0.1)
ENTRIES: Final = Bound(absolute=64, share=0.2)
OBJECTS: Final = Bound(absolute=2000, share=0.04)
DYNAMIC: Final = 40
"""Dynamic entries of a library; the resolver of addresses keeps the files that it read last."""
NAMED: Final = 64
"""Kernels that the churn has names for, and more."""
FRAMES: Final = 8192
"""Functions and lines that the churn, and the kernel under it, are met in: caches of them have room for more, and fill
for an hour."""
BOUNDS: Final = {
    "rss_kib": RSS,
    "anonymous_kib": RSS,
    "fds": DESCRIPTORS,
    "threads": Bound(absolute=4, share=0),
    "children": Bound(absolute=4, share=0),
    "objects": OBJECTS,
}


CAPACITIES: Final = {
    "containers: otelgpu.engine.function_names.FunctionNames": PLACES + NAMED,
    "containers: otelgpu.engine.operation_spans.Vocabulary": PLACES + NAMED,
    "containers: otelgpu.engine.summary.Summary.kernel": PLACES + NAMED,
    "containers: otelgpu.families.steps.serving.request_index": REMEMBERED + ENTRIES.absolute,
    "containers: otelgpu.elf.image.ElfImage": MAX_FILES * DYNAMIC,
    "containers: otelgpu.families.profiles.discover.kernel_functions.KernelFunctions._frames": FRAMES,
    "containers: otelgpu.model.samples.Frame": FRAMES,
    "containers: otelgpu.families.profiles.discover.stacks.StackNamer._interned": FRAMES,
    "containers: otelgpu.families.profiles.stacks.StackTable": FRAMES,
    "containers: otelgpu.families.profiles.discover.python_code._Code": FRAMES,
    "containers: otelgpu.families.profiles.discover.interpreters": MAX_ENDED + ENTRIES.absolute,
}
"""What is remembered for a session or for the last so many, by the beginnings of the names: it may fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One quantity: its median, what the line through it rises from first to last, and what it may."""

    name: str
    median: float
    rise: float
    bound: float
    last: float

    @property
    def grows(self) -> bool:
        """More than it may."""
        room = max((room for begin, room in CAPACITIES.items() if self.name.startswith(begin)), default=0)
        return self.rise > self.bound and self.last > room


def rise(times: Sequence[float], values: Sequence[float]) -> float:
    """By the line of Theil and Sen, from the first time to the last; 0 for fewer than 2."""
    x, y = np.asarray(times, dtype=float), np.asarray(values, dtype=float)
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] - x[first]
    if not (apart > 0).any():
        return 0.0
    slopes = (y[second] - y[first])[apart > 0] / apart[apart > 0]
    return float(np.median(slopes) * (x[-1] - x[0]))


def judge(samples: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Of every quantity in the samples, those that rise the most for their bound first."""
    used = samples[int(len(samples) * WARM_UP) :]
    times = [each["time_s"] for each in used]
    found = [_verdict(name, bound, times, [each[name] for each in used]) for name, bound in BOUNDS.items()]
    for group in ("maps", "containers"):
        names = {name for each in used for name in each[group]}
        found += [
            _verdict(f"{group}: {name}", ENTRIES, times, [each[group].get(name, 0) for each in used])
            for name in sorted(names)
        ]
    return sorted(found, key=lambda verdict: verdict.rise / verdict.bound, reverse=True)


def _verdict(name: str, bound: Bound, times: Sequence[float], values: Sequence[float]) -> Verdict:
    median = float(np.median(values))
    return Verdict(
        name=name, median=median, rise=rise(times, values), bound=bound.of(median), last=float(values[-1])
    )
