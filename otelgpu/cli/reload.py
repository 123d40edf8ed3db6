"""SIGHUP to an agent: its configuration is read again, and what can change while it works does.

A reload detaches nothing and loses nothing: records that are in the rings are reported first, as they were to be; a
destination that is replaced still gets what was meant for it. A file with a mistake changes nothing at all.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Final, Self

from msgspec import Struct, structs

from otelgpu.agent import Agent
from otelgpu.cli.logs import say, set_log_level
from otelgpu.cli.options import agent_scope, openings, plan
from otelgpu.config import Config
from otelgpu.errors import OtelgpuError
from otelgpu.export.base import Exporter
from otelgpu.export.destination import Opening
from otelgpu.sources.joint import Source

_log = logging.getLogger("otelgpu.cli")

LIVE: Final = frozenset(
    (
        *("detail", "collective_sample_ratio"),
        *("switch_longest_s", "switch_at_once", "switch_pause_s"),
        *("traces_sampler", "traces_sampler_arg", "traces_keep_errors", "traces_keep_first_token_s"),
        *("traces_keep_first_token_quantile", "traces_spans_per_second"),
        *("traces_exclude_paths", "traces_exclude_user_agents"),
        *("interval_ms", "metric_interval_ms", "device_interval_ms"),
        *("executables", "containers"),
        *("export", "otlp"),
        "log_level",
    )
)
"""Settings that a reload changes. The others need a new start, for they are in the BPF programs or in every span."""


def change(old: Config, new: Config) -> tuple[Config, list[str], list[str]]:
    """The configuration to go on with, the settings that change, and those that would need a new start."""
    differ = [name for name in old.__struct_fields__ if getattr(old, name) != getattr(new, name)]
    kept = [name for name in differ if name not in LIVE or not _can_change(name, old, new)]
    changed = [name for name in differ if name not in kept]
    return structs.replace(old, **{name: getattr(new, name) for name in changed}), changed, kept


def _can_change(name: str, old: Config, new: Config) -> bool:
    if name in ("executables", "containers"):  # whether processes are picked at all is in the BPF programs
        return all(each.executables or each.containers for each in (old, new))
    if name == "device_interval_ms":
        return bool(old.device_interval_ms and new.device_interval_ms)
    return True


class ReloadSignals:
    """SIGHUP as a descriptor. One that comes with the loss of the terminal asks to end, as it always has."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._had_terminal = _has_terminal()
        self._previous: object = None

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGHUP, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGHUP, self._previous)  # type: ignore[arg-type]
        os.close(self.fd)

    def take(self) -> bool:
        """Whether there was one since the last call."""
        try:
            return os.eventfd_read(self.fd) > 0
        except BlockingIOError:
            return False

    @property
    def lost_terminal(self) -> bool:
        """Whether the terminal that this program was started from is gone."""
        return self._had_terminal and not _has_terminal()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        os.eventfd_write(self.fd, 1)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class Reloads(Struct, frozen=True):
    """What has an agent read its configuration again. ``read``: None where there is no file to read."""

    reload_signals: ReloadSignals
    read: Callable[[], Config] | None


class Reloader:
    """Changes a working agent; ``read`` as :class:`Reloads` has it."""

    def __init__(
        self, read: Callable[[], Config] | None, config: Config, session: Agent, source: Source
    ) -> None:
        self._read, self._config = read, config
        self._session, self._source = session, source
        self._openings = openings(config, os.environ)

    def reload(self) -> None:
        """Read and change. Nothing is raised: what is wrong is logged, and the old configuration stays."""
        if self._read is None:
            _log.warning("SIGHUP: there is no --config to read again; nothing has changed")
            return
        try:
            config, changed, kept = change(self._config, self._read())
            wanted = openings(config, os.environ)
            intended = plan(config)
            exporters = self._opened(wanted)
        except OtelgpuError as error:
            self._session.watch.reloads["refused"] += 1
            _log.error("the configuration was not read again, and nothing has changed: %s", error)
            return
        self._session.go_on(intended, exporters)
        if {"executables", "containers"} & set(changed):
            admits = agent_scope(config).admits
            assert admits is not None, "such a change is kept"
            self._source.rescope(admits)
        set_log_level(config.log_level)
        self._config, self._openings = config, wanted
        self._session.watch.reloads["applied"] += 1
        say(f"configuration read again: {', '.join(changed) or 'nothing'} changed", config.log_format)
        if kept:
            _log.warning("changed, but not before a new start: %s", ", ".join(kept))

    def _opened(self, wanted: Sequence[Opening]) -> list[Exporter]:
        """An exporter for each; those there are where nothing about them has changed."""
        found: list[Exporter] = []
        new: list[Exporter] = []
        try:
            for place, opening in enumerate(wanted):
                before = self._openings[place : place + 1]
                if before == [opening] and not opening.place.has_files:
                    found.append(self._session.exporters[place])
                else:
                    new.append(opening.open())
                    found.append(new[-1])
        except OtelgpuError:
            for exporter in new:
                exporter.close(0.0)
            raise
        return found
