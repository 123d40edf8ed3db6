"""How soon `otelgpu top` draws, and what it costs left open, beside the example server under load.

On a pseudo terminal of 24 lines. It is two processes: CPU time is of what draws, next to that of what observes.
"""

from __future__ import annotations

import os
import time
from typing import Final

from otelgpu.processes.listing import cpu_use, descendants
from tests.bench.rows import Budget, Row
from tests.rig import start_llm_server
from tests.rig.top_terminal import Terminal, asked_all_the_time, terminal

NAME: Final = "top"


def rows(quick: bool) -> list[Row]:
    with start_llm_server() as server, asked_all_the_time(server):
        with terminal("-p", f"{server.pid}") as top:  # the first one compiles to bytecode
            top.shows("/v1/chat/completions")
            top.press("q")
            top.ends()
        began = time.monotonic()
        with terminal("-p", f"{server.pid}") as top:
            top.shows("otelgpu top")
            drawn_s = time.monotonic() - began
            top.shows("/v1/chat/completions")
            rates_s = time.monotonic() - began
            draws, observes = _shares(top, 2.0 if quick else 30.0)
            top.press("q")
            top.ends()
    return [
        Row(
            bench=NAME,
            name="exec to the first drawn frame",
            value=drawn_s,
            unit="s",
            budget=Budget(limit=1.0, kind="at most"),
        ),
        Row(bench=NAME, name="exec to the first rates", value=rates_s, unit="s"),
        Row(
            bench=NAME,
            name="CPU of what draws, a frame a second",
            value=draws,
            unit="% of a core",
            budget=Budget(limit=2.0, kind="at most"),
            baseline="of what observes",
            baseline_value=observes,
        ),
    ]


def _shares(top: Terminal, seconds: float) -> tuple[float, float]:
    """Percent of a core that each of its processes takes."""
    pids = top.process.pid, _observer(top.process.pid)
    before, began = [_cpu_s(pid) for pid in pids], time.monotonic()
    while time.monotonic() < began + seconds:
        top.read(0.1)
    took = time.monotonic() - began
    draws, observes = (100 * (_cpu_s(pid) - at) / took for pid, at in zip(pids, before, strict=True))
    return draws, observes


def _observer(pid: int) -> int:
    """The child that has a group of its own."""
    return next(child for child in descendants(pid) if os.getpgid(child) == child)


def _cpu_s(pid: int) -> float:
    use = cpu_use(pid)
    assert use is not None
    return use.cpu_s
