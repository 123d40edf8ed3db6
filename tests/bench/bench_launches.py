"""What observing a process that launches 50,000 kernels a second costs it: with all of them probed, and within a bound.

The program answers requests of 500 launches each on one thread and is not slowed down as long as that has time left, so
that what probes cost is in its processor time. Bare, probed and bounded take turns.
"""

from __future__ import annotations

import contextlib
from typing import Final

from tests.bench.programs import attached, cpu_seconds, running_load
from tests.bench.rows import Budget, Row, median, spread

NAME: Final = "launches"
RATE, CALLS = 50_000, 500
BOUND_PERCENT: Final = 1.0
ALWAYS, BOUNDED = "all probed", f"--max-overhead {BOUND_PERCENT:g}"
OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "bare": (),
    ALWAYS: (),
    BOUNDED: ("--max-overhead", f"{BOUND_PERCENT:g}"),
}


def rows(quick: bool) -> list[Row]:
    rounds, seconds = (1, 1.0) if quick else (5, 10.0)
    shares: dict[str, list[float]] = {name: [] for name in OPTIONS}
    for _ in range(rounds):
        for name, times in shares.items():
            times.append(_share(name, seconds))
    bare = median(shares["bare"])
    found = [Row(bench=NAME, name="bare", value=bare, unit="% of a core", note=spread(shares["bare"]))]
    for name in (ALWAYS, BOUNDED):
        found.append(
            Row(
                bench=NAME,
                name=f"{name}: added",
                value=median(shares[name]) - bare,
                unit="% of a core",
                budget=Budget(limit=BOUND_PERCENT, kind="at most") if name == BOUNDED else None,
                note=f"{RATE:,} launches/s; {spread(shares[name])} in all",
            )
        )
    return found


def _share(name: str, seconds: float) -> float:
    """Percent of a core that the program takes."""
    with running_load() as load, contextlib.ExitStack() as stack:
        if name != "bare":
            options = ("--families", "cuda", "--detail", "phases", *OPTIONS[name])
            stack.enter_context(attached(load.pid, *options))
            load.ask(f"serve {RATE} 1 {CALLS} 1")  # until its rate is known
        before = cpu_seconds(load.pid)
        answer = load.ask(f"serve {RATE} {seconds} {CALLS} 1")
        spent = cpu_seconds(load.pid) - before
        return 100 * spent / ((answer["ended_ns"] - answer["began_ns"]) / 1e9)
