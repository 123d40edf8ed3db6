"""pprof files hold every type's values by stack and labels; ``go tool pprof`` reads them."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.profiles import Links, ProfileColumns, ValueType
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute
from otelgpu.render.pprof import pprof
from otelgpu.render.pprof_reader import read_pprof
from otelgpu.render.stack_tree import trees
from tests.rig.examples import examples
from tests.unit.export.profile_builders import profile_batches
from tests.unit.render.profile_columns import GPU, HOSTILE, START, profile

GO = next(
    (path for path in (shutil.which("go"), "/usr/local/go/bin/go") if path and Path(path).exists()), None
)

# https://github.com/google/pprof/blob/main/proto/profile.proto: name, number, type; "*" repeated.
MESSAGES = {
    "ValueType": "type 1 int64, unit 2 int64",
    "Label": "key 1 int64, str 2 int64, num 3 int64, num_unit 4 int64",
    "Sample": "location_id 1 uint64*, value 2 int64*, label 3 Label*",
    "Mapping": "id 1 uint64, memory_start 2 uint64, memory_limit 3 uint64, file_offset 4 uint64, filename 5 int64,"
    " build_id 6 int64, has_functions 7 bool, has_filenames 8 bool, has_line_numbers 9 bool, has_inline_frames 10 bool",
    "Line": "function_id 1 uint64, line 2 int64, column 3 int64",
    "Location": "id 1 uint64, mapping_id 2 uint64, address 3 uint64, line 4 Line*, is_folded 5 bool",
    "Function": "id 1 uint64, name 2 int64, system_name 3 int64, filename 4 int64, start_line 5 int64",
    "Profile": "sample_type 1 ValueType*, sample 2 Sample*, mapping 3 Mapping*, location 4 Location*,"
    " function 5 Function*, string_table 6 string*, drop_frames 7 int64, keep_frames 8 int64, time_nanos 9 int64,"
    " duration_nanos 10 int64, period_type 11 ValueType, period 12 int64, comment 13 int64*,"
    " default_sample_type 14 int64",
}


def _profile_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="profile.proto", package="perftools.profiles", syntax="proto3"
    )
    kinds = {"int64": 3, "uint64": 4, "bool": 8, "string": 9}
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            field, number, kind = text.split()
            made = message.field.add(name=field, number=int(number), label=3 if kind.endswith("*") else 1)
            kind = kind.removesuffix("*")
            made.type = kinds.get(kind, 11)  # type: ignore[assignment]
            if kind not in kinds:
                made.type_name = f".perftools.profiles.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


Profile = _profile_class()


def parsed(*batches: ProfileColumns) -> Any:
    return Profile.FromString(gzip.decompress(pprof(batches)))


def samples(read: Any) -> dict[tuple[tuple[str, ...], frozenset[tuple[str, Any]]], list[int]]:
    """By names root first and labels, the values."""
    text = read.string_table
    functions = {each.id: text[each.name] for each in read.function}
    lines = {each.id: [functions[line.function_id] for line in each.line] for each in read.location}
    found = {}
    for sample in read.sample:
        names = tuple(name for place in sample.location_id for name in lines[place])[::-1]
        labels = frozenset((text[each.key], text[each.str] or each.num) for each in sample.label)
        assert (names, labels) not in found
        found[names, labels] = list(sample.value)
    return found


def test_stacks_and_values_are_held() -> None:
    read = parsed(profile({("main", "py:generate:42"): 17, ("main",): 2}))
    assert samples(read) == {(("main", "generate"), frozenset()): [17], (("main",), frozenset()): [2]}
    text = read.string_table
    assert text[0] == ""
    assert [(text[each.type], text[each.unit]) for each in read.sample_type] == [("cpu", "nanoseconds")]
    assert (text[read.period_type.type], read.period) == ("cpu", 10_000_000)
    assert text[read.default_sample_type] == "cpu"
    assert read.time_nanos == START
    assert read.duration_nanos == 10_000_000_000
    [line] = [line for at in read.location for line in at.line if line.line]
    assert line.line == 42


def test_one_sample_has_a_value_for_each_type() -> None:
    stacks: dict[tuple[str, ...], int] = {("main", "launch"): 1}
    counts = ValueType(type="syscalls", unit="count")
    read = parsed(profile(stacks), profile(stacks, type_=counts), profile({("x",): 9}, type_=counts))
    assert samples(read) == {(("main", "launch"), frozenset()): [1, 1], (("x",), frozenset()): [0, 9]}


def test_attributes_and_span_ids_are_labels() -> None:
    rows = [(("a",), 1), (("a",), 2), (("a",), 4)]
    links = Links(
        codes=np.array([0, 1, 1]),
        trace_id=np.array([[0] * 16, [1] * 16], dtype=np.uint8),
        span_id=np.array([[0] * 8, [2] * 8], dtype=np.uint8),
    )
    attributes = (
        Attribute.of("thread.name", ["main", "worker", "worker"]),
        Attribute.of("thread.id", [None, 7, 7]),
    )
    read = parsed(profile(rows, attributes=attributes, links=links))
    of_worker = {("thread.name", "worker"), ("thread.id", 7), ("trace_id", "01" * 16), ("span_id", "02" * 8)}
    assert samples(read) == {
        (("a",), frozenset({("thread.name", "main")})): [1],
        (("a",), frozenset(of_worker)): [6],
    }


def test_numbers_of_labels_are_64_bits_and_others_are_text() -> None:
    attributes = (
        Attribute(key="handle", values=np.array([1 << 63, 7], dtype=np.uint64), present=None),
        Attribute(key="share", values=np.array([0.25, 0.25]), present=None),
    )
    read = parsed(profile([(("a",), 1), (("a",), 2)], attributes=attributes))
    assert samples(read) == {
        (("a",), frozenset({("handle", -(1 << 63)), ("share", "0.25")})): [1],
        (("a",), frozenset({("handle", 7), ("share", "0.25")})): [2],
    }


def test_nobody_looks_for_symbols_again() -> None:
    read = parsed(profile({("main",): 1}))
    [_, mapping] = read.mapping
    assert (mapping.has_functions, mapping.has_filenames, mapping.has_line_numbers) == (True, True, True)
    assert read.string_table[mapping.build_id] == "ab12"


@pytest.mark.parametrize(
    ("program", "file"),
    [
        ({"process.executable.path": "/usr/bin/server"}, "/usr/bin/server"),
        ({"process.executable.path": "/usr/lib/libc.so.6"}, "/usr/lib/libc.so.6"),
        ({"process.executable.name": "libc.so.6"}, "/usr/lib/libc.so.6"),
        ({}, "/usr/lib/libc.so.6"),
    ],
)
def test_a_profile_is_called_by_its_program(program: dict[str, str], file: str) -> None:
    """The first mapping is taken for the main program's (profile.proto)."""
    other = profile({("a",): 1}, owner=resource({"process.executable.path": "/bin/sh"}))
    read = parsed(
        profile([(("main",), 1), (("other",), 2)], owner=resource(program)), *([other] if program else [])
    )
    assert read.string_table[read.mapping[0].filename] == file
    assert len({each.id for each in read.mapping}) == len(read.mapping)
    assert {at.mapping_id for at in read.location} == {
        each.id for each in read.mapping if read.string_table[each.filename] == "/usr/lib/libc.so.6"
    }


