"""Names of files and devices come with their samples, are found by number, and are bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.families.profiles.decode import ProfileDecoder
from otelgpu.families.profiles.storage import names as storage_names
from otelgpu.families.profiles.storage.names import PathEnd
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch
from otelgpu.model.samples import FILE_SHIFT, GROUP_SHIFT, OPERATION_SHIFT, SampleKind

BTF = read_image("profile").btf


def batch(kind: SampleKind, *records: dict[str, Any]) -> Batch:
    struct = f"profile_{kind.name.lower()}"
    rows = np.zeros(len(records), dtype=BTF.dtype(struct))
    rows["head"]["kind"] = kind
    for row, record in zip(rows, records, strict=True):
        for name, value in record.items():
            row[name] = value
    return Batch(family="profile", kind=struct, records=rows)


def test_a_file_is_found_by_any_call_on_it() -> None:
    decoder = ProfileDecoder()
    names = b"checkpoint.bin\0run\0srv\0"
    given = {"other": 77 << FILE_SHIFT | 2, "path": names, "value": 5, "bytes": 9, "stack": 3}
    (found,) = decoder.samples(batch(SampleKind.FILE, given))
    assert (found["kind"], found["value"], found["size_bytes"], found["stack"]) == (SampleKind.FILE, 5, 9, 3)
    assert decoder.name_of(SampleKind.FILE, 77 << FILE_SHIFT | 3) == "/srv/run/checkpoint.bin"
    assert decoder.name_of(SampleKind.FILE, 78 << FILE_SHIFT | 3) == ""
    assert decoder.name_of(SampleKind.BLOCK, 77 << FILE_SHIFT | 3) == ""
    assert decoder.name_of(SampleKind.CPU, 77 << FILE_SHIFT | 3) == ""


def test_a_device_is_found_by_any_operation_on_it() -> None:
    decoder = ProfileDecoder()
    (found,) = decoder.samples(
        batch(SampleKind.BLOCK, {"other": 1 << OPERATION_SHIFT | 254 << 20, "device": b"vda"})
    )
    assert found["kind"] == SampleKind.BLOCK
    assert decoder.name_of(SampleKind.BLOCK, 254 << 20) == "vda"


def test_a_control_group_is_found_by_its_number_alone() -> None:
    decoder = ProfileDecoder()
    other = 3 << GROUP_SHIFT | 1 << OPERATION_SHIFT | 254 << 20
    decoder.samples(batch(SampleKind.BLOCK, {"other": other, "device": b"vda", "group": b"pod.slice"}))
    assert decoder.name_of(SampleKind.BLOCK, other) == "vda"
    assert decoder.name_of(SampleKind.BLOCK, 3 << GROUP_SHIFT) == "pod.slice"
    assert decoder.name_of(SampleKind.BLOCK, 4 << GROUP_SHIFT) == ""


def test_a_name_that_is_no_text_is_shown_all_the_same() -> None:
    decoder = ProfileDecoder()
    decoder.samples(batch(SampleKind.FILE, {"other": 1 << FILE_SHIFT, "path": b"w\xff"}))
    assert decoder.name_of(SampleKind.FILE, 1 << FILE_SHIFT) == "/w\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ({"path": b"", "path_end": PathEnd.WHOLE}, "/"),
        ({"path": b"a\0b\0", "path_end": PathEnd.CUT}, "…/b/a"),
        ({"path": b"a\0b\0", "path_end": PathEnd.UNREADABLE}, "…/b/a"),
        ({"path": b"memfd:a\0", "path_end": PathEnd.DETACHED}, "memfd:a"),
        ({"path": b"a\0", "path_end": PathEnd.WHOLE, "deleted": 1}, "/a (deleted)"),
        ({"path": b"a\0", "path_end": 99}, "…/a"),
        ({"path": b"a" * 904, "path_end": PathEnd.WHOLE}, f"/{'a' * 904}"),
        ({"path": b"a\0\0b\0", "path_end": PathEnd.WHOLE}, "/a"),
    ],
)
def test_a_path_is_put_together_from_its_names_and_says_what_lacks(record: dict[str, Any], path: str) -> None:
    decoder = ProfileDecoder()
    decoder.samples(batch(SampleKind.FILE, {"other": 1 << FILE_SHIFT, **record}))
    assert decoder.name_of(SampleKind.FILE, 1 << FILE_SHIFT) == path


def test_few_names_are_kept_those_that_were_reported_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_names, "NAMES", 2)
    decoder = ProfileDecoder()
    for number in (1, 2, 1, 3):
        decoder.samples(batch(SampleKind.FILE, {"other": number << FILE_SHIFT, "path": b"f%d" % number}))
    assert [decoder.name_of(SampleKind.FILE, number << FILE_SHIFT) for number in (1, 2, 3)] == [
        "/f1",
        "",
        "/f3",
    ]
