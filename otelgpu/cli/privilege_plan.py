"""Between opening and observing: files are opened that need more privileges, then those are given up."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from otelgpu.agent import Plan
from otelgpu.cli.options import openings, plan
from otelgpu.config import Config
from otelgpu.export.base import Exporter
from otelgpu.kernel.privileges import capabilities as needs
from otelgpu.kernel.privileges import dropping as privileges
from otelgpu.kernel.uprobe_links import UprobeLinks, uprobe_links
from otelgpu.sources.capture import create_capture

_log = logging.getLogger("otelgpu.cli")


def secured_plan(
    config: Config, *, capture: Path | None, serves: bool = False, starts_program: bool = False
) -> Plan:
    """How the session works, once its probes are loaded and before it starts a thread.

    With ``drop_privileges`` what it does not need from here on is given up; ``starts_program``: it passes signals on.
    """
    planned = plan(config, capture=capture, serves=serves)
    if not config.drop_privileges:
        return planned
    if capture is not None:
        planned = replace(planned, capture_file=create_capture(capture))
    wanted = openings(config, os.environ, needed=capture is None)
    opened = {
        number: opening.open() for number, opening in enumerate(wanted) if opening.destination.is_opened_early
    }

    def open_exporters() -> Sequence[Exporter]:
        return [opened.get(number) or opening.open() for number, opening in enumerate(wanted)]

    give_up(config, starts_program=starts_program)
    return replace(planned, open_exporters=open_exporters)


def give_up(config: Config, *, starts_program: bool = False) -> None:
    """Keep the capabilities that later attachments and readings need, and no others.

    Before Linux 6.6 a probe is a perf event: where the kernel keeps those for CAP_SYS_ADMIN, that is one of them.
    """
    unwanted = {
        needs.HOLDING: not config.hold_on_load,
        needs.SIGNALLING: not starts_program,
        needs.KERNEL_LOG: not config.fabric_interval_ms,
    }
    wanted = [need for need in needs.NEEDS if need.later and not unwanted.get(need, False)]
    if needs.perf_events_are_kept() and uprobe_links() is UprobeLinks.SINGLE:
        wanted.append(needs.PERF_EVENTS)
        _log.warning(
            "%s is kept: without it this kernel lets nobody probe a library that is loaded later "
            "(with kernel.perf_event_paranoid=2 it is given up)",
            needs.names(needs.PERF_EVENTS.capabilities),
        )
    privileges.give_up(wanted)


def report_missing() -> None:
    """Say what a session will not see for want of a capability."""
    own = needs.held()
    for need in needs.REPORTED:
        if missing := own.missing(need):
            _log.warning(
                "%s is missing: %s (docs/reference/privileges.md)", needs.names(missing), need.without
            )
