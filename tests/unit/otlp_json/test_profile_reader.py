"""Exported lines of profiles are read as the columns that they were made of, and nothing in a file can raise."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.export.profiles import encode_profiles
from otelgpu.model.profiles import FrameType, ProfileColumns
from otelgpu.otlp_json.profile_reader import read_profile_lines
from otelgpu.render.stack_tree import trees
from tests.rig.examples import examples
from tests.unit.export.profile_builders import from_columns, links, parsed, profile_batches, samples
from tests.unit.render.profile_columns import profile


def exported(*batches: ProfileColumns) -> list[bytes]:
    """Lines as the encoder of OTLP and protobuf's own JSON make them: ids in hex."""
    return [json.dumps(_hex(MessageToDict(parsed(payload)))).encode() for payload in encode_profiles(batches)]


def _hex(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: base64.b64decode(value).hex() if key in ("traceId", "spanId") else _hex(value)
            for key, value in node.items()
        }
    return [_hex(each) for each in node] if isinstance(node, list) else node


@examples(40)
@given(profile_batches())
def test_what_was_exported_is_read_as_it_was(batch: ProfileColumns) -> None:
    read = read_profile_lines(exported(batch))
    assert read.unreadable == 0
    assert len(read.profiles) == bool(len(batch))
    for columns in read.profiles:
        found, wanted = (
            {identity: sorted(rows, key=str) for identity, rows in from_columns(each).items()}
            for each in (columns, batch)
        )
        assert found == wanted
        assert (columns.period, columns.start_unix_ns, columns.duration_ns) == (
            batch.period,
            batch.start_unix_ns,
            batch.duration_ns,
        )


def test_the_tree_of_what_is_read_is_that_of_what_was_reported() -> None:
    batches = [profile({("main", "py:generate:42", "k:vfs_write"): 17, ("main", "gpu:k"): 2})]
    [one], [other] = trees(batches), trees(read_profile_lines(exported(*batches)).profiles)
    assert one.frames == other.frames
    assert one.total.tolist() == other.total.tolist()


def test_resource_scope_and_types_are_read() -> None:
    [columns] = read_profile_lines(exported(samples(2, links=links([0, 1], [(0, 0), (5, 6)])))).profiles
    assert columns.resource.get("service.name") == "llm"
    assert (columns.scope, columns.sample_type.type, columns.sample_type.unit) == (
        "otelgpu.cuda",
        "gpu_kernel_time",
        "nanoseconds",
    )
    assert columns.links is not None
    assert columns.links.trace_id[columns.links.codes].tolist()[1] == [0] * 15 + [5]
    assert {(each.frame_type, each.mapping is None) for each in columns.locations[1:]} == {
        (FrameType.PYTHON, True),
        (FrameType.NATIVE, False),
    }
    assert {each.frame_type for each in columns.locations[1:]} == {FrameType.PYTHON, FrameType.NATIVE}


def test_lines_of_other_signals_are_passed_over() -> None:
    read = read_profile_lines([b'{"resourceSpans":[]}', b"", b'{"resourceMetrics":[]}'])
    assert (read.profiles, read.unreadable) == ([], 0)


@pytest.mark.parametrize(
    "line",
    [
        b'{"resourceProfiles":',
        b'{"resourceProfiles":5}',
        b'\xff"resourceProfiles"',
        b'{"resourceProfiles":[{"scopeProfiles":[{"profiles":[{"timeUnixNano":"x"}]}]}]}',
        b'{"resourceProfiles":[{"scopeProfiles":[{"profiles":[{"samples":[{"stackIndex":9,"values":["1"]}]}]}]}]}',
        b'{"resourceProfiles":[{"scopeProfiles":[{"profiles":[{"samples":[{"values":["x"]}]}]}]}]}',
        b'{"resourceProfiles":[{"scopeProfiles":[{"profiles":[{"samples":[7]}]}]}]}',
        b'{"resourceProfiles":[{"scopeProfiles":[{"profiles":[{"samples":[{"values":[1],"timestampsUnixNano":[1,2]}]}]}]}]}',
        b'{"resourceProfiles":[],"dictionary":{"locationTable":[{"address":"zz"}]}}',
        b'{"resourceProfiles":' + b"[" * 100_000,
    ],
)
def test_what_is_broken_is_counted_and_costs_no_other(line: bytes) -> None:
    read = read_profile_lines([line, *exported(profile({("a",): 1}))])
    assert read.unreadable == 1
    assert len(read.profiles) == 1


_broken = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@examples(80)
@given(st.data())
def test_a_document_with_anything_in_any_place_raises_nothing(data: st.DataObject) -> None:
    document = json.loads(exported(profile({("main", "py:f:1"): 3, ("k:x",): 2}))[0])
    node: Any = document
    for _ in range(data.draw(st.integers(1, 8))):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], dict | list) or data.draw(st.booleans()):
            node[key] = data.draw(_broken)
            break
        node = node[key]
    read = read_profile_lines([json.dumps(document).encode()])
    for columns in read.profiles:
        trees([columns])
