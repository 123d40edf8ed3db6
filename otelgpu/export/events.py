"""OpenTelemetry events (log records with an event name) of verdicts and of batch commands, through the SDK's API.

In: verdicts, and what a command did. Out: events and metrics of whatever provider the logger and the meter are of. The
names are this module's; docs/reference/signals.md lists them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from otelgpu.model.verdict import BEGAN, CHANGED, ENDED, Verdict

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter

VERDICT: Final = "otelgpu.verdict"
VERDICT_CLASS: Final = "otelgpu.verdict.class"
VERDICT_COST: Final = "otelgpu.verdict.cost"
VERDICT_CONFIDENCE: Final = "otelgpu.verdict.confidence"
VERDICT_START: Final = "otelgpu.verdict.start"
VERDICT_DURATION: Final = "otelgpu.verdict.duration"
VERDICT_RANKS: Final = "otelgpu.verdict.ranks"
VERDICT_HOSTS: Final = "otelgpu.verdict.hosts"
VERDICT_CAUSE: Final = "otelgpu.verdict.cause"
VERDICT_STATE: Final = "otelgpu.verdict.state"
VERDICT_LINKS: Final = "otelgpu.verdict.links"

COMMAND: Final = "otelgpu.command"
COMMAND_NAME: Final = "otelgpu.command.name"
COMMAND_OUTCOME: Final = "otelgpu.command.outcome"
COMMAND_DURATION: Final = "otelgpu.command.duration"
COMMAND_INPUTS: Final = "otelgpu.command.inputs"
COMMAND_INPUT_SIZE: Final = "otelgpu.command.input.size"
COMMAND_SKIPPED: Final = "otelgpu.command.skipped"
COMMAND_VERDICTS: Final = "otelgpu.command.verdicts"
REASON: Final = "otelgpu.reason"
ERROR_TYPE: Final = "error.type"

EVENTS: Final[Mapping[str, str]] = {
    VERDICT: "a finding of `otelgpu diagnose`",
    COMMAND: "a batch command has ended",
}
ATTRIBUTES: Final[Mapping[str, str]] = {
    VERDICT_CLASS: "what was found: one of the classes of `diagnose ranks`",
    VERDICT_COST: "seconds that mending it would save",
    VERDICT_CONFIDENCE: "0 to 1",
    VERDICT_START: "seconds since 1970 at which what it speaks of began; the event's time is its end",
    VERDICT_DURATION: "seconds from there to its end",
    VERDICT_RANKS: "of `diagnose ranks`: the global ranks that it is about",
    VERDICT_HOSTS: "likewise: their hosts",
    VERDICT_CAUSE: "likewise: the kind of work that takes longer, `compute` say",
    VERDICT_STATE: f"of `diagnose ranks --follow`: `{BEGAN}`, `{CHANGED}` or `{ENDED}`",
    VERDICT_LINKS: "of `diagnose ranks`: spans that show it, `TRACE-SPAN` in hexadecimal; the event is of the first",
    COMMAND_NAME: "`diagnose ranks`, `analyze collectives`, `replay`, `diff` or `profile`",
    COMMAND_OUTCOME: "`ok` or `error`",
    ERROR_TYPE: "of a command that failed: the kind of error",
    COMMAND_DURATION: "of the event: seconds that it took",
    COMMAND_INPUTS: "of the event: files that were read",
    COMMAND_INPUT_SIZE: "of the event: their bytes",
    COMMAND_SKIPPED: "of the event: lines, documents and spans that could not be read",
    COMMAND_VERDICTS: "of the event: verdicts that were reported",
    REASON: "of the metric of what was skipped: why",
}
METRICS: Final[Mapping[str, tuple[str, str, str]]] = {
    COMMAND_DURATION: ("histogram", "s", "How long batch commands took."),
    COMMAND_INPUTS: ("counter", "{file}", "Files that batch commands read."),
    COMMAND_INPUT_SIZE: ("counter", "By", "Bytes of the files that batch commands read."),
    COMMAND_SKIPPED: (
        "counter",
        "{item}",
        "Lines, documents and spans of those files that could not be read.",
    ),
}
"""Name → kind, unit, description."""

_DURATIONS: Final = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


class CommandFacts(Struct, kw_only=True):
    """What a batch command did. ``error_type``: "" where it succeeded."""

    name: str
    duration_s: float = 0.0
    inputs: int = 0
    input_bytes: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    verdicts: int = 0
    error_type: str = ""


def emit_verdicts(logger: Logger, verdicts: Iterable[Verdict]) -> None:
    """An event for each, of the first span that shows it. Its time is the end of what it speaks of."""
    from opentelemetry._logs import SeverityNumber

    for verdict in verdicts:
        over = verdict.state == ENDED
        logger.emit(
            timestamp=verdict.end_unix_ns,
            observed_timestamp=time.time_ns(),
            context=_of_span(verdict.links),
            severity_number=SeverityNumber.INFO if over else SeverityNumber.WARN,
            severity_text="INFO" if over else "WARN",
            body=verdict.text,
            attributes={
                **verdict.place,
                **({VERDICT_STATE: verdict.state} if verdict.state else {}),
                **({VERDICT_LINKS: tuple(map("-".join, verdict.links))} if verdict.links else {}),
                VERDICT_CLASS: verdict.kind,
                VERDICT_COST: verdict.cost_s,
                VERDICT_CONFIDENCE: verdict.confidence,
                VERDICT_START: verdict.start_unix_ns * 1e-9,
                VERDICT_DURATION: (verdict.end_unix_ns - verdict.start_unix_ns) * 1e-9,
            },
            event_name=VERDICT,
        )


def _of_span(links: Sequence[tuple[str, str]]) -> Context:
    """What makes an event one of the first of them; of none where there are none."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

    if not links:
        return Context()
    trace_id, span_id = (int(each, 16) for each in links[0])
    return set_span_in_context(NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=True)), Context())


