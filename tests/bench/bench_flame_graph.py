"""How long a million samples take to become a flame graph: HTML, SVG, a heat map, pprof and folded stacks.

Run: ``.venv/bin/python -m tests.bench.bench_flame_graph``. The profile: 20,000 distinct stacks of up to 60
frames that share callers as real ones do, 3,000 functions, 60 s. The baseline sums the same samples with a
Python dictionary.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from rich.console import Console

from otelgpu.cli.page_files import page_files
from otelgpu.model.profiles import FrameType, Function, Line, Location, ProfileColumns, ValueType
from otelgpu.model.resource import resource
from otelgpu.render.flame_graph import differential, flame_graph
from otelgpu.render.flame_svg import flame_svg
from otelgpu.render.folded import folded
from otelgpu.render.heat_map import heat_map
from otelgpu.render.pprof import pprof
from otelgpu.render.speedscope import speedscope
from tests.bench.rows import Budget, Row, median, show, spread

SAMPLES, STACKS, FUNCTIONS, DEEPEST = 1_000_000, 20_000, 3_000, 60
SECONDS = 60
BUDGET_S = 2.0
_KINDS = (FrameType.NATIVE, FrameType.PYTHON, FrameType.PYTHON, FrameType.KERNEL)


def profile_of_samples(samples: int, stacks: int, seed: int = 1) -> ProfileColumns:
    """``samples`` of a minute under ``stacks`` distinct stacks: some far more often than others."""
    rng = np.random.default_rng(seed)
    made: list[tuple[int, ...]] = [(0,)]
    while len(made) < stacks:
        base = made[int(rng.integers(0, len(made)))]
        below = rng.integers(1, FUNCTIONS, int(rng.integers(1, 25))).tolist()
        made.append((*base[: int(rng.integers(1, len(base) + 1))], *below)[:DEEPEST])
    start = 1_790_000_000_000_000_000
    length = SECONDS * 1_000_000_000
    return ProfileColumns(
        resource=resource({"service.name": "llm", "process.pid": 42}),
        scope="otelgpu.profile",
        sample_type=ValueType(type="cpu", unit="nanoseconds"),
        period_type=ValueType(type="cpu", unit="nanoseconds"),
        period=10_101_010,
        start_unix_ns=start,
        duration_ns=length,
        value=np.full(samples, 10_101_010),
        time_unix_ns=np.uint64(start) + np.sort(rng.integers(0, length, samples)).astype(np.uint64),
        stack=rng.integers(0, stacks, samples) * rng.integers(0, stacks, samples) // stacks,
        stacks=tuple(tuple(reversed(stack)) for stack in made),
        locations=tuple(
            Location(
                frame_type=_KINDS[at % 4], mapping=None, address=0, lines=(Line(function=at, line=at % 500),)
            )
            for at in range(FUNCTIONS)
        ),
        functions=tuple(
            Function(name=f"Layer{at % 40}.forward_{at}", system_name="", file_name=f"layer_{at % 50}.py")
            for at in range(FUNCTIONS)
        ),
        mappings=(),
        links=None,
        attributes=(),
    )


def by_dictionary(batch: ProfileColumns) -> Counter[tuple[int, ...]]:
    """The plain way: one step a sample."""
    sums: Counter[tuple[int, ...]] = Counter()
    for stack, value in zip(batch.stack.tolist(), batch.value.tolist(), strict=True):
        sums[batch.stacks[stack]] += value
    return sums


def rows(quick: bool) -> list[Row]:
    """A million samples to each of the forms. Run once more before, so that nothing is read or compiled within."""
    batch, parts = profile_of_samples(SAMPLES, STACKS), page_files()
    other = profile_of_samples(SAMPLES // 10, STACKS)
    forms: dict[str, tuple[Callable[[], bytes], bool]] = {
        "flame graph, HTML": (lambda: flame_graph([batch], parts), True),
        "flame graph, SVG": (lambda: flame_svg([batch]), True),
        "heat map, HTML": (lambda: heat_map([batch], parts), True),
        "differential, HTML": (lambda: differential([batch], [other], parts), True),
        "pprof": (lambda: pprof([batch]), False),
        "speedscope": (lambda: speedscope([batch]), False),
        "folded stacks": (lambda: folded([batch]), False),
    }
    rounds = 1 if quick else 5
    baseline = median(_seconds(lambda: by_dictionary(batch)) for _ in range(rounds))
    found = []
    for name, (made, is_budgeted) in forms.items():
        size = len(made())
        seconds = [_seconds(made) for _ in range(rounds)]
        found.append(
            Row(
                bench="flame_graph",
                name=f"1,000,000 samples of 20,000 stacks to {name}",
                value=median(seconds),
                unit="s",
                baseline="summed by a Python dictionary, nothing drawn",
                baseline_value=baseline,
                budget=Budget(limit=BUDGET_S, kind="at most") if is_budgeted else None,
                note=f"{size / 1e6:.1f} MB; {spread(seconds)}",
            )
        )
    return found


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    show(rows(parser.parse_args().quick), Console(width=170))


if __name__ == "__main__":
    main()