def test_a_device_frame_says_that_it_is_one() -> None:
    read = parsed(profile({("launch", "gpu:flash_fwd"): 3}, type_=GPU))
    assert samples(read) == {(("launch", "GPU: flash_fwd"), frozenset()): [3]}


@given(profile_batches())
def test_any_batch_is_read_by_the_schemas_decoder(batch: ProfileColumns) -> None:
    read = parsed(batch)
    values = np.zeros(1, dtype=np.int64)
    np.add.at(values, np.zeros(len(batch), dtype=np.intp), batch.value.astype(np.int64))
    assert (sum(sum(sample.value) for sample in read.sample) - int(values[0])) % 2**64 == 0
    places = {each.id for each in read.location}
    functions = {each.id for each in read.function}
    assert all(place in places for sample in read.sample for place in sample.location_id)
    assert all(line.function_id in functions for at in read.location for line in at.line)
    assert all(at.mapping_id in {0, *(each.id for each in read.mapping)} for at in read.location)
    if len(batch):
        read_pprof(pprof([batch]))


# -- read again ------------------------------------------------------------------------------------------


def test_what_was_written_is_read_as_the_same_tree() -> None:
    batches = [
        profile({("main", "py:generate:42"): 17}),
        profile({("main", "gpu:k"): 2, ("a",): 1}, type_=GPU),
        profile({("main", "k:schedule"): 5}, type_=ValueType(type="off_cpu", unit="nanoseconds")),
    ]

    def reported(some: list[ProfileColumns]) -> Counter[tuple[str, str, str, float]]:
        return Counter(
            (
                made.type.type,
                made.frames[made.frame[node]].label,
                made.frames[made.frame[node]].kind,
                made.total[node, 0],
            )
            for made in trees(some)
            for node in range(1, len(made))
        )

    assert reported(read_pprof(pprof(batches))) == reported(batches)


