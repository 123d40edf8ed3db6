"""What names of steps mean, and the hints that they may have."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import Described, Descriptions, Table
from otelgpu.families.steps import names
from otelgpu.families.steps.hints import HINTS

DESCRIPTIONS: Final = Descriptions(
    attributes={
        "otelgpu.step.number": Described("Of the steps of its thread, from 1.", "412"),
        "otelgpu.step.membership": Described(
            "`known`: the linked requests are exactly those that got tokens; `ambiguous`: there may be more; "
            "`unreported`: no message reports tokens of it.",
            "known",
        ),
        "otelgpu.step.batch_size": Described("Requests that got tokens; where membership is known.", "8"),
        "otelgpu.step.tokens": Described(
            "Tokens given: on a step to all its requests, on a link to one.", "8"
        ),
        "otelgpu.step.prefills": Described("Requests that got their first token.", "1"),
        "otelgpu.step.decodes": Described("Requests that got a further token.", "7"),
        "otelgpu.step.wait.duration": Described(
            "Seconds of host time in waits. The GPU was busy for some of it, and may have been for some "
            "of the rest.",
            "0.0091",
        ),
        "otelgpu.step.gap.duration": Described(
            "Seconds before the step in which its thread had none under way.", "0.00031"
        ),
        "otelgpu.step.mbu": Described(
            "Model bandwidth utilisation of a step that only decodes: `model_bytes` / duration / "
            "`memory_bandwidth`. A lower bound: the duration is the host's, and the KV cache is not counted.",
            "0.41",
        ),
        "otelgpu.hints": Described("Why the GPU may have been used little: see below.", '["host_overhead"]'),
        "otelgpu.hint.blocking_copies": Described("The share that raised the hint.", "0.2"),
        "otelgpu.hint.synchronous_launches": Described("Likewise.", "0.9"),
        "otelgpu.hint.host_overhead": Described("Likewise.", "0.4"),
        "otelgpu.steps.count": Described("Steps that gave the request tokens.", "64"),
        "otelgpu.steps.source": Described(
            "How they are known: `message` (the engine said so), or `step` (order of time).", "message"
        ),
        "otelgpu.steps.unattributed": Described(
            "Outputs of the request of which the step is not known.", "2"
        ),
        "otelgpu.steps.mean_batch_size": Described("Over the steps whose requests are all known.", "7.5"),
        "otelgpu.steps.mean_token_share": Described("The request's part of those steps' tokens.", "0.13"),
        "otelgpu.steps.shared_launches": Described(
            "Launches of its steps: shared with all others that they served, not its own.", "20480"
        ),
        "otelgpu.steps.attributed_time": Described(
            "Sum of step duration × its part of the step's tokens, in seconds: an estimate of its part of the work.",
            "0.21",
        ),
        "gen_ai.latency.time_in_model_inference": Described("Seconds in prefill and decode together.", "1.9"),
    },
    tables={
        "hints": Table(
            header=(f"`{names.HINTS}`", "Evidence", "What it is a share of", "From"),
            rows=lambda: [
                (f"`{name}`", f"`{names.HINT_EVIDENCE}{name}`", hint.description, f"{hint.least:g}")
                for name, hint in HINTS.items()
            ],
        )
    },
)
