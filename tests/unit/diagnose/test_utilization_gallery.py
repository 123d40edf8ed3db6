"""The programs of the gallery of low utilisation as they were recorded: what is said of them now."""

from __future__ import annotations

import pytest

from tests.gallery.recorded_jobs import FOLDER, judge
from tests.gallery.utilization import CASES, NOTHING, said_in

RECORDED = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.xz"))


def test_every_program_is_recorded_or_run() -> None:
    assert set(RECORDED) <= CASES.keys()
    assert [name for name, case in CASES.items() if not (case.live or name in RECORDED)] == []


@pytest.mark.parametrize("name", RECORDED)
def test_the_cause_is_named_first_and_nothing_is_said_of_the_healthy(name: str) -> None:
    said, case = said_in(judge(FOLDER / f"{name}.json.xz")), CASES[name]
    assert said.cause == (case.cause or NOTHING), said.text
    for each in case.says:
        assert each in said.text
