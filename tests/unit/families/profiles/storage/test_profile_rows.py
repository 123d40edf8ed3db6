"""System calls, calls on files and block requests as rows; and what requests to devices make of metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.engine.metrics import Metrics
from otelgpu.engine.profile_rows import ProfileRows
from otelgpu.families.profiles import syscalls as profile_syscalls
from otelgpu.families.profiles.samples import SampleProfiles
from otelgpu.families.profiles.storage import profile_rows as profile_storage
from otelgpu.families.profiles.storage.block import BlockSession
from otelgpu.model.files import FileCall
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.resource import resource
from otelgpu.model.samples import FILE_SHIFT, GROUP_SHIFT, OPERATION_SHIFT, SampleKind
from tests.unit.families.profiles.profile_builders import sampled

VDA = 254 << 20
ALL = ProfileSettings(kinds=frozenset(ProfileKind))


def named(kind: int, number: int) -> str:
    return {SampleKind.FILE: "/srv/run/checkpoint.bin", SampleKind.BLOCK: "vda"}[SampleKind(kind)]


def reported(
    kind: SampleKind, *rows: dict[str, Any], names: Any = named, settings: ProfileSettings = ALL
) -> dict[str, ProfileRows]:
    profiles = SampleProfiles(settings)
    profiles.take(sampled(kind, *rows), names)
    return {each.sample_type.type: each for each in profiles.report(final=True)}


def leaves(found: ProfileRows) -> list[str]:
    return [found.leaves[number - 1][0].name for number in found.rows["leaf"].tolist()]


def test_system_calls_are_time_and_how_many_with_their_names_as_leaves() -> None:
    found = reported(
        SampleKind.SYSCALL,
        {"other": 74, "value": 900, "size_bytes": 1, "stack": 5},
        {"other": 110, "value": 70, "size_bytes": 640, "stack": 6},
        {"other": 110, "value": 1, "size_bytes": 0, "stack": 0},
    )
    assert found["syscall_time"].rows["value"].tolist() == [900, 70, 1]
    assert found["syscalls"].rows["value"].tolist() == [1, 640, 1]
    assert leaves(found["syscalls"]) == ["[syscall fsync]", "[syscall getppid]", "[syscall getppid]"]
    assert found["syscalls"].rows["stack"].tolist() == [5, 6, 0]
    assert found["syscalls"].labels[0] == (("otelgpu.syscall.name", "fsync"),)


def test_hostile_numbers_of_system_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_syscalls, "DIFFERENT", 2)
    found = reported(SampleKind.SYSCALL, *({"other": 10**6 + number} for number in range(5)))["syscalls"]
    assert (
        leaves(found) == ["[syscall syscall 1000000]", "[syscall syscall 1000001]"] + ["[syscall others]"] * 3
    )


def test_a_call_on_a_file_says_what_was_done_to_which_and_how_many_bytes() -> None:
    found = reported(
        SampleKind.FILE, {"other": 7 << FILE_SHIFT | FileCall.WRITE, "value": 5_000, "size_bytes": 4096}
    )
    assert leaves(found["file_time"]) == ["[write checkpoint.bin]"]
    assert found["file_time"].rows["value"].tolist() == [5_000]
    assert found["file_bytes"].rows["value"].tolist() == [4096]
    assert dict(found["file_time"].labels[0]) == {
        "otelgpu.file.call": "write",
        "file.name": "checkpoint.bin",
        "file.path": "/srv/run/checkpoint.bin",
    }


def test_a_file_that_was_deleted_keeps_its_name() -> None:
    found = reported(
        SampleKind.FILE,
        {"other": 7 << FILE_SHIFT | FileCall.SYNC},
        names=lambda kind, number: "/srv/a.bin (deleted)",
    )
    assert leaves(found["file_time"]) == ["[sync a.bin]"]
    assert dict(found["file_time"].labels[0])["file.path"] == "/srv/a.bin (deleted)"


def test_a_file_without_a_name_is_a_file_and_an_unknown_call_is_its_number() -> None:
    found = reported(SampleKind.FILE, {"other": 7 << FILE_SHIFT | 99}, names=lambda kind, number: "")
    assert leaves(found["file_time"]) == ["[call 99 a file]"]
    assert dict(found["file_time"].labels[0]) == {"otelgpu.file.call": "call 99"}


@pytest.mark.parametrize(
    ("operation", "name", "leaf"),
    [
        (1, "vda", "[block vda write]"),
        (0, "", "[block 254:0 read]"),
        (77, "vda", "[block vda operation 77]"),
    ],
)
def test_a_request_says_its_device_and_operation(operation: int, name: str, leaf: str) -> None:
    found = reported(
        SampleKind.BLOCK,
        {"other": operation << OPERATION_SHIFT | VDA, "size_bytes": 512},
        names=lambda kind, number: name,
    )
    assert leaves(found["block_time"]) == [leaf]
    assert found["block_bytes"].rows["value"].tolist() == [512]


def test_what_is_written_back_says_for_which_control_group() -> None:
    names = {2 << GROUP_SHIFT: "pod.slice", 3 << GROUP_SHIFT: ""}
    found = reported(
        SampleKind.BLOCK,
        *({"other": group << GROUP_SHIFT | 1 << OPERATION_SHIFT | VDA} for group in (0, 2, 3)),
        names=lambda kind, number: names.get(number, "vda"),
    )["block_time"]
    assert leaves(found) == [
        "[block vda write]",
        "[block vda write back for pod.slice]",
        "[block vda write back for group 3]",
    ]
    assert [dict(each).get("otelgpu.block.written_back_for") for each in found.labels] == [
        None,
        "pod.slice",
        "group 3",
    ]


def test_more_files_than_have_leaves_of_their_own_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_storage, "DIFFERENT", 1)
    found = reported(SampleKind.FILE, *({"other": number << FILE_SHIFT | 1} for number in range(3)))[
        "file_time"
    ]
    assert leaves(found) == ["[read checkpoint.bin]", "[other files]", "[other files]"]


@pytest.mark.parametrize("kind", [SampleKind.SYSCALL, SampleKind.FILE, SampleKind.BLOCK])
def test_kinds_that_were_not_asked_for_are_nothing(kind: SampleKind) -> None:
    settings = ProfileSettings(kinds=frozenset((ProfileKind.CPU,)))
    assert reported(kind, {"other": 1}, settings=settings) == {}


def test_requests_are_measured_by_process_device_and_operation() -> None:
    metrics = Metrics(0)
    session = BlockSession(metrics, lambda tgid: resource({"process.pid": tgid}))
    write = 1 << OPERATION_SHIFT | VDA
    requests = sampled(
        SampleKind.BLOCK,
        {"tgid": 10, "other": write, "value": 2_000_000, "size_bytes": 4096},
        {"tgid": 10, "other": write, "value": 4_000_000, "size_bytes": 4096},
        {"tgid": 20, "other": VDA, "value": 1_000_000, "size_bytes": 0},
    )
    session.take(np.concatenate([requests, sampled(SampleKind.FILE, {"other": 1})]), named)
    read, _ = metrics.read(1)
    found: dict[tuple[int, str, str, str], tuple[float, float]] = {}
    for of_process in read.resource_metrics:
        tgid = of_process.resource.attributes[0].value.int_value
        for metric in of_process.scope_metrics[0].metrics:
            measured = [
                *(
                    (point.attributes, (point.count, round(point.sum, 6)))
                    for point in metric.histogram.data_points
                ),
                *((point.attributes, (point.as_int, 0.0)) for point in metric.sum.data_points),
            ]
            for attributes, values in measured:
                labels = {each.key: each.value.string_value for each in attributes}
                device, operation = labels["otelgpu.block.device"], labels["otelgpu.block.operation"]
                found[tgid, metric.name, device, operation] = values
    assert found == {
        (10, "otelgpu.block.io.duration", "vda", "write"): (2, 0.006),
        (10, "otelgpu.block.io", "vda", "write"): (8192, 0),
        (20, "otelgpu.block.io.duration", "vda", "read"): (1, 0.001),
    }
