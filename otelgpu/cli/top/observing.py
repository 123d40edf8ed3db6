"""A session whose metrics become frames: what is wanted in, frames out, until somebody asks for its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from otelgpu import agent as wiring
from otelgpu.cli.options import agent_scope, live_settings, plan
from otelgpu.cli.privilege_plan import give_up
from otelgpu.cli.top.exporter import Frames, Observed
from otelgpu.config import Config
from otelgpu.engine import registry
from otelgpu.engine.presentation import TopView
from otelgpu.kernel.scope import Scope
from otelgpu.model.self_telemetry import Attachment
from otelgpu.processes.listing import cpu_use, descendants
from otelgpu.render.top.frames import Frame
from otelgpu.render.top.processes import ObservedProcess
from otelgpu.sources.live import LiveSource

READ_AT_ONCE: Final = 500
"""Processes whose CPU time is read for a frame: some 10 ms."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What to observe, and how to show it. ``pids``: with their children; none: what the configuration picks."""

    config: Config
    views: tuple[TopView, ...]
    pids: tuple[int, ...]
    sort: str
    interval_s: float
    duration_s: float | None

    @property
    def families(self) -> tuple[str, ...]:
        """Those that the configuration names, or what the views are made of."""
        known = registry.with_records()
        of_views = dict.fromkeys(name for view in self.views for name in view.families)
        return self.config.families or tuple(name for name in of_views if name in known)


def observe(
    wanted: Wanted,
    show: Callable[[Frame], None],
    *,
    enough: int,
    is_ready: Callable[[], bool] = lambda: True,
) -> int:
    """Show frames until ``enough`` is readable, the time is over, or a signal comes; how many were shown."""
    config = wanted.config
    scope = Scope(processes=wanted.pids) if wanted.pids else agent_scope(config)
    with closing(LiveSource(registry.select(wanted.families), scope, live_settings(config))) as source:
        if config.drop_privileges:
            give_up(config)
        _look_around(source, wanted.pids)
        # Made now: its first frame counts from here.
        frames = Frames(
            wanted.views,
            wanted.sort,
            show,
            clock=time.monotonic,
            wall_clock=time.time,
            observed=lambda told: _read(source.attachments, told),
            is_ready=is_ready,
        )
        planned = replace(
            plan(config),
            open_exporters=lambda: [frames],
            metric_interval_s=wanted.interval_s,
            whole_metrics=True,
        )
        session = wiring.Agent(source, planned)
        with wiring.Interrupts() as interrupts:
            until = time.monotonic() + wanted.duration_s if wanted.duration_s is not None else None
            session.work(interrupts, until=until, also=enough)
            frames.end()
            session.finish()
    return frames.shown


def _look_around(source: LiveSource, pids: Sequence[int]) -> None:
    if not pids:
        source.observe_running()
        return
    for member in dict.fromkeys(m for tgid in pids for m in (tgid, *descendants(tgid))):
        source.observe(member)


def _read(attachments: dict[int, Attachment], told: Iterable[int]) -> Observed:
    """Processes with probes, and those of which metrics tell, but this one."""
    pids = dict.fromkeys([*told, *attachments])
    pids.pop(os.getpid(), None)
    return {pid: _process(pid, attachments.get(pid), place < READ_AT_ONCE) for place, pid in enumerate(pids)}


def _process(pid: int, attachment: Attachment | None, is_read: bool) -> ObservedProcess:
    probed = attachment or Attachment(executable="")
    use = cpu_use(pid) if is_read else None
    return ObservedProcess(
        pid=pid,
        program=probed.executable or (use.comm if use is not None else ""),
        start_time_ns=use.start_time_ns if use is not None else 0,
        cpu_s=use.cpu_s if use is not None else None,
        probed_files=probed.attached + probed.blind,
        unprobed_files=probed.failed,
    )
