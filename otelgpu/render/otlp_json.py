"""OTLP/JSON lines back into columns: what ``--export file:`` and Collectors' file exporters wrote of profiles. Pure.

In: the bytes of a file, each line a ``ProfilesData``; lines of other signals are passed over. Out:
:class:`ProfileColumns`, one batch for each profile, and how much could not be read. A broken line or sample
costs no other, and nothing that a file says can raise.

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding and
opentelemetry/proto/profiles/v1development/profiles.proto (release 1.10): 64-bit integers are decimal strings or
numbers, ids lower hex.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

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
from otelgpu.model.resource import AttributeValue, Resource, resource
from otelgpu.model.spans import Attribute
from otelgpu.view.documents import AnyValue, KeyValue, Scope

Entry = TypeVar("Entry")
Number = int | str
Value = str | int | tuple[str, ...]

_U64: Final = 0xFFFF_FFFF_FFFF_FFFF
_FRAME_TYPE: Final = "profile.frame.type"
_GNU, _HTLHASH = "process.executable.build_id.gnu", "process.executable.build_id.htlhash"


class _Node(msgspec.Struct, rename="camel"):
    """Field names as protobuf's JSON mapping spells them."""


class _ValueType(_Node):
    type_strindex: int = 0
    unit_strindex: int = 0


class _Sample(_Node):
    stack_index: int = 0
    attribute_indices: list[int] = []
    link_index: int = 0
    values: list[Number] = []
    timestamps_unix_nano: list[Number] = []


class _Profile(_Node):
    sample_type: _ValueType = msgspec.field(default_factory=_ValueType)
    samples: list[msgspec.Raw] = []
    time_unix_nano: Number = 0
    duration_nano: Number = 0
    period_type: _ValueType = msgspec.field(default_factory=_ValueType)
    period: Number = 0


class _ScopeProfiles(_Node):
    scope: Scope = msgspec.field(default_factory=Scope)
    profiles: list[_Profile] = []


class _ResourceAttributes(_Node):
    attributes: list[KeyValue] = []


class _ResourceProfiles(_Node):
    resource: _ResourceAttributes = msgspec.field(default_factory=_ResourceAttributes)
    scope_profiles: list[_ScopeProfiles] = []


class _Mapping(_Node):
    memory_start: Number = 0
    memory_limit: Number = 0
    file_offset: Number = 0
    filename_strindex: int = 0
    attribute_indices: list[int] = []


class _Line(_Node):
    function_index: int = 0
    line: Number = 0


class _Location(_Node):
    mapping_index: int = 0
    address: Number = 0
    lines: list[_Line] = []
    attribute_indices: list[int] = []


class _Function(_Node):
    name_strindex: int = 0
    system_name_strindex: int = 0
    filename_strindex: int = 0


class _Link(_Node):
    trace_id: str = ""
    span_id: str = ""


class _Stack(_Node):
    location_indices: list[int] = []


class _KeyValueAndUnit(_Node):
    key_strindex: int = 0
    value: AnyValue = msgspec.field(default_factory=AnyValue)


class _Dictionary(_Node):
    mapping_table: list[_Mapping] = []
    location_table: list[_Location] = []
    function_table: list[_Function] = []
    link_table: list[_Link] = []
    string_table: list[str] = []
    attribute_table: list[_KeyValueAndUnit] = []
    stack_table: list[_Stack] = []


class _Document(_Node):
    resource_profiles: list[_ResourceProfiles] = []
    dictionary: _Dictionary = msgspec.field(default_factory=_Dictionary)


@dataclass(slots=True, kw_only=True)
class ProfilesRead:
    """What was in a file. ``unreadable``: lines and samples that were not as they should be."""

    profiles: list[ProfileColumns] = field(default_factory=list)
    unreadable: int = 0


_document = msgspec.json.Decoder(_Document)
_sample = msgspec.json.Decoder(_Sample)


def read_profile_lines(lines: Iterable[bytes]) -> ProfilesRead:
    """The profiles of lines of OTLP/JSON."""
    read = ProfilesRead()
    for line in lines:
        if b"resourceProfiles" not in line:
            continue
        try:
            document = _document.decode(line)
            tables = _Tables(document.dictionary)
        except (msgspec.DecodeError, ValueError, RecursionError, OverflowError):
            read.unreadable += 1
            continue
        for of_resource in document.resource_profiles:
            try:
                owner = _resource(of_resource.resource.attributes)
            except (ValueError, RecursionError):
                read.unreadable += 1
                continue
            for of_scope in of_resource.scope_profiles:
                for profile in of_scope.profiles:
                    try:
                        columns, lost = tables.columns(profile, owner, of_scope.scope.name)
                    except (ValueError, OverflowError, RecursionError):
                        read.unreadable += 1
                        continue
                    read.unreadable += lost
                    if len(columns):
                        read.profiles.append(columns)
    return read


