"""SIGHUP: what changes, what does not and is said, and a mistake that changes nothing."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from otelgpu.agent import Plan
from otelgpu.cli import reload as reload_module
from otelgpu.cli.options import openings, read_config
from otelgpu.cli.reload import LIVE, Reloader, ReloadSignals, change
from otelgpu.config import Config, ConfigError
from otelgpu.export.base import Exporter


class Session:
    """What a reload asks of an agent."""

    def __init__(self, exporters: list[Exporter]) -> None:
        self.exporters = exporters
        self.watch = SimpleNamespace(reloads=Counter())
        self.plans: list[Plan] = []

    def go_on(self, plan: Plan, exporters: list[Exporter]) -> None:
        self.plans.append(plan)
        self.exporters = exporters


class Source:
    def __init__(self) -> None:
        self.admits: Callable[[int], bool] | None = None

    def rescope(self, admits: Callable[[int], bool]) -> None:
        self.admits = admits


class Rig:
    """An agent's configuration file, and a reload of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "otelgpu.yaml"
        self.folder = folder
        self.source = Source()

    def start(self, text: str) -> None:
        self.file.write_text(text)
        config = self.read()
        self.session: Any = Session([opening.open() for opening in openings(config, {})])
        self.reloader = Reloader(self.read, config, self.session, self.source)  # type: ignore[arg-type]

    def read(self) -> Config:
        return read_config({"config_file": self.file})

    def reload(self, text: str) -> None:
        self.file.write_text(text)
        self.reloader.reload()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("OTEL_", "OTELGPU_"))]:
        monkeypatch.delenv(name)
    level = logging.getLogger().level
    yield Rig(tmp_path)
    logging.getLogger().setLevel(level)


OTLP = "export: ['otlp:http://127.0.0.1:9']\n"


