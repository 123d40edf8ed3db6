"""Records of family file become operations of kind FILE; what is slowest, and what is not known."""

from __future__ import annotations

import numpy as np
import pytest

from otelgpu.engine.metrics import Metrics
from otelgpu.families.profiles.storage import file_calls as file_session
from otelgpu.families.profiles.storage.decode import FileDecoder
from otelgpu.families.profiles.storage.file_calls import FileSession
from otelgpu.kernel.loader import read_image
from otelgpu.model.files import FileCall
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind
from otelgpu.model.resource import resource

RECORD = read_image("file").btf.dtype("file_call")


def batch(*calls: dict[str, object], kind: str = "file_call") -> Batch:
    records = np.zeros(len(calls), dtype=RECORD)
    for record, call in zip(records, calls, strict=True):
        head = {"time_ns": 10, "duration_ns": 5, "tgid": 100, "tid": 101}
        for name in head | {key: value for key, value in call.items() if key in RECORD["head"].names}:
            record["head"][name] = (head | call)[name]
        for name in set(call) & set(RECORD.names or ()):
            record[name] = call[name]
    return Batch(family="file", kind=kind, records=records)


def test_a_call_is_what_the_record_says() -> None:
    found = FileDecoder().files(
        batch(
            {"api": FileCall.READ, "inode": 7, "device": 3, "bytes": 4096, "name": b"shard.tar"},
            {"api": FileCall.SYNC, "inode": 7, "device": 4, "status": -5, "name": b"w\xff.pt", "tid": 102},
            {"api": 99, "name": b"unknown"},
        )
    )
    rows = found.rows
    assert rows["kind"].tolist() == [OperationKind.FILE] * 2
    assert rows["api"].tolist() == [FileCall.READ, FileCall.SYNC]
    assert (rows["size_bytes"].tolist(), rows["status"].tolist()) == ([4096, 0], [0, -5])
    assert (rows["start_ns"].tolist(), rows["duration_ns"].tolist()) == ([10, 10], [5, 5])
    assert (rows["tgid"].tolist(), rows["tid"].tolist()) == ([100, 100], [101, 102])
    first, second = rows["handle"].tolist()
    assert found.names == {first: "shard.tar", second: "w\N{REPLACEMENT CHARACTER}.pt"}


def test_records_of_other_kinds_are_nothing() -> None:
    found = FileDecoder().files(batch({"api": FileCall.READ}, kind="file_new"))
    assert (len(found.rows), found.names) == (0, {})


def test_calls_are_measured_by_process_and_operation_and_few_names_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_session, "NAMES", 2)
    metrics = Metrics(0)
    session = FileSession(metrics, lambda tgid: resource({"process.pid": tgid}))
    calls = [
        {"api": FileCall.READ, "inode": 1, "bytes": 10, "name": b"a"},
        {"api": FileCall.READ, "inode": 2, "bytes": 20, "name": b"b"},
        {"api": FileCall.WRITE, "inode": 3, "bytes": 40, "name": b"c"},
        {"api": FileCall.READ, "inode": 3, "bytes": 80, "name": b"c", "tgid": 200},
    ]
    found = FileDecoder().files(batch(*calls))
    session.take(found)
    reported = {
        (pid.value.int_value, point.attributes[0].value.string_value): point.as_int
        for owner in metrics.read(1)[0].resource_metrics
        for pid in owner.resource.attributes
        for scope in owner.scope_metrics
        for metric in scope.metrics
        if metric.name == "otelgpu.file.io"
        for point in metric.sum.data_points
    }
    assert reported == {(100, "read"): 30, (100, "write"): 40, (200, "read"): 80}
    assert [session.name(handle) for handle in found.rows["handle"].tolist()] == ["", "b", "c", "c"]
