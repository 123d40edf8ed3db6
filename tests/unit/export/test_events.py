"""Events of a session: the same in a file, over OTLP, on the console and in memory, and each is accounted for."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from otelgpu.export.base import Accepted, EventExporter, Exporter, Signal
from otelgpu.export.console.exporter import MAX_EVENT, ConsoleExporter
from otelgpu.export.file.exporter import FileExporter
from otelgpu.export.logs import logs_data
from otelgpu.export.memory import MemoryExporter
from otelgpu.export.otlp.responses import partial_success
from otelgpu.model.events import Event
from otelgpu.model.resource import AttributeValue, resource
from otelgpu.otlp_json.log_reader import read_events
from otelgpu.otlp_json.reader import Reader

VALUES: dict[str, AttributeValue] = {
    "text": "x",
    "number": -(2**63),
    "real": 0.5,
    "flag": True,
    "texts": ("a", "b"),
    "none": (),
}


def event(text: str = "it happened", pid: int = 1, *, warns: bool = True) -> Event:
    return Event(
        name="otelgpu.test",
        time_unix_ns=5,
        text=text,
        attributes=VALUES,
        resource=resource({"process.pid": pid}),
        warns=warns,
    )


def test_a_file_has_them_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    exporter = FileExporter(str(path))
    given = [event(), event("again", warns=False), event(pid=2)]
    exporter.export_events(given)
    exporter.close(1)
    assert list(read_events(path.read_bytes().split(b"\n"), Reader())) == given
    assert exporter.stats()["events_accepted"] == exporter.stats()["events_given"] == 3
    assert [each.accepted for each in exporter.deliveries() if each.events] == [3]


def test_what_no_utf_8_can_carry_is_replaced() -> None:
    data = logs_data([event("a\ud800b")])
    assert data.resource_logs[0].scope_logs[0].log_records[0].body.string_value == "a?b"


def test_the_message_is_a_request_by_resource() -> None:
    body = logs_data([event(), event(pid=2), event()]).SerializeToString()
    request = ExportLogsServiceRequest.FromString(body)
    assert [len(each.scope_logs[0].log_records) for each in request.resource_logs] == [2, 1]


def test_a_server_may_reject_some() -> None:
    answer = ExportLogsServiceResponse(partial_success={"rejected_log_records": 2, "error_message": "no"})  # type: ignore[arg-type]
    assert partial_success(Signal.LOGS, answer.SerializeToString()) == Accepted(2, "no")


def test_the_console_prints_each_at_once_and_no_more_of_it_than_there_is_room_for() -> None:
    stream = io.StringIO()
    exporter = ConsoleExporter(stream)
    exporter.export_events([event("first \x1b[31m"), event("x" * 2 * MAX_EVENT)])
    first, second = stream.getvalue().splitlines()
    assert first.startswith("first ") and "\x1b" not in first and len(second) == MAX_EVENT
    assert exporter.stats()["events_accepted"] == 2


def test_a_stream_that_takes_nothing_is_counted() -> None:
    stream = io.StringIO()
    exporter = ConsoleExporter(stream)
    stream.close()
    exporter.export_events([event()])
    assert exporter.stats()["events_lost_write_failed"] == 1


@pytest.mark.parametrize("bound", [1, 2])
def test_memory_keeps_as_many_as_it_may(bound: int) -> None:
    exporter: Exporter = MemoryExporter(bound)
    assert isinstance(exporter, EventExporter)
    exporter.export_events([event()])
    exporter.export_events([event("second")])
    assert (exporter.stats()["events_accepted"], exporter.stats()["events_given"]) == (bound, 2)
