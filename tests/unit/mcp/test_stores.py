"""Tables in ClickHouse as an input: said of as of the file with the same rows, and without what is secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed; make setup does it")
pytest.importorskip("duckdb")
pytest.importorskip("chdb", reason="chdb-core is not installed; make setup does it")

from otelgpu.errors import OtelgpuError
from otelgpu.store import open_inputs
from tests.rig.clickhouse_server import PASSWORD, Server, serving
from tests.rig.jobs.simulation import simulate
from tests.rig.jobs.table import write
from tests.unit.mcp.served import toolbox

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("job") / "ops.parquet"
    write(made, simulate("slow compute", 3))
    return made


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    with serving() as found, open_inputs([str(path)]) as here:
        found.engine.copy(here.connection, "simulated")
        yield found


def test_a_store_says_what_the_file_says_and_shows_no_password(
    server: Server, path: Path, tmp_path: Path
) -> None:
    box = toolbox(tmp_path / "made", path, server.url("simulated/ops"))
    store = f"clickhouse://127.0.0.1:{server.port}/simulated/ops"
    answers: dict[str, list[Any]] = {"list_jobs": [], "diagnose_ranks": []}
    listed = box.call("list_inputs", {})
    rows = {each["name"]: each for each in listed["result"]["inputs"]}
    assert (rows[store]["kind"], rows[store]["holds"]) == ("store", ["operations"])
    assert {"tool": "list_jobs", "arguments": {"input": store}} in [
        {key: each[key] for key in ("tool", "arguments")} for each in listed["next"]
    ]
    for tool, said in answers.items():
        said += [box.call(tool, {"input": given}) for given in (str(path), store)]
        here, there = (json.dumps(each["result"])[:400] for each in said)
        assert here == there
        assert all(each["tool"] != "get_trace" for each in said[1]["next"])
    assert "slow" in json.dumps(answers["diagnose_ranks"][1])
    assert PASSWORD not in json.dumps([listed, answers])


def test_what_reads_files_reads_no_store_and_what_reads_spans_no_operations(
    server: Server, tmp_path: Path
) -> None:
    box = toolbox(tmp_path / "made", server.url("simulated/ops"))
    store = f"clickhouse://127.0.0.1:{server.port}/simulated/ops"
    asked = {"list_requests": "there are no spans", "diagnose_stall": "is no file"}
    for tool, said in asked.items():
        with pytest.raises(OtelgpuError, match=said) as raised:
            box.call(tool, {"input": store})
        assert PASSWORD not in str(raised.value)
    with pytest.raises(OtelgpuError, match="there is no input"):  # an address of its own choosing
        box.call("list_jobs", {"input": server.url("simulated/ops")})