@pytest.mark.parametrize(
    "data", [b"", b"\x1f\x8b", b"\x1f\x8b\x08garbage", b"no protobuf", b"\xff" * 40, b"\x0a\xff\x01"]
)
def test_bytes_that_are_no_profile_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"gzip|protobuf|pprof"):
        read_pprof(data)


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_a_profile_that_was_cut_is_refused_or_read_in_part(cut: int) -> None:
    whole = gzip.decompress(pprof([profile({("main", "py:generate:42"): 17, ("main",): 2})]))
    try:
        read_pprof(whole[: len(whole) * cut // 200])
    except ValueError:
        return


@given(st.binary(max_size=200), st.integers(0, 10**6))
@examples(100)
def test_anything_in_a_profile_is_read_or_refused(data: bytes, place: int) -> None:
    whole = gzip.decompress(pprof([profile({("main", "py:generate:42"): 17, ("main", "gpu:k"): 2})]))
    place %= len(whole)
    for given_bytes in (data, whole[:place] + data[:3] + whole[place + len(data[:3]) :], whole + data):
        try:
            trees(read_pprof(given_bytes))
        except ValueError:
            continue


def test_names_that_are_not_utf_8_and_numbers_that_lead_nowhere_cost_nothing() -> None:
    read = parsed(profile({("main", "leaf"): 3}))
    read.sample[0].location_id.append(99)
    read.location[0].line.add(function_id=99, line=1)
    read.sample_type.add(type=77, unit=-1)
    read.sample[0].value.append(5)
    message = read.SerializeToString().replace(b"leaf", b"l\xffaf")
    batches = read_pprof(message)
    assert [int(batch.value.sum()) for batch in batches] == [3, 5]
    assert "l\ufffdaf" in {function.name for function in batches[0].functions}
    assert (batches[1].sample_type.type, batches[1].sample_type.unit) == ("", "")


def test_numbers_of_a_repeated_field_are_read_one_by_one_too() -> None:
    """As writers of proto2 have them, Go's runtime among them."""
    message = b"\x0a\x04\x08\x01\x10\x02" + b"\x12\x06\x08\x01\x08\x02\x10\x07"  # a type; a sample: 1, 2; 7
    message += b"\x22\x06\x08\x01\x22\x02\x08\x01" + b"\x22\x06\x08\x02\x22\x02\x08\x02"
    message += b"\x2a\x04\x08\x01\x10\x03" + b"\x2a\x04\x08\x02\x10\x04"
    message += b"".join(bytes([0x32, len(text)]) + text for text in (b"", b"cpu", b"count", b"leaf", b"root"))
    [batch] = read_pprof(message)
    assert batch.value.tolist() == [7]
    names = [batch.functions[batch.locations[at].lines[0].function].name for at in batch.stacks[0]]
    assert names == ["leaf", "root"]


# -- go tool pprof ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(
    GO is None, reason="go is not installed: https://go.dev/dl (go tool pprof reads the file)"
)
def test_go_tool_pprof_agrees(tmp_path: Path) -> None:
    rows = {("main", "py:generate:42", "cudaLaunchKernel"): 700, ("main", "py:load:7"): 250, ("main",): 50}
    file = tmp_path / "out.pb.gz"
    file.write_bytes(pprof([profile(rows), profile({("main", "gpu:flash_fwd"): 9}, type_=GPU)]))
    top = run_pprof(tmp_path, "-top", "-sample_index=cpu", file)
    found = {
        name: (flat, cum)
        for flat, cum, name in re.findall(
            r"^ *(\d\S*) +\S+% +\S+% +(\d\S*) +\S+% +(.+?) *$", top, re.MULTILINE
        )
    }
    assert found == {
        "cudaLaunchKernel": ("700ns", "700ns"),
        "load": ("250ns", "250ns"),
        "main": ("50ns", "1000ns"),
        "generate": ("0", "700ns"),
    }
    device = run_pprof(tmp_path, "-top", "-sample_index=gpu_kernel_time", file)
    assert re.search(r"9ns\s+100%\s+100%\s+9ns\s+100%\s+GPU: flash_fwd", device)


@pytest.mark.slow
@pytest.mark.skipif(
    GO is None, reason="go is not installed: https://go.dev/dl (go tool pprof reads the file)"
)
def test_go_tool_pprof_shows_labels_and_hostile_names(tmp_path: Path) -> None:
    file = tmp_path / "out.pb.gz"
    attributes = (Attribute.of("thread.name", ["worker"] * len(HOSTILE)),)
    file.write_bytes(pprof([profile([((name, "leaf"), 1) for name in HOSTILE], attributes=attributes)]))
    assert re.search(r"thread\.name: Total 8", run_pprof(tmp_path, "-tags", file))


def run_pprof(home: Path, *words: str | Path) -> str:
    assert GO is not None
    cache = (
        os.environ.get("GOCACHE")
        or subprocess.run([GO, "env", "GOCACHE"], capture_output=True, text=True, check=False).stdout
    )
    environment = os.environ | {
        "GOCACHE": cache.strip() or str(home / "cache"),
        "PPROF_TMPDIR": str(home),
        "GOFLAGS": "-mod=mod",
    }
    done = subprocess.run(
        [GO, "tool", "pprof", *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=home,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