class _Tables:
    """A dictionary's tables as the model has them. Positions that lead nowhere name the zero value."""

    def __init__(self, given: _Dictionary) -> None:
        self._strings = given.string_table
        self._attributes = [
            (self.text(each.key_strindex), _plain(each.value)) for each in given.attribute_table
        ]
        self.functions = tuple(
            Function(
                name=self.text(each.name_strindex),
                system_name=self.text(each.system_name_strindex),
                file_name=self.text(each.filename_strindex),
            )
            for each in given.function_table
        )
        self.mappings = tuple(map(self._mapping, given.mapping_table))
        self.locations = tuple(map(self._location, given.location_table))
        within = range(len(self.locations))
        self.stacks = tuple(
            tuple(place for place in each.location_indices if place in within) for each in given.stack_table
        ) or ((),)
        self._trace_id, self._span_id = _ids(given.link_table or [_Link()])

    def text(self, code: int) -> str:
        """A string, "" where there is none."""
        return _entry(self._strings, code) or ""

    def attributes(self, codes: Iterable[int]) -> dict[str, Value]:
        """The attributes at some positions."""
        found = (_entry(self._attributes, code) for code in codes if code)
        return {each[0]: each[1] for each in found if each is not None}

    def _mapping(self, given: _Mapping) -> Mapping:
        ids = self.attributes(given.attribute_indices)
        return Mapping(
            file_name=self.text(given.filename_strindex),
            memory_start=int(given.memory_start) & _U64,
            memory_limit=int(given.memory_limit) & _U64,
            file_offset=int(given.file_offset) & _U64,
            build_id_gnu=str(ids.get(_GNU, "")),
            build_id_htlhash=str(ids.get(_HTLHASH, "")),
        )

    def _location(self, given: _Location) -> Location:
        told = self.attributes(given.attribute_indices).get(_FRAME_TYPE, "")
        known = {each.value: each for each in FrameType}
        return Location(
            frame_type=known.get(str(told), FrameType.NATIVE),
            mapping=given.mapping_index if 0 < given.mapping_index < len(self.mappings) else None,
            address=int(given.address) & _U64,
            lines=tuple(
                Line(function=each.function_index, line=_int64(each.line))
                for each in given.lines
                if 0 <= each.function_index < len(self.functions)
            ),
        )

    def columns(self, given: _Profile, owner: Resource, scope: str) -> tuple[ProfileColumns, int]:
        """A profile, and how many of its samples could not be read."""
        values: list[int] = []
        times: list[int] = []
        stacks: list[int] = []
        links: list[int] = []
        attributes: list[dict[str, Value]] = []
        lost = untimed = 0
        for raw in given.samples:
            try:
                sample = _sample.decode(raw)
                of_sample = [_int64(value) for value in sample.values]
                at = [int(time) & _U64 for time in sample.timestamps_unix_nano]
            except (msgspec.DecodeError, ValueError, RecursionError):
                lost += 1
                continue
            of_sample = of_sample or [1] * len(at)  # as profiles.proto has it: each time stands for one
            if not 0 <= sample.stack_index < len(self.stacks) or (at and len(at) != len(of_sample)):
                lost += 1
                continue
            untimed += not at
            values += of_sample
            times += at
            count = len(of_sample)
            stacks += [sample.stack_index] * count
            link = sample.link_index if 0 <= sample.link_index < len(self._trace_id) else 0
            links += [link] * count
            attributes += [self.attributes(sample.attribute_indices)] * count
        is_timed = bool(values) and not untimed and len(times) == len(values)
        return ProfileColumns(
            resource=owner,
            scope=scope,
            sample_type=self._type(given.sample_type),
            period_type=self._type(given.period_type),
            period=_int64(given.period),
            start_unix_ns=int(given.time_unix_nano) & _U64,
            duration_ns=int(given.duration_nano) & _U64,
            value=np.array(values, dtype=np.int64),
            time_unix_ns=np.array(times, dtype=np.uint64) if is_timed else None,
            stack=np.array(stacks, dtype=np.intp),
            stacks=self.stacks,
            locations=self.locations,
            functions=self.functions,
            mappings=self.mappings,
            links=Links(codes=np.array(links, dtype=np.intp), trace_id=self._trace_id, span_id=self._span_id)
            if any(links)
            else None,
            attributes=tuple(_attribute_columns(attributes)),
        ), lost

    def _type(self, given: _ValueType) -> ValueType:
        return ValueType(type=self.text(given.type_strindex), unit=self.text(given.unit_strindex))


def _attribute_columns(rows: Sequence[dict[str, Value]]) -> Iterable[Attribute]:
    """A column for each key; of a key with values of both types, all become text."""
    keys = dict.fromkeys(key for row in rows for key in row)
    for key in keys:
        values = [row.get(key) for row in rows]
        if len({isinstance(value, int) for value in values if value is not None}) > 1:
            values = [None if value is None else str(value) for value in values]
        yield Attribute.of(key, values)


def _resource(attributes: Iterable[KeyValue]) -> Resource:
    values: dict[str, AttributeValue] = {each.key: _plain(each.value) for each in attributes if each.key}
    return resource(values)


def _plain(value: AnyValue) -> Value:
    """Text, texts or an integer; of what is none of them, its text. Raises ValueError."""
    if value.string_value is not None:
        return value.string_value
    if value.int_value is not None:
        return _int64(value.int_value)
    if value.bool_value is not None:
        return int(value.bool_value)
    if value.double_value is not None:
        return str(value.double_value)
    if value.array_value is not None:
        return tuple(str(_plain(each)) for each in value.array_value.values)
    return ""


def _int64(value: Number) -> int:
    return (int(value) + 2**63) % 2**64 - 2**63


def _entry(table: Sequence[Entry], code: int) -> Entry | None:
    return table[code] if 0 <= code < len(table) else None


def _ids(links: Sequence[_Link]) -> tuple[Any, Any]:
    """Shapes (m, 16) and (m, 8); zeros for what is no id."""
    columns = []
    for width, texts in ((16, [each.trace_id for each in links]), (8, [each.span_id for each in links])):
        rows = np.zeros((len(texts), width), dtype=np.uint8)
        for row, text in enumerate(texts):
            try:
                raw = bytes.fromhex(text)
            except ValueError:
                continue
            if len(raw) == width:
                rows[row] = np.frombuffer(raw, dtype=np.uint8)
        columns.append(rows)
    return columns[0], columns[1]
