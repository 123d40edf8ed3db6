"""A script in an assistant's place: it knows no tool but the first, follows hints, and has to find what was planted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

pytest.importorskip("mcp", reason="needs the MCP SDK: pip install 'otelgpu[mcp]'")
pytest.importorskip("duckdb")

from tests.unit.mcp.recorded import CASES, record_all
from tests.unit.mcp.served import given, over_streams

MOST_CALLS: Final = 8

pytestmark = pytest.mark.slow


def causes(tool: str, result: Mapping[str, Any]) -> Iterator[str]:
    """What an answer says is the matter; nothing of one that only leads further."""
    if tool.startswith("diagnose_"):
        yield from (each for each in result["sentences"] if not each.startswith(("Nothing", "Inconclusive")))
    if tool == "explain":
        yield from (each["rule"]["problem"] for each in result["log"])
    if tool == "get_trace" and result["detail"]:
        yield from result["detail"]["noticed"]
    if tool == "diff_profiles":
        yield from (kind["changes"][0]["frame"] for kind in result["kinds"])


async def follow(client: Any, containing: str) -> tuple[list[str], list[str]]:
    """(the tools that were called, what the last one says): hints in their order, those of an answer before older."""
    calls, due = [], [{"tool": "list_inputs", "arguments": {"containing": containing}}]
    while due and len(calls) < MOST_CALLS:
        hint = due.pop(0)
        calls.append(hint["tool"])
        done = await client.call_tool(hint["tool"], hint["arguments"])
        if done.is_error:
            continue
        answer = given(done)
        if said := list(causes(hint["tool"], answer["result"])):
            return calls, said
        due = [*answer["next"], *due]
    return calls, []


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[list[str], list[str]]]:
    """What the script came to in each case, of all recordings at once."""
    folder = tmp_path_factory.mktemp("recorded") / "cases"
    record_all(folder)

    async def run() -> Mapping[str, tuple[list[str], list[str]]]:
        async with over_streams(folder) as client:
            return {name: await follow(client, f"case-{name}") for name in CASES}

    return anyio.run(run)


@pytest.mark.parametrize("name", CASES)
def test_hints_lead_to_what_was_planted(
    name: str, reached: Mapping[str, tuple[list[str], list[str]]]
) -> None:
    calls, said = reached[name]
    assert said, calls
    assert all(each in said[0] for each in CASES[name].says), said


def test_there_are_ten_and_no_two_say_the_same(reached: Mapping[str, tuple[list[str], list[str]]]) -> None:
    assert len(reached) >= 10
    assert len({said[0] for _, said in reached.values()}) == len(reached)


def test_a_healthy_job_leads_to_nothing(tmp_path: Path) -> None:
    from tests.rig.jobs.simulation import HEALTHY, simulate
    from tests.rig.jobs.table import write
    from tests.unit.mcp.recorded import SHAPE

    write(tmp_path / "healthy.parquet", simulate(HEALTHY, 4, SHAPE))

    async def run() -> None:
        async with over_streams(tmp_path / "healthy.parquet") as client:
            calls, said = await follow(client, "")
            assert calls[-1] == "diagnose_ranks" and said == []

    anyio.run(run)
