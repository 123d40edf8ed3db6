"""Profiles from a file, whatever it is: a capture, or what some tool wrote.

In: a path. Out: :class:`Profiles`. Raises :class:`OtelgpuError` with what it is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from otelgpu import agent as wiring
from otelgpu.config import Config, reporting
from otelgpu.engine import registry
from otelgpu.engine.contract import Family
from otelgpu.errors import OtelgpuError
from otelgpu.export.base import Exporter
from otelgpu.export.memory import MemoryExporter
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.spans import SpanColumns
from otelgpu.sources.capture import MAGIC

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

LARGEST_BYTES: Final = 1 << 30
"""Of a file that is no capture: those are read piece by piece."""


class Profiles(Struct, frozen=True, kw_only=True):
    """What a file holds."""

    profiles: Sequence[ProfileColumns]
    spans: Sequence[SpanColumns]


def is_capture(path: Path) -> bool:
    """Whether a file begins like one."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise OtelgpuError(f"cannot read {path}: {error.strerror}") from error


def replay_capture(
    path: Path,
    config: Config,
    others: Sequence[Exporter] = (),
    see_metrics: Callable[[MetricsData], object] | None = None,
) -> tuple[MemoryExporter, wiring.Outcome]:
    """A capture through the pipeline, with every kind of profile that it holds."""
    memory = MemoryExporter(see_metrics=see_metrics)
    outcome = wiring.replay(
        path,
        {**registry.select(config.families), **_with_profiles(config)},
        [memory, *others],
        settings=reporting(config, os.environ),
        profiling=ProfileSettings(
            kinds=frozenset(ProfileKind),
            frequency_hz=config.profile_frequency_hz,
            interval_s=config.profile_interval_s,
        ),
    )
    return memory, outcome


def _with_profiles(config: Config) -> dict[str, Family]:
    known = registry.families()
    return {} if config.families else {"profile": known["profile"]}


def read_profiles_of(path: Path, config: Config) -> Profiles:
    """The profiles of a capture, of OTLP JSON lines, of a pprof or of folded stacks."""
    if is_capture(path):
        memory, _ = replay_capture(path, config)
        return Profiles(profiles=memory.profiles, spans=memory.spans)
    from otelgpu.render.format import read_profiles

    return Profiles(profiles=read_profiles(path.name, read_file(path)), spans=())


def read_file(path: Path) -> bytes:
    """A file that is no capture, in one piece."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise OtelgpuError(f"{path} has more than {LARGEST_BYTES >> 30} GiB", hint="give its capture")
        return path.read_bytes()
    except OSError as error:
        raise OtelgpuError(f"cannot read {path}: {error.strerror}") from error
