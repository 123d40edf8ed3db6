"""The programs of the gallery as they were recorded: what is said of them, and what the manual says of that."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest

from otelgpu.diagnose.stall.verdicts import StallReport
from tests.gallery.cases import CASES
from tests.gallery.recordings import FOLDER, judge, read
from tests.gallery.results import NOTHING, label, recorded_results, said_of
from tests.rig import ROOT

LEAST = 0.95
"""Share of the programs with a fault whose cause is to be named first."""
SCHEMA = json.loads((ROOT / "docs" / "reference" / "stall.schema.json").read_bytes())
VALID = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)


def document(report: StallReport) -> dict[str, object]:
    """As ``--json`` writes it."""
    made: dict[str, object] = json.loads(json.dumps(msgspec.to_builtins(report)))
    return made


@pytest.fixture(scope="module")
def reports() -> dict[str, StallReport]:
    """Of all programs."""
    return {name: judge(read(FOLDER / f"{name}.json.xz")) for name in CASES}


def test_every_program_was_recorded_and_no_other() -> None:
    assert {path.name.partition(".")[0] for path in FOLDER.glob("*.xz")} == CASES.keys()
    assert sum(1 for case in CASES.values() if case.cause) >= 24


def test_the_manual_says_of_each_what_is_said_now(reports: dict[str, StallReport]) -> None:
    said = {name: said_of(report).cause for name, report in reports.items()}
    assert said == {name: each.named for name, each in recorded_results().programs.items()}


def test_the_cause_is_named_first_and_nothing_is_said_of_the_healthy(reports: dict[str, StallReport]) -> None:
    said = {name: said_of(report) for name, report in reports.items()}
    healthy = {name for name, case in CASES.items() if label(case) == NOTHING}
    assert [said[name].text for name in healthy if said[name].cause != NOTHING] == []
    wrong = [name for name in CASES if name not in healthy and said[name].faults(CASES[name])]
    assert len(wrong) <= (1 - LEAST) * (len(CASES) - len(healthy)), wrong


def test_documents_are_as_their_schema_says(reports: dict[str, StallReport]) -> None:
    for name, report in reports.items():
        VALID.validate(document(report))
        assert report.verdicts or label(CASES[name]) == NOTHING
    for wrong in ({"verdicts": []}, {**document(reports["gil"]), "table": [{"cause": 7}]}):
        with pytest.raises(jsonschema.ValidationError):
            VALID.validate(wrong)


def test_what_every_step_has_alike_is_told_by_the_step(reports: dict[str, StallReport]) -> None:
    """Eight files of 4.2 MB in each."""
    assert "reads 33.6 MB of sample-*.bin" in said_of(reports["torch_loader"]).sentence
