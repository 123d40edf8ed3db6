"""The demo's diagnosis, from profiles that were made by hand: it is said only where it is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from examples.demo_profile import Observation, diagnose, problems
from otelgpu.families.profiles.names import FILE_CALL, FILE_NAME

MS = 1_000_000
PYTHON = ("training_loop.py:50 write_checkpoint", "training_loop.py:70 train")


def truth(*steps: int) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "span_id": f"{step:016x}",
            "checkpoint": f"/data/checkpoint-{step}.bin",
            "write_s": 0.02,
            "fsync_s": 0.03,
        }
        for step in steps
    ]


def observed(*steps: int, **changes: Any) -> Iterator[Observation]:
    for step in steps:
        for call, ns in (("write", 20 * MS), ("sync", 30 * MS)):
            yield Observation(
                **{
                    "type": "file_time",
                    "value": ns,
                    "frames": (f"[{call}]", *PYTHON),
                    "span_id": f"{step:016x}",
                    "attributes": {FILE_CALL: call, FILE_NAME: f"checkpoint-{step}.bin"},
                    **changes,
                }
            )
        yield Observation(
            type="off_cpu", value=29 * MS, frames=("io_schedule", *PYTHON), span_id="", attributes={}
        )


def test_a_complete_diagnosis_agrees() -> None:
    reported = diagnose(observed(4, 9))
    assert problems(reported, truth(4, 9)) == []
    assert reported.lines == {PYTHON[0]: 100 * MS}
    assert reported.waits == {("io_schedule", *PYTHON): 58 * MS}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lambda: observed(4), "files:"),
        (lambda: observed(4, 9, value=90 * MS), "write:"),
        (lambda: observed(4, 9, frames=("other.py:1 other",)), "no off-CPU stack|files:"),
        (lambda: observed(4, 9, span_id="0" * 15 + "7"), "steps:"),
        (lambda: observed(4, 9, attributes={FILE_CALL: "sync", FILE_NAME: "checkpoint-4.bin"}), "write:"),
        (lambda: (each for each in observed(4, 9) if each.type != "off_cpu"), "no off-CPU stack"),
        (lambda: iter(()), "files:"),
    ],
)
def test_what_is_not_there_or_wrong_is_said(found: Any, said: str) -> None:
    assert any(
        word in problem for problem in problems(diagnose(found()), truth(4, 9)) for word in said.split("|")
    )


def test_the_first_step_may_be_missed_and_no_other() -> None:
    first = [*observed(4, span_id=""), *observed(9, 14)]
    assert problems(diagnose(iter(first)), truth(4, 9, 14)) == []
    second = [*observed(4), *observed(9, span_id=""), *observed(14)]
    assert problems(diagnose(iter(second)), truth(4, 9, 14)) == ["steps: 1 of 3 missed, 0 wrong"]