def test_what_can_change_changes(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.start(OTLP)
    rig.reload(OTLP + "detail: phases\ninterval_ms: 50\ncollective_sample_ratio: 0.5\nlog_level: info\n")
    (plan,) = rig.session.plans
    assert (plan.settings.detail, plan.settings.collective_sample_ratio) == ("phases", 0.5)
    assert plan.interval_s == 0.05
    assert logging.getLogger().level == logging.INFO
    assert capsys.readouterr().err == (
        "otelgpu: configuration read again: detail, collective_sample_ratio, interval_ms, log_level changed\n"
    )
    assert rig.session.watch.reloads == {"applied": 1}


def test_what_cannot_is_said_once_and_kept(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.start(OTLP)
    rig.reload(OTLP + "ring_bytes: 65536\nfamilies: [cuda]\ndetail: all\n")
    (plan,) = rig.session.plans
    assert len(plan.families) > 1
    assert plan.settings.detail == "all"
    assert caplog.messages == ["changed, but not before a new start: families, ring_bytes"]


def test_a_mistake_changes_nothing_and_names_the_line(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.start(OTLP)
    rig.reload(OTLP + "detail: phases\nlog_level: loud\n")
    assert rig.session.plans == []
    assert rig.session.watch.reloads == {"refused": 1}
    (reported,) = caplog.messages
    assert f"{rig.file}:3: " in reported


@pytest.mark.parametrize(
    "text",
    ["detail: [", "export: [file:/no/such/place]\n", "export: [smoke]\n", "otlp: {timeout: x}\n" + OTLP],
)
def test_nothing_that_cannot_be_opened_replaces_what_works(rig: Rig, text: str) -> None:
    rig.start(OTLP)
    before = list(rig.session.exporters)
    rig.reload(text)
    assert rig.session.exporters == before
    assert rig.session.watch.reloads == {"refused": 1}


def test_a_file_that_is_gone_changes_nothing(rig: Rig) -> None:
    rig.start(OTLP)
    rig.file.unlink()
    rig.reloader.reload()
    assert rig.session.watch.reloads == {"refused": 1}


def test_a_mended_file_is_taken_after_a_mistake(rig: Rig) -> None:
    rig.start(OTLP)
    rig.reload("nonsense: 1\n")
    rig.reload(OTLP + "detail: all\n")
    assert [plan.settings.detail for plan in rig.session.plans] == ["all"]


def test_a_reload_starts_from_the_one_before(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.start(OTLP)
    for _ in range(2):
        rig.reload(OTLP + "detail: all\n")
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "detail changed",
        "nothing changed",
    ]


def test_a_destination_that_did_not_change_is_kept(rig: Rig) -> None:
    rig.start(OTLP)
    (before,) = rig.session.exporters
    rig.reload(OTLP + "detail: all\n")
    assert rig.session.exporters == [before]
    rig.reload(OTLP + "otlp: {headers: 'authorization=new'}\n")
    assert rig.session.exporters != [before]


def test_a_file_is_opened_anew_for_it_may_have_been_rotated(rig: Rig) -> None:
    rig.start("export: [file:out.jsonl]\n")
    (before,) = rig.session.exporters
    Path("out.jsonl").rename("out.jsonl.1")
    rig.reload("export: [file:out.jsonl]\n")
    assert rig.session.exporters != [before]
    assert Path("out.jsonl").exists()


def test_other_processes_are_picked(rig: Rig) -> None:
    rig.start(OTLP + "executables: ['nothing*']\n")
    rig.reload(OTLP + "executables: ['python*']\n")
    assert rig.source.admits is not None
    assert rig.source.admits(os.getpid())


@pytest.mark.parametrize(("before", "after"), [("", "executables: [a]\n"), ("executables: [a]\n", "")])
def test_whether_processes_are_picked_at_all_stays(
    rig: Rig, before: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.start(OTLP + before)
    rig.reload(OTLP + after)
    assert rig.source.admits is None
    assert caplog.messages == ["changed, but not before a new start: executables"]


def test_polling_is_neither_begun_nor_ended() -> None:
    on, off = Config(device_interval_ms=1000), Config(device_interval_ms=0)
    assert change(on, structs.replace(on, device_interval_ms=5))[1] == ["device_interval_ms"]
    assert change(on, off)[2] == change(off, on)[2] == ["device_interval_ms"]


def test_without_a_file_nothing_is_read(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.start(OTLP)
    Reloader(None, Config(export=("console",)), rig.session, rig.source).reload()  # type: ignore[arg-type]
    assert caplog.messages == ["SIGHUP: there is no --config to read again; nothing has changed"]
    assert rig.session.plans == []


def test_flags_still_win(rig: Rig) -> None:
    rig.start(OTLP)
    rig.reloader._read = lambda: read_config({"config_file": rig.file, "detail": "ops"})
    rig.reload(OTLP + "detail: all\n")
    assert rig.session.plans[0].settings.detail == "ops"


def test_every_live_setting_exists() -> None:
    assert set(Config.__struct_fields__) >= LIVE


def test_an_error_of_the_configuration_is_an_error_of_the_reload() -> None:
    assert issubclass(ConfigError, reload_module.OtelgpuError)


def test_a_hangup_makes_a_descriptor_readable_until_it_is_taken() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with ReloadSignals() as reload_signals:
        assert not reload_signals.take()
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert reload_signals.take()
        assert not reload_signals.take()
    assert signal.getsignal(signal.SIGHUP) is before


@pytest.mark.parametrize(
    ("had", "has", "lost"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_terminal_that_is_gone_is_noticed(
    monkeypatch: pytest.MonkeyPatch, had: bool, has: bool, lost: bool
) -> None:
    monkeypatch.setattr(reload_module, "_has_terminal", lambda: had)
    reload_signals = ReloadSignals()
    monkeypatch.setattr(reload_module, "_has_terminal", lambda: has)
    assert reload_signals.lost_terminal is lost
    os.close(reload_signals.fd)
