"""Valid profile samples in columns, and the same read from columns and from protobuf messages the plain way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Profile, ProfilesDictionary

from otelgpu.export.profiles import ProfilePayload
from otelgpu.model.profiles import (
    FrameType,
    Function,
    Line,
    Links,
    Location,
    Mapping,
    ProfileColumns,
    ValueType,
)
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute, Text
from tests.unit.export.builders import any_text, any_value, entries, resources, text_columns, valid

START = 1_790_000_000_000_000_000
SECOND = 1_000_000_000


def function(name: str, file_name: str = "model.py") -> Function:
    return Function(name=name, system_name=name, file_name=file_name)


def mapping(file_name: str, **facts: Any) -> Mapping:
    made: dict[str, Any] = {
        "memory_start": 0x7F00_0000_0000,
        "memory_limit": 0x7F00_0010_0000,
        "file_offset": 0x1000,
        "build_id_gnu": "ab12",
        "build_id_htlhash": "",
    }
    return Mapping(file_name=file_name, **(made | facts))


def native(address: int, *lines: Line, mapping: int | None = 0) -> Location:
    return Location(frame_type=FrameType.NATIVE, mapping=mapping, address=address, lines=lines)


def samples(rows: int, **columns: Any) -> ProfileColumns:
    """``rows`` kernel times of a second under one stack of two frames; any column can be given instead."""
    made: dict[str, Any] = {
        "resource": resource({"service.name": "llm"}),
        "scope": "otelgpu.cuda",
        "sample_type": ValueType(type="gpu_kernel_time", unit="nanoseconds"),
        "period_type": ValueType(type="gpu", unit="kernels"),
        "period": 1,
        "start_unix_ns": START,
        "duration_ns": SECOND,
        "value": np.arange(rows, dtype=np.int64),
        "time_unix_ns": None,
        "stack": np.zeros(rows, dtype=np.intp),
        "stacks": ((1, 0),),
        "locations": (
            Location(frame_type=FrameType.PYTHON, mapping=None, address=0, lines=(Line(function=0, line=7),)),
            native(0x7F00_0000_1234, Line(function=1, line=0)),
        ),
        "functions": (function("forward"), function("launch", "")),
        "mappings": (mapping("libcudart.so.13"),),
        "links": None,
        "attributes": (),
    }
    return ProfileColumns(**(made | columns))


def links(codes: list[int], ids: list[tuple[int, int]]) -> Links:
    return Links(
        codes=np.array(codes, dtype=np.intp),
        trace_id=np.array([list(t.to_bytes(16, "big")) for t, _ in ids], dtype=np.uint8).reshape(-1, 16),
        span_id=np.array([list(s.to_bytes(8, "big")) for _, s in ids], dtype=np.uint8).reshape(-1, 8),
    )


class Identity(NamedTuple):
    """Everything that reports samples apart, spelt out: no index, no code."""

    stack: tuple[Any, ...]
    attributes: frozenset[tuple[str, bytes]]
    link: bytes


Observations = dict[Identity, list[tuple[int, int | None]]]
"""Values and times of each identity, in order."""


def int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def from_columns(c: ProfileColumns) -> Observations:
    """What the columns say."""
    found: Observations = {}
    stacks = [tuple(_location(c, code) for code in stack) for stack in c.stacks]
    for row in range(len(c)):
        carried = [a for a in c.attributes if a.present is None or a.present[row]]
        identity = Identity(
            stacks[c.stack[row]],
            frozenset((valid(a.key), _bytes(any_value(_value(a, row)))) for a in carried),
            _link(c.links, row),
        )
        time = None if c.time_unix_ns is None else int(c.time_unix_ns[row])
        found.setdefault(identity, []).append((int64(int(c.value[row])), time))
    return found


def _value(attribute: Attribute, row: int) -> Any:
    values = attribute.values
    return values.table[values.codes[row]] if isinstance(values, Text) else values[row].item()


def _bytes(value: AnyValue) -> bytes:
    return value.SerializeToString(deterministic=True)


def _link(links: Links | None, row: int) -> bytes:
    if links is None:
        return b""
    trace, span = links.trace_id[links.codes[row]].tobytes(), links.span_id[links.codes[row]].tobytes()
    return trace + span if any(trace) and any(span) else b""


def _location(c: ProfileColumns, code: int) -> tuple[Any, ...]:
    at = c.locations[code]
    lines = []
    for line in at.lines:
        f = c.functions[line.function]
        lines.append((valid(f.name), valid(f.system_name), valid(f.file_name), line.line))
    attributes = {("profile.frame.type", _bytes(AnyValue(string_value=at.frame_type.value)))}
    return at.address, tuple(lines), frozenset(attributes), _mapping(c, at.mapping)


def _mapping(c: ProfileColumns, code: int | None) -> tuple[Any, ...]:
    if code is None:
        return 0, 0, 0, "", frozenset()
    m = c.mappings[code]
    ids = {
        ("process.executable.build_id.gnu", m.build_id_gnu),
        ("process.executable.build_id.htlhash", m.build_id_htlhash),
    }
    attributes = frozenset((key, _bytes(AnyValue(string_value=valid(of)))) for key, of in ids if of)
    return m.memory_start, m.memory_limit, m.file_offset, valid(m.file_name), attributes


def parsed(payload: ProfilePayload) -> ExportProfilesServiceRequest:
    return ExportProfilesServiceRequest.FromString(payload.body)


def profile_of(request: ExportProfilesServiceRequest) -> Profile:
    (of_resource,) = request.resource_profiles
    (of_scope,) = of_resource.scope_profiles
    (profile,) = of_scope.profiles
    return profile


def from_payloads(payloads: Iterable[ProfilePayload]) -> Observations:
    """What a reader of the messages finds."""
    found: Observations = {}
    for payload in payloads:
        request = parsed(payload)
        d = request.dictionary
        stacks = [tuple(_read_location(d, index) for index in of.location_indices) for of in d.stack_table]
        for sample in profile_of(request).samples:
            times: list[int | None] = [*sample.timestamps_unix_nano] or [None] * len(sample.values)
            link = d.link_table[sample.link_index]
            attributes = _read_attributes(d, sample.attribute_indices)
            identity = Identity(stacks[sample.stack_index], attributes, link.trace_id + link.span_id)
            at = found.setdefault(identity, [])
            at.extend(zip(sample.values, times, strict=True))
    return found


def _read_attributes(d: ProfilesDictionary, indices: Iterable[int]) -> frozenset[tuple[str, bytes]]:
    carried = (d.attribute_table[index] for index in indices)
    return frozenset((d.string_table[a.key_strindex], _bytes(a.value)) for a in carried)


def _read_location(d: ProfilesDictionary, index: int) -> tuple[Any, ...]:
    at, lines = d.location_table[index], []
    for line in at.lines:
        f = d.function_table[line.function_index]
        names = (d.string_table[i] for i in (f.name_strindex, f.system_name_strindex, f.filename_strindex))
        lines.append((*names, line.line))
    m = d.mapping_table[at.mapping_index]
    of = _read_attributes(d, m.attribute_indices)
    mapped = m.memory_start, m.memory_limit, m.file_offset, d.string_table[m.filename_strindex], of
    return at.address, tuple(lines), _read_attributes(d, at.attribute_indices), mapped


u64 = st.integers(0, 2**64 - 1) | st.integers(0, 3)
few_texts = any_text | st.sampled_from(["", "a", "\ud800", "\udfff", "native"])


@st.composite
def sample_attributes(draw: st.DrawFn, rows: int, key: str) -> Attribute:
    integer = {
        "i8": st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300),
        "u8": u64,
        "i2": st.integers(-9, 9),
    }
    kind = draw(st.sampled_from([*integer, "text"]))
    values = (
        draw(text_columns(rows, entries | few_texts))
        if kind == "text"
        else draw(hnp.arrays(np.dtype(kind), rows, elements=integer[kind]))
    )
    present = draw(st.none() | hnp.arrays(np.bool_, rows))
    return Attribute(key=key, values=values, present=present)


@st.composite
def profile_batches(draw: st.DrawFn) -> ProfileColumns:
    """Any batch: tables with entries that are unused, equal, or equal but for what is not Unicode."""
    rows = draw(st.integers(0, 20))
    functions = draw(
        st.lists(st.builds(Function, name=few_texts, system_name=few_texts, file_name=few_texts), max_size=4)
    )
    mappings = draw(
        st.lists(
            st.builds(
                Mapping,
                file_name=few_texts,
                memory_start=u64,
                memory_limit=u64,
                file_offset=u64,
                build_id_gnu=few_texts,
                build_id_htlhash=few_texts,
            ),
            max_size=3,
        )
    )
    lines = st.builds(
        Line,
        function=st.integers(0, len(functions) - 1),
        line=st.integers(0, 2) | st.integers(-(2**63), 2**63 - 1),
    )
    locations = draw(
        st.lists(
            st.builds(
                Location,
                frame_type=st.sampled_from(FrameType),
                mapping=st.none() | st.integers(0, len(mappings) - 1) if mappings else st.none(),
                address=u64,
                lines=st.lists(lines, max_size=3).map(tuple) if functions else st.just(()),
            ),
            max_size=6,
        )
    )
    frames = st.lists(st.integers(0, len(locations) - 1), max_size=5).map(tuple) if locations else st.just(())
    stacks = draw(st.lists(frames, min_size=1, max_size=6))
    start, duration = draw(st.integers(0, 2**63)), draw(st.integers(1, 2**62))
    times = hnp.arrays(np.uint64, rows, elements=st.integers(start, start + duration - 1))
    keys = draw(st.lists(few_texts, max_size=3, unique_by=valid))
    value_types = st.builds(ValueType, type=few_texts, unit=few_texts)
    return samples(
        rows,
        resource=draw(resources),
        scope=draw(any_text),
        sample_type=draw(value_types),
        period_type=draw(value_types),
        period=draw(st.integers(-(2**63), 2**63 - 1)),
        start_unix_ns=start,
        duration_ns=duration,
        value=draw(hnp.arrays(np.int64, rows) | hnp.arrays(np.uint16, rows)),
        time_unix_ns=draw(st.none() | times),
        stack=draw(hnp.arrays(np.intp, rows, elements=st.integers(0, len(stacks) - 1))),
        stacks=tuple(stacks),
        locations=tuple(locations),
        functions=tuple(functions),
        mappings=tuple(mappings),
        links=draw(st.none() | any_links(rows)),
        attributes=tuple(draw(sample_attributes(rows, key)) for key in keys),
    )


@st.composite
def any_links(draw: st.DrawFn, rows: int) -> Links:
    ids = draw(
        st.lists(
            st.tuples(st.sampled_from([0, 1, 2**64, 2**127]), st.sampled_from([0, 1, 2**63])), min_size=1
        )
    )
    return links(draw(st.lists(st.integers(0, len(ids) - 1), min_size=rows, max_size=rows)), ids)
