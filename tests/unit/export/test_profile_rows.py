"""The columnar profile encoder, read back with opentelemetry-proto's own classes and held to its rules."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Link, Profile, ProfilesDictionary

from otelgpu.export.messages import Part, fixed64, integers, sizes, written
from otelgpu.export.profiles import encode_profiles
from otelgpu.model.profiles import Function, Line, Links, ProfileColumns, ValueType
from otelgpu.model.spans import Attribute, Text
from tests.rig.examples import examples
from tests.unit.export.builders import any_value, text, valid
from tests.unit.export.profile_builders import (
    START,
    from_columns,
    from_payloads,
    function,
    int64,
    links,
    mapping,
    native,
    parsed,
    profile_batches,
    profile_of,
    samples,
)
from tests.unit.export.profile_conformance import broken_rules


def encoded(columns: ProfileColumns) -> ExportProfilesServiceRequest:
    (payload,) = encode_profiles([columns])
    return parsed(payload)


def busy(rows: int, stacks: int = 40, seed: int = 3) -> ProfileColumns:
    """Many stacks, links and threads; every stack has a frame of its own."""
    rng = np.random.default_rng(seed)
    frames = tuple(native(0x1000 + i, Line(function=i, line=i)) for i in range(stacks))
    return samples(
        rows,
        value=rng.integers(1, 10**6, rows),
        time_unix_ns=np.uint64(START) + rng.integers(0, 10**9, rows).astype(np.uint64),
        stack=rng.integers(0, stacks, rows),
        stacks=tuple((i, *range(min(i, 12))) for i in range(stacks)),
        locations=frames,
        functions=tuple(function(f"kernel_{i}_{'x' * (i % 60)}") for i in range(stacks)),
        links=links(rng.integers(0, 30, rows).tolist(), [(i, i) for i in range(30)]),
        attributes=(
            Attribute(key="thread.id", values=rng.integers(1000, 1016, rows)),
            Attribute(key="thread.name", values=Text(codes=rng.integers(0, 3, rows), table=("a", "b", "c"))),
        ),
    )


@given(st.lists(profile_batches(), max_size=3), st.sampled_from([1, 300, 600, 1000, 2**21]))
@examples(50)
def test_any_columns_read_back_as_they_were(batches: list[ProfileColumns], max_bytes: int) -> None:
    for columns in batches:
        payloads = list(encode_profiles([columns], max_bytes=max_bytes))
        assert from_payloads(payloads) == from_columns(columns)
        assert sum(payload.rows for payload in payloads) == len(columns)
        assert all(len(payload.body) <= max_bytes or payload.rows == 1 for payload in payloads)
        for payload in payloads:
            assert broken_rules(parsed(payload)) == []
            assert payload.rows == sum(len(s.values) for s in profile_of(parsed(payload)).samples)
    apart = [payload for columns in batches for payload in encode_profiles([columns], max_bytes=max_bytes)]
    assert list(encode_profiles(batches, max_bytes=max_bytes)) == apart


@given(profile_batches().filter(len), st.sampled_from([1, 2**21]))
@examples(30)
def test_every_payload_says_whose_and_what_the_profile_is(columns: ProfileColumns, max_bytes: int) -> None:
    for payload in encode_profiles([columns], max_bytes=max_bytes):
        request = parsed(payload)
        (of_resource,) = request.resource_profiles
        found = {a.key: a.value for a in of_resource.resource.attributes}
        assert found == {valid(k): any_value(v) for k, v in columns.resource.attributes}
        assert of_resource.scope_profiles[0].scope.name == valid(columns.scope)
        assert of_resource.schema_url and of_resource.scope_profiles[0].schema_url
        profile, strings = profile_of(request), request.dictionary.string_table
        for message, of in (
            (profile.sample_type, columns.sample_type),
            (profile.period_type, columns.period_type),
        ):
            assert strings[message.type_strindex] == valid(of.type)
            assert strings[message.unit_strindex] == valid(of.unit)
        assert profile.period == columns.period
        assert (profile.time_unix_nano, profile.duration_nano) == (columns.start_unix_ns, columns.duration_ns)


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [2_000, 20_000, 2**21])
def test_a_batch_that_is_cut_reads_back_whole(max_bytes: int) -> None:
    columns = busy(3_000)
    payloads = list(encode_profiles([columns], max_bytes=max_bytes))
    assert from_payloads(payloads) == from_columns(columns)
    assert all(len(p.body) <= max_bytes for p in payloads)
    assert [broken_rules(parsed(p)) for p in payloads] == [[]] * len(payloads)


def test_payloads_are_filled_before_a_new_one_begins() -> None:
    payloads = list(encode_profiles([busy(30_000)], max_bytes=60_000))
    assert len(payloads) > 5
    assert all(57_000 < len(p.body) <= 60_000 for p in payloads[:-1])


def test_a_payload_holds_only_what_its_samples_use() -> None:
    columns = busy(2_000, stacks=400)
    first, *_ = encode_profiles([columns], max_bytes=5_000)
    d = parsed(first).dictionary
    used = {s.stack_index for s in profile_of(parsed(first)).samples}
    assert len(d.stack_table) - 1 == len(used) < 100


def test_one_sample_may_be_cut_between_its_values() -> None:
    columns = samples(5_000)
    payloads = list(encode_profiles([columns], max_bytes=2_000))
    assert len(payloads) > 3
    assert [v for p in payloads for s in profile_of(parsed(p)).samples for v in s.values] == list(
        range(5_000)
    )


def test_a_row_larger_than_a_payload_goes_alone() -> None:
    columns = samples(
        3, stack=np.array([0, 1, 0]), stacks=((0,), (1, 0)), functions=(function("f"), function("b" * 5000))
    )
    payloads = list(encode_profiles([columns], max_bytes=1_500))
    assert [(p.rows, len(p.body) > 1_500) for p in payloads] == [(2, False), (1, True)]


def test_nothing_makes_no_payload() -> None:
    assert list(encode_profiles([])) == []
    assert list(encode_profiles([samples(0)])) == []


def test_the_same_columns_give_the_same_bytes() -> None:
    def bodies() -> list[bytes]:
        return [p.body for p in encode_profiles([busy(3_000)], max_bytes=20_000)]

    assert bodies() == bodies()


def test_observations_of_one_identity_are_one_sample_in_row_order() -> None:
    columns = samples(
        4,
        value=np.array([5, 6, 7, 8]),
        time_unix_ns=np.array([START + 3, START + 2, START + 1, START], dtype=np.uint64),
        stack=np.array([1, 0, 1, 1]),
        stacks=((0,), (1, 0)),
        attributes=(Attribute.of("thread.id", [1, 1, 1, 2]),),
    )
    found = [
        (list(s.values), [t - START for t in s.timestamps_unix_nano])
        for s in profile_of(encoded(columns)).samples
    ]
    assert sorted(found) == [([5, 7], [3, 1]), ([6], [2]), ([8], [0])]


def test_equal_entries_under_different_codes_become_one() -> None:
    columns = samples(
        3,
        stack=np.array([0, 1, 2]),
        stacks=((0, 1), (2, 1), (3, 1)),
        locations=(
            native(7, Line(function=0, line=1), mapping=0),
            native(1, mapping=1),
            native(7, Line(function=1, line=1), mapping=1),
            native(7, Line(function=2, line=1), mapping=1),
        ),
        functions=(function("bad \ud800"), function("bad \udfff"), function("bad ?")),
        mappings=(mapping("lib"), mapping("lib")),
    )
    request = encoded(columns)
    d = request.dictionary
    tables = (d.stack_table, d.location_table, d.function_table, d.mapping_table)
    assert [len(table) for table in tables] == [2, 3, 2, 2]
    assert [list(s.values) for s in profile_of(request).samples] == [[0, 1, 2]]


def test_what_says_nothing_is_entry_zero() -> None:
    columns = samples(
        1,
        stacks=((0,),),
        locations=(native(0, Line(function=0, line=3)),),
        functions=(Function(name="", system_name="", file_name=""),),
        mappings=(mapping("", memory_start=0, memory_limit=0, file_offset=0, build_id_gnu=""),),
    )
    d = encoded(columns).dictionary
    assert (len(d.mapping_table), len(d.function_table)) == (1, 1)
    assert d.location_table[1].lines[0].line == 3
    assert d.location_table[1].mapping_index == 0
    unknown = encoded(samples(1, stacks=((),)))
    assert len(unknown.dictionary.stack_table) == 1
    assert profile_of(unknown).samples[0].stack_index == 0


def test_a_link_without_a_trace_or_a_span_is_none() -> None:
    columns = samples(4, links=links([0, 1, 2, 3], [(0, 5), (5, 0), (0, 0), (5, 6)]))
    request = encoded(columns)
    assert [link.span_id for link in request.dictionary.link_table] == [b"", bytes([*[0] * 7, 6])]
    assert sorted((s.link_index, list(s.values)) for s in profile_of(request).samples) == [
        (0, [0, 1, 2]),
        (1, [3]),
    ]


def test_python_and_native_frames_report_their_type() -> None:
    d = encoded(samples(1)).dictionary
    (leaf, caller) = (d.location_table[i] for i in d.stack_table[1].location_indices)
    types = [d.attribute_table[at.attribute_indices[0]].value.string_value for at in (leaf, caller)]
    assert types == ["native", "cpython"]


@pytest.mark.parametrize(
    "values",
    [[0, 127], [128, 16383], [2**14, 2**28 - 1], [2**28, 2**56 - 1], [2**62, 2**63 - 1], [-(2**63), 5]],
)
def test_values_of_every_width_keep_their_value(values: list[int]) -> None:
    (sample,) = profile_of(encoded(samples(2, value=np.array(values)))).samples
    assert list(sample.values) == values


def test_unsigned_values_beyond_int64_wrap_to_the_same_bits() -> None:
    (sample,) = profile_of(encoded(samples(1, value=np.array([2**64 - 1], dtype=np.uint64)))).samples
    assert list(sample.values) == [int64(2**64 - 1)]


def test_addresses_and_lines_wider_than_64_bits_wrap() -> None:
    frames = (native(2**64 + 5, Line(function=0, line=2**64 + 9)),)
    at = encoded(samples(1, stacks=((0,),), locations=frames)).dictionary.location_table[1]
    assert (at.address, at.lines[0].line) == (5, 9)


def test_unused_attributes_make_no_entries() -> None:
    absent = np.zeros(2, dtype=np.bool_)
    columns = samples(
        2,
        attributes=(
            Attribute(key="t", values=Text(codes=np.zeros(2, dtype=np.intp), table=()), present=absent),
            Attribute(key="n", values=np.zeros(2, dtype=np.int64), present=absent),
        ),
    )
    assert encoded(columns) == encoded(samples(2))


@pytest.mark.slow
def test_every_row_may_have_its_own_identity() -> None:
    rows = 20_000
    columns = samples(rows, attributes=(Attribute(key="id", values=np.arange(rows)),))
    payloads = list(encode_profiles([columns], max_bytes=100_000))
    assert from_payloads(payloads) == from_columns(columns)
    assert all(len(p.body) <= 100_000 for p in payloads)


def test_the_memory_of_a_payload_follows_the_limit_and_not_the_batch() -> None:
    columns = busy(100_000)
    payloads = encode_profiles([columns], max_bytes=50_000)
    next(payloads)  # the batch's columns and tables are ready
    tracemalloc.start()
    next(payloads)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 50_000


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"stack": np.array([0, 1])}, "stack"),
        ({"stack": np.array([0, -1])}, "stack"),
        ({"stack": np.array([0])}, "stack"),
        ({"stacks": ((2,),)}, "locations"),
        ({"stacks": ((-1,),)}, "locations"),
        ({"locations": (native(1, Line(function=9, line=1)), native(2))}, "functions"),
        ({"locations": (native(1, mapping=1), native(2))}, "mappings"),
        ({"value": np.array([0.5, 1.0])}, "value"),
        ({"time_unix_ns": np.zeros(3, dtype=np.uint64)}, "time_unix_ns"),
        ({"links": links([0, 1], [(1, 1)])}, "links"),
        ({"links": links([0], [(1, 1)])}, "links"),
        (
            {
                "links": Links(
                    codes=np.zeros(2, dtype=np.intp),
                    trace_id=np.ones((1, 16), dtype=np.uint8),
                    span_id=np.ones((2, 8), dtype=np.uint8),
                )
            },
            "links",
        ),
        ({"attributes": (Attribute(key="k", values=np.zeros(1, dtype=np.int64)),)}, "k"),
        ({"attributes": (Attribute(key="k", values=np.zeros(2)),)}, "k"),
        ({"attributes": (Attribute(key="k", values=np.zeros(2, dtype=np.bool_)),)}, "k"),
        ({"attributes": (Attribute(key="k", values=Text(codes=np.array([0, 1]), table=("a",))),)}, "k"),
        (
            {"attributes": (Attribute(key="k", values=np.zeros(2, np.int64), present=np.ones(3, np.bool_)),)},
            "k",
        ),
        (
            {
                "attributes": (
                    Attribute(key="\ud800", values=text(["a", "b"])),
                    Attribute(key="\udfff", values=text(["a", "b"])),
                )
            },
            "attributes",
        ),
    ],
)
def test_columns_that_break_their_contract_are_named(columns: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        list(encode_profiles([samples(2, **columns)]))


def test_batches_before_a_broken_one_are_given_out() -> None:
    payloads = encode_profiles([samples(2), samples(1, stack=np.array([9]))])
    assert next(payloads).rows == 2
    with pytest.raises(ValueError, match="stack"):
        next(payloads)


BREAKS = {
    "no dictionary": lambda r: r.ClearField("dictionary"),
    "has no element 0": lambda r: r.dictionary.ClearField("link_table"),
    "link_table[0] is not": lambda r: r.dictionary.link_table[0].MergeFrom(Link(span_id=b"12345678")),
    "string_table has": lambda r: r.dictionary.string_table.append("forward"),
    "location_table has": lambda r: r.dictionary.location_table.add().MergeFrom(
        r.dictionary.location_table[1]
    ),
    "refers to stack_table[9]": lambda r: setattr(profile_of(r).samples[0], "stack_index", 9),
    "refers to function_table[9]": lambda r: r.dictionary.location_table[1].lines.add(function_index=9),
    "refers to link_table[-1]": lambda r: setattr(profile_of(r).samples[0], "link_index", -1),
    "string_table[9] is an orphan": lambda r: r.dictionary.string_table.append("nowhere"),
    "a link of": lambda r: (
        r.dictionary.link_table.append(Link(trace_id=b"1")),
        setattr(profile_of(r).samples[0], "link_index", 1),
    ),
    "of type double_value": lambda r: setattr(r.dictionary.attribute_table[1].value, "double_value", 0.5),
    "Location with a key twice": lambda r: r.dictionary.location_table[1].attribute_indices.extend([2, 3]),
    "Mapping with the attribute that is none": lambda r: r.dictionary.mapping_table[
        1
    ].attribute_indices.append(0),
    "the location that is none": lambda r: r.dictionary.stack_table[1].location_indices.append(0),
    "without a sample type": lambda r: profile_of(r).ClearField("sample_type"),
    "a profile id that": lambda r: setattr(profile_of(r), "profile_id", bytes(16)),
    "original payload": lambda r: setattr(profile_of(r), "original_payload", b"x"),
    "2 times": lambda r: profile_of(r).samples.add(stack_index=1, values=[1]),
    "different shapes": lambda r: profile_of(r).samples.add(stack_index=0, timestamps_unix_nano=[START]),
    "neither values nor": lambda r: profile_of(r).samples[0].ClearField("values"),
    "2 values and 1 timestamps": lambda r: profile_of(r).samples[0].timestamps_unix_nano.append(START),
    "outside the profile's time": lambda r: profile_of(r).samples[0].timestamps_unix_nano.extend([START, 1]),
}


@pytest.mark.parametrize("rule", BREAKS)
def test_the_checker_finds_each_broken_rule(rule: str) -> None:
    kernels = ValueType(type="gpu", unit="kernels")
    request = encoded(samples(2, sample_type=kernels, period_type=kernels))
    assert broken_rules(request) == []
    BREAKS[rule](request)
    assert any(rule in line for line in broken_rules(request)), broken_rules(request)


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=200), max_size=8), st.integers(0, 2**31 - 1))
@examples(50)
def test_messages_of_any_lengths_are_as_long_as_their_sizes_say(rows: list[list[int]], index: int) -> None:
    flat = np.array([value for row in rows for value in row], dtype=np.uint64)
    counts = np.array([len(row) for row in rows], dtype=np.intp)
    parts = [
        Part(integers(b"\x08", np.full(len(rows), index))),
        Part(fixed64(flat), counts, b"\x2a"),
    ]
    each = sizes(parts, len(rows))
    data = written(b"\x12", parts, len(rows)).tobytes()
    assert len(data) == each.sum()
    profile = Profile.FromString(data)
    assert [list(s.timestamps_unix_nano) for s in profile.samples] == rows
    assert all(s.stack_index == index for s in profile.samples)


@pytest.mark.parametrize("length", [126, 127, 128, 129, 16_380, 16_383, 16_384, 16_385, 2**21 - 1, 2**21])
def test_lengths_about_to_need_another_byte_are_read_back(length: int) -> None:
    counts = np.array([1, length, 0], dtype=np.intp)
    content = np.full((length + 1, 1), 0x61, dtype=np.uint8)
    data = written(b"\x2a", [Part(content, counts)], 3).tobytes()
    assert [len(s) for s in ProfilesDictionary.FromString(data).string_table] == counts.tolist()
    nested = written(b"\x12", [Part(content & 1, counts, b"\x22")], 3).tobytes()
    assert [len(s.values) for s in Profile.FromString(nested).samples] == counts.tolist()
