"""What is reported of a switch, and why one is refused."""

from __future__ import annotations

from typing import Final

from otelgpu.model.losses import Reasons

EVENT: Final = "otelgpu.switch"
STATE: Final = "otelgpu.switch.state"
REASON: Final = "otelgpu.switch.reason"
VALUE: Final = "otelgpu.switch.value"
MANAGER: Final = "otelgpu.switch.manager"
ANNOTATION: Final = "otelgpu.switch.annotation"
SAMPLES: Final = "otelgpu.switch.samples"
FILE: Final = "otelgpu.switch.file"

BEGAN: Final = "began"
ENDED: Final = "ended"
REFUSED: Final = "refused"

OVER: Final = "over"
WITHDRAWN: Final = "withdrawn"
AGENT_ENDED: Final = "agent_ended"
FAILED: Final = "failed"
"""Why one ended; the last: of a profile."""

MALFORMED: Final = "malformed"
TOO_LONG: Final = "too_long"
TOO_MANY: Final = "too_many"
TOO_SOON: Final = "too_soon"
NOT_MORE: Final = "not_more"
PAST: Final = "past"

REASONS: Final = Reasons(
    "switches",
    {
        MALFORMED: "annotations that are none of `ops TIME`, `all TIME`",
        TOO_LONG: "annotations that ask for longer than `switch_longest_s`",
        TOO_MANY: "annotations that came while `switch_at_once` pods had more detail",
        TOO_SOON: "annotations of a pod less than `switch_pause_s` after its last one began",
        NOT_MORE: "annotations that ask for no more detail than all pods have",
        PAST: "annotations that are older than the time that they ask for",
        "events_withheld": "refusals beyond 20 a minute: they are counted, and have no event",
    },
    intended=(MALFORMED, TOO_LONG, TOO_MANY, TOO_SOON, NOT_MORE, PAST, "events_withheld"),
)
"""What one count of (``switches``, reason) means."""
