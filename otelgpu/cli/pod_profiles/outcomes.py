"""What became of a request, as a sentence and as an OpenTelemetry event. Pure."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from otelgpu.cli.pod_profiles.requests import Change
from otelgpu.families.switches import names
from otelgpu.families.switches.audit import attributes_of
from otelgpu.model.events import Event
from otelgpu.model.resource import Resource
from otelgpu.model.switches import PROFILE_ANNOTATION
from otelgpu.model.text import printable

LONGEST_ERROR: Final = 600


class Result(Struct, frozen=True, kw_only=True):
    """Of a profile. ``file``: "" where it was sent to a Collector, or there is none; ``error``: why there is none."""

    samples: Annotated[int, Meta(ge=0)] = 0
    file: str = ""
    error: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """``result``: of one that ended."""

    change: Change
    time_unix_ns: int
    result: Result | None = None


def sentence(outcome: Outcome) -> str:
    """For a person."""
    change, result = outcome.change, outcome.result
    place = printable(f"pod {change.switch.namespace}/{change.switch.pod}")
    if not change.seconds:
        return f"{place}: an annotation for a profile is refused: {change.reason}"
    asked = f"{place}: a profile of {change.seconds:g} s"
    if change.state == names.REFUSED:
        return f"{asked} is refused: {change.reason}"
    if result is None:
        return f"{asked} {change.state}{change.reason and f': {change.reason}'}"
    if result.error:
        return f"{asked} {change.state}: {change.reason}: {result.error}"
    went = f" in {result.file}" if result.file else ""
    return f"{asked} {change.state}: {change.reason}: {result.samples:,} samples{went}"


def event_of(outcome: Outcome, own: Resource) -> Event:
    """``own``: the resource of the agent."""
    change, result = outcome.change, outcome.result
    attributes = attributes_of(PROFILE_ANNOTATION, change.switch, change.state, change.reason)
    if result is not None and not result.error:
        attributes[names.SAMPLES] = result.samples
        if result.file:
            attributes[names.FILE] = result.file
    return Event(
        name=names.EVENT,
        time_unix_ns=outcome.time_unix_ns,
        text=sentence(outcome),
        attributes=attributes,
        resource=own,
        warns=change.state == names.REFUSED or change.reason == names.FAILED,
    )
