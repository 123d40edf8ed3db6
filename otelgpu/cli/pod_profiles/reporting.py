"""What became of requests, sent to where the agent sends. Run in a child that ends (children.py)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otelgpu.cli.options import configure, openings, plan
from otelgpu.cli.pod_profiles.outcomes import Outcome, event_of
from otelgpu.errors import OtelgpuError
from otelgpu.export.base import EventExporter
from otelgpu.session import own_resource

DELIVER_S: Final = 20.0


def check(config_file: Path | None) -> bytes:
    """What is wrong with the settings, in words; nothing where nothing is."""
    try:
        openings(configure({"config_file": config_file}), os.environ)
    except OtelgpuError as error:
        return str(error).encode()
    return b""


def report(outcomes: Sequence[Outcome], config_file: Path | None) -> bytes:
    """Raises :class:`OtelgpuError` where they did not arrive within :data:`DELIVER_S`."""
    config = configure({"config_file": config_file})
    own = own_resource(plan(config).attributes)
    events = [event_of(each, own) for each in outcomes]
    exporters = [each.open() for each in openings(config, os.environ)]
    for exporter in exporters:
        if isinstance(exporter, EventExporter):
            exporter.export_events(events)
    for exporter in exporters:
        exporter.close(DELIVER_S / len(exporters))
    lost = sum(
        count
        for exporter in exporters
        for key, count in exporter.stats().items()
        if key.startswith("events_lost_")
    )
    if lost:
        raise OtelgpuError(f"{lost} events of requests for profiles did not arrive")
    return b""