def emit_command(logger: Logger, facts: CommandFacts) -> None:
    """The event that a command has ended."""
    from opentelemetry._logs import SeverityNumber
    from opentelemetry.context import Context

    failed = bool(facts.error_type)
    logger.emit(
        timestamp=time.time_ns(),
        context=Context(),
        severity_number=SeverityNumber.ERROR if failed else SeverityNumber.INFO,
        severity_text="ERROR" if failed else "INFO",
        body=f"otelgpu {facts.name} {'failed' if failed else 'ended'} after {facts.duration_s:.3f} s",
        attributes={
            **_of(facts),
            COMMAND_DURATION: facts.duration_s,
            COMMAND_INPUTS: facts.inputs,
            COMMAND_INPUT_SIZE: facts.input_bytes,
            COMMAND_SKIPPED: sum(facts.skipped.values()),
            COMMAND_VERDICTS: facts.verdicts,
        },
        event_name=COMMAND,
    )


def record_command(meter: Meter, facts: CommandFacts) -> None:
    """The metrics of a command that has ended."""

    def counter(name: str) -> Any:
        _, unit, description = METRICS[name]
        return meter.create_counter(name, unit, description)

    _, unit, description = METRICS[COMMAND_DURATION]
    duration = meter.create_histogram(
        COMMAND_DURATION, unit, description, explicit_bucket_boundaries_advisory=_DURATIONS
    )
    duration.record(facts.duration_s, _of(facts))
    named = {COMMAND_NAME: facts.name}
    counter(COMMAND_INPUTS).add(facts.inputs, named)
    counter(COMMAND_INPUT_SIZE).add(facts.input_bytes, named)
    for reason, count in facts.skipped.items():
        counter(COMMAND_SKIPPED).add(count, {**named, REASON: reason})


def _of(facts: CommandFacts) -> dict[str, str]:
    outcome = {COMMAND_NAME: facts.name, COMMAND_OUTCOME: "error" if facts.error_type else "ok"}
    return {**outcome, ERROR_TYPE: facts.error_type} if facts.error_type else outcome
