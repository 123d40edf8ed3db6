"""A live source ends as a whole, whatever state it is in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from otelgpu.live import LiveSource


def test_what_cannot_be_closed_keeps_nothing_else_open_and_is_not_tried_again() -> None:
    closed: list[str] = []

    def part(name: str, *, fails: bool = False) -> Any:
        def close() -> None:
            closed.append(name)
            if fails and closed.count(name) == 1:
                raise OSError(f"no {name}")

        return SimpleNamespace(close=close, detach=close)

    source: Any = LiveSource.__new__(LiveSource)
    source._holding = None
    source._settings = SimpleNamespace(describer=part("describer"))
    source._watchers = part("watchers")
    source._placer = part("probes", fails=True)
    source._loaded = {"process": part("process", fails=True), "cuda": part("cuda")}
    source._loader, source._events = part("loader"), part("events")
    with pytest.raises(OSError, match="no process"):
        source.close()
    assert closed == ["describer", "watchers", "probes", "process", "cuda", "events", "loader"]
    source.close()
    assert closed.count("cuda") == 1
