"""Names that only steps, and what requests got of them, use. Documented in docs/reference/signals.md.

``gen_ai.latency.*`` are those that vLLM and SGLang put on their own spans of requests, in seconds.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "otelgpu.engine"
STEP: Final = "engine.step"
"""Name of a step's span."""

NUMBER: Final = "otelgpu.step.number"
"""Of the steps of its thread, from 1."""

MEMBERSHIP: Final = "otelgpu.step.membership"
"""``known``, ``ambiguous`` (there may be more members) or ``unreported`` (no message reports tokens of it)."""

BATCH_SIZE: Final = "otelgpu.step.batch_size"
"""Requests that the step gave tokens to; absent where they are not all known."""

TOKENS: Final = "otelgpu.step.tokens"
"""Tokens that it gave: on a step to all of them, on a link to one request."""

PREFILLS: Final = "otelgpu.step.prefills"
"""Requests that got their first token."""

DECODES: Final = "otelgpu.step.decodes"
"""Requests that got a further token."""

WAIT: Final = "otelgpu.step.wait.duration"
"""Host time in synchronisation and in copies to the host that wait. The GPU was busy for some of it, and may have
been for some of the rest."""

GAP: Final = "otelgpu.step.gap.duration"
"""Time before the step in which its thread had none under way."""

MBU: Final = "otelgpu.step.mbu"
"""Model bandwidth utilisation: bytes of weights / duration / peak memory bandwidth. A lower bound: host time, and the
KV cache is not counted."""

HINTS: Final = "otelgpu.hints"
"""Why the GPU may have been used little: see :mod:`otelgpu.families.steps.hints`."""

HINT_EVIDENCE: Final = "otelgpu.hint."
"""Before a hint's name: the share that raised it."""

QUEUE_LATENCY: Final = "gen_ai.latency.time_in_queue"
PREFILL_LATENCY: Final = "gen_ai.latency.time_in_model_prefill"
DECODE_LATENCY: Final = "gen_ai.latency.time_in_model_decode"
INFERENCE_LATENCY: Final = "gen_ai.latency.time_in_model_inference"

STEPS: Final = "otelgpu.steps.count"
"""Steps that gave the request tokens."""

STEPS_SOURCE: Final = "otelgpu.steps.source"
"""How they are known: ``message``, or ``step`` (time order)."""

STEPS_UNATTRIBUTED: Final = "otelgpu.steps.unattributed"
"""Outputs of the request of which the step is not known."""

STEPS_BATCH_SIZE: Final = "otelgpu.steps.mean_batch_size"
STEPS_TOKEN_SHARE: Final = "otelgpu.steps.mean_token_share"
"""The request's part of a step's tokens, over the steps whose members are all known."""

STEPS_LAUNCHES: Final = "otelgpu.steps.shared_launches"
"""Launches of the steps that served the request, which others were served by too: not its own."""

STEPS_TIME: Final = "otelgpu.steps.attributed_time"
"""Sum over steps of duration x the request's part of the tokens, in seconds: an estimate of its part of the work."""
