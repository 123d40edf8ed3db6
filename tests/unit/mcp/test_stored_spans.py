"""Spans in ClickHouse: requests and traces are answered as of the file with the same spans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

pytest.importorskip("mcp", reason="the extra mcp is not installed; make setup does it")
pytest.importorskip("duckdb")
pytest.importorskip("chdb", reason="chdb-core is not installed; make setup does it")

from otelgpu.cli.mcp.stored_values import restored
from otelgpu.cli.mcp.tools import Toolbox
from otelgpu.cli.profile_inputs import replay_capture
from otelgpu.config import Config
from otelgpu.export.file.exporter import FileExporter
from otelgpu.store.clickhouse import traces as stored_traces
from tests.rig.clickhouse_server import PASSWORD, Server, serving
from tests.rig.clickhouse_spans import fill_spans
from tests.unit.mcp.recorded import GOLDEN
from tests.unit.mcp.served import toolbox
from tests.unit.view.otlp_lines import MS, attributes, span, traces

pytestmark = pytest.mark.slow

REQUEST, STEP = 0x11, 0x12


def made() -> list[bytes]:
    """A request with all that a span may have, which a step of another trace links to."""
    leading = {"traceId": f"{REQUEST:032x}", "spanId": f"{REQUEST:016x}"}
    request = span(
        REQUEST,
        "POST /v1/chat/completions",
        trace=REQUEST,
        kind=2,
        ns=90 * MS,
        given={
            "gen_ai.request.model": "it's a \\ model",
            "gen_ai.latency.time_to_first_token": 2.0,
            "otelgpu.gen_ai.request.energy": 1.5,
            "gen_ai.usage.output_tokens": 12,
            "gen_ai.prompt": "a secret",
            "otelgpu.hints": ["host_overhead"],
            "otelgpu.hint.host_overhead": 1.0,
            "network.protocol.version": "1.1",
        },
        events=[
            {
                "timeUnixNano": "1795000000000000007",
                "name": "begun",
                "attributes": attributes({"thread.id": 7}),
            }
        ],
        links=[
            {
                "traceId": f"{STEP:032x}",
                "spanId": f"{STEP:016x}",
                "attributes": attributes({"otelgpu.count": 3}),
            }
        ],
        status={"code": 2, "message": "no"},
    )
    others = [{"traceId": f"{STEP:032x}", "spanId": f"{number:016x}"} for number in range(100, 140)]
    step = span(
        STEP,
        "step",
        trace=STEP,
        at=MS,
        links=[*others, {**leading, "attributes": attributes({"otelgpu.phase": "decode"})}],
    )
    return [
        traces(request),
        traces(step, scope="otelgpu.step", **{"service.name": "engine", "process.pid": 7}),
    ]


class Both(Struct):
    """The same spans in a file and in a store."""

    box: Toolbox
    path: str
    store: str

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What is said of the file, which is what is said of the store."""
        here = self.box.call(tool, {"input": self.path, **arguments})
        there = json.dumps(self.box.call(tool, {"input": self.store, **arguments}))
        assert PASSWORD not in there
        assert json.loads(there.replace(self.store, self.path)) == json.loads(json.dumps(here))
        return here


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is made, and the spans of two captures."""
    path = tmp_path_factory.mktemp("seen") / "seen.jsonl"
    for name in ("llm_session", "training_job"):
        replay_capture(GOLDEN / f"{name}.capture", Config(), [FileExporter(str(path))])
    with path.open("ab") as file:
        file.writelines(made())
    return path


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    with serving() as found:
        fill_spans(found.engine, "seen", path.read_bytes().splitlines())
        yield found


@pytest.fixture
def both(server: Server, path: Path, tmp_path: Path) -> Both:
    box = toolbox(tmp_path / "made", path, server.url("seen"))
    return Both(box, str(path), f"clickhouse://127.0.0.1:{server.port}/seen/otel_traces")


@pytest.mark.parametrize(
    ("arguments", "matching"),
    [
        ({}, 5),
        ({"sort": "time_to_first_token"}, 5),
        ({"sort": "energy"}, 5),
        ({"sort": "newest", "limit": 2, "offset": 1}, 5),
        ({"only_errors": True, "role": "server"}, 3),
        ({"role": "client"}, 0),
        ({"model": "'s a \\"}, 1),
        ({"name": "chat/completions", "service": "llm"}, 1),
        ({"least_seconds": 0.09}, 1),
        ({"begin_unix_s": 1e11}, 0),
    ],
)
def test_requests_are_those_of_the_file(both: Both, arguments: dict[str, Any], matching: int) -> None:
    assert both.call("list_requests", **arguments)["result"]["matching"] == matching


def test_a_trace_is_that_of_the_file_in_outline_and_span_by_span(both: Both) -> None:
    _, longest, *_ = both.call("list_requests")["result"]["requests"]
    found = both.call("get_trace", trace_id=longest["trace_id"], depth=6)["result"]
    assert found["spans"] == 12
    rows = found["outline"]
    details = [
        both.call("get_trace", trace_id=longest["trace_id"], span_id=row["span_id"])["result"]["detail"]
        for row in rows[:4]
    ]
    assert all(detail["attributes"] for detail in details)


def test_events_links_and_who_links_are_those_of_the_file(both: Both) -> None:
    found = both.call("get_trace", trace_id=f"{REQUEST:032x}", span_id=f"{REQUEST:016x}")["result"]["detail"]
    assert [each["name"] for each in (*found["events"], *found["links"], *found["linked_from"])] == [
        "begun",
        "step",
        "step",
    ]
    assert found["linked_from"][0]["attributes"] == {"otelgpu.phase": "decode"}
    assert found["noticed"][0].startswith("host_overhead: 100%")
    assert found["withheld"] == ["gen_ai.prompt"]
    assert "a secret" not in json.dumps(found)
    both.call("get_trace", trace_id=f"{STEP:032x}", span_id=f"{STEP:016x}")


def test_more_than_is_looked_at_is_told(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    _, longest, *_ = both.call("list_requests")["result"]["requests"]
    monkeypatch.setattr(stored_traces, "MOST_REQUESTS", 2)
    monkeypatch.setattr(stored_traces, "MOST_SPANS", 3)
    found = both.box.call("list_requests", {"input": both.store})
    assert found["result"]["matching"] == 2
    assert found["cut"][0].startswith("of 5 requests the newest 2 were looked at")
    trace = both.box.call("get_trace", {"input": both.store, "trace_id": longest["trace_id"]})
    assert trace["cut"][0] == "of 12 spans of the trace the first 3 were looked at"


def test_what_a_table_holds_leads_to_the_tools_that_read_it(both: Both) -> None:
    found = both.box.call("list_inputs", {})
    (row,) = (each for each in found["result"]["inputs"] if each["name"] == both.store)
    assert row["holds"] == ["spans", "operations"]
    assert {"list_requests", "list_jobs"} <= {
        each["tool"] for each in found["next"] if each["arguments"]["input"] == both.store
    }


def test_a_server_that_is_not_there_is_told_among_inputs(tmp_path: Path) -> None:
    found = toolbox(tmp_path / "made", "clickhouse://127.0.0.1:1/seen").call("list_inputs", {})
    assert found["result"]["inputs"][0]["holds"] == []
    assert "cannot be asked" in found["cut"][0]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("thread.id", "4071", 4071),
        ("thread.id", "007", "007"),
        ("thread.id", "9" * 19, "9" * 19),
        ("otelgpu.host.duration", "0.000912", 0.000912),
        ("otelgpu.host.duration", "1e-07", 1e-7),
        ("otelgpu.merged", "true", True),
        ("otelgpu.hints", '["host_overhead"]', ["host_overhead"]),
        ("otelgpu.hints", "[" * 50_000 + "]" * 50_000, "[" * 50_000 + "]" * 50_000),
        ("gen_ai.response.model", "7", "7"),
        ("nobody.describes.it", "7", "7"),
    ],
)
def test_values_are_what_they_were(key: str, text: str, value: object) -> None:
    found = restored(key, text)
    assert (found, type(found)) == (value, type(value))
