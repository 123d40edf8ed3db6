"""FamilyDiscoveries of a session: each takes part in what it has methods for, and in nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from otelgpu.engine import registry
from otelgpu.model.inputs import Batch, Input, Tick
from otelgpu.model.settings import Settings
from otelgpu.processes.discovery import Discovery
from otelgpu.sources.discoveries import discovery_of
from otelgpu.sources.family_discoveries import FamilyDiscoveries


class Everything:
    """Has all the methods; keeps what was asked of it."""

    def __init__(self) -> None:
        self.counters = {"lost": 1}
        self.asked: list[str] = []

    def look(self, batch: Batch) -> None:
        self.asked.append(f"look {batch.kind}")

    def library_mapped(self, tgid: int) -> None:
        self.asked.append(f"library_mapped {tgid}")

    def mapped(self, tgid: int) -> None:
        self.asked.append(f"mapped {tgid}")

    def program_changed(self, tgid: int) -> None:
        self.asked.append(f"program_changed {tgid}")

    def prepare(self, path: Path) -> None:
        self.asked.append(f"prepare {path}")

    def expect(self, tgid: int) -> None:
        self.asked.append(f"expect {tgid}")

    def settle(self, tgids: Collection[int], seconds: float) -> None:
        self.asked.append(f"settle {list(tgids)} {seconds:g}")

    def enter(self, tgid: int) -> None:
        self.asked.append(f"enter {tgid}")

    def forget(self, tgid: int) -> None:
        self.asked.append(f"forget {tgid}")

    def start(self) -> None:
        self.asked.append("start")

    def ask(self, now_ns: int) -> None:
        self.asked.append(f"ask {now_ns}")

    def collect(self, now_ns: int) -> Sequence[Input]:
        self.asked.append(f"collect {now_ns}")
        return [Tick(time_ns=now_ns)]

    def complete(self) -> None:
        self.asked.append("complete")

    def close(self) -> None:
        self.asked.append("close")


def everything_of(watchers: FamilyDiscoveries) -> list[Input]:
    """Call all that a live source calls."""
    records = np.zeros(1, [("head", [("tgid", "<u4")])])
    for family in ("a", "b"):
        watchers.look(Batch(family=family, kind=f"{family}_call", records=records))
    watchers.enter(7)
    watchers.mapped(7, placed=True)
    watchers.mapped(8, placed=False, in_scope=False)
    watchers.program_changed(7)
    watchers.prepare(Path("/lib/x"))
    watchers.settle((7,), 2)
    watchers.ask(1)
    watchers.complete()
    found = watchers.collect(1, [9])
    watchers.close()
    return found


def test_one_with_every_method_takes_part_in_everything() -> None:
    watcher, watchers = Everything(), FamilyDiscoveries()
    watchers.add("a", "b", watcher)
    watchers.start([watcher])
    assert everything_of(watchers) == [Tick(time_ns=1)]
    assert watchers.counters == {"a": {"lost": 1}}
    assert watcher.asked == [
        *("start", "look b_call", "enter 7", "library_mapped 7", "mapped 7", "expect 7", "mapped 8"),
        *("program_changed 7", "prepare /lib/x", "settle [7] 2", "ask 1", "complete"),
        *("forget 9", "collect 1", "close"),
    ]


def test_one_with_no_method_is_left_alone() -> None:
    watchers = FamilyDiscoveries()
    watchers.add("a", "a", object())
    assert everything_of(watchers) == []
    assert watchers.counters == {}


def test_a_family_may_watch_what_another_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelgpu.sources.family_discoveries.LostRecords", lambda loaded: object())
    opened: list[tuple[str, Any, bool]] = []

    def watch(loaded: Any, placer: Any, settings: Settings) -> Sequence[object]:
        opened.append((loaded.family, placer, settings.get("wanted", False)))
        return [Everything()]

    watchers = FamilyDiscoveries({"a": Discovery(watch={"a": watch, "b": watch}), "b": Discovery()})
    placer: Any = object()
    for family in ("b", "c"):
        loaded: Any = SimpleNamespace(family=family)
        watchers.open(loaded, placer, Settings({"wanted": True}))
    assert opened == [("b", placer, True)]
    assert watchers.counters == {"a": {"lost": 1}}  # under its own name


def test_a_replay_imports_no_live_side() -> None:
    code = (
        "import sys; from otelgpu.engine import registry, pipeline; registry.families(); "
        "print([n for n in sys.modules if {'discover', 'poll'} & set(n.split('.'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_every_familys_live_side_is_found() -> None:
    watching = {name for name in registry.families() if discovery_of(name) != Discovery()}
    assert {"file", "http", "nccl", "probe", "profile", "torch", "verbs"} <= watching
    assert discovery_of("no such family") == Discovery()
    assert registry.part_of("sched", "discover", "asked") is None
    assert registry.part_of("devices", "discover", "DISCOVERY") is None
    assert set(registry.parts("poll", "POLLING")) == {
        "otelgpu.families.gpu.devices",
        "otelgpu.families.rdma",
        "otelgpu.families.steps.training",
        "otelgpu.families.switches",
    }
