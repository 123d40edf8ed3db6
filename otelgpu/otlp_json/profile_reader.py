"""Lines of OTLP/JSON back into columns: what ``--export file:`` and Collectors' file exporters wrote of profiles. Pure.

In: the lines of a file; those of other signals are passed over. Out: :class:`ProfileColumns`, one batch for each
profile, and how much could not be read. A broken line or sample costs no other, and nothing that a file says can raise.

Source: opentelemetry/proto/profiles/v1development/profiles.proto (release 1.10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field

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
from otelgpu.otlp_json.messages import AnyValue, Document, Number, Scope
from otelgpu.otlp_json.messages import Resource as ResourceMessage
from otelgpu.otlp_json.reader import (
    LINES,
    PROFILES,
    RESOURCES,
    SAMPLES,
    Reader,
    Unreadable,
    attribute_value,
    attributes,
    decoded,
    identity,
    int64,
    uint64,
)

Entry = TypeVar("Entry")
Value = str | int | tuple[str, ...]

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


class _ResourceProfiles(_Node):
    resource: ResourceMessage = msgspec.field(default_factory=ResourceMessage)
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


class ProfilesRead(Struct, kw_only=True):
    """What was in a file. ``unreadable``: lines, resources, profiles and samples that were not as they should be."""

    profiles: list[ProfileColumns] = field(default_factory=list)
    unreadable: int = 0


_RESOURCE_PROFILES: Final = msgspec.json.Decoder(list[_ResourceProfiles])
_DICTIONARY: Final = msgspec.json.Decoder(_Dictionary)
_SAMPLE: Final = msgspec.json.Decoder(_Sample)


def read_profile_lines(lines: Iterable[bytes | None], source: str = "") -> ProfilesRead:
    """The profiles of lines of OTLP/JSON."""
    reader = Reader(source)
    read = ProfilesRead()
    for document in reader.documents(lines, containing=b"resourceProfiles"):
        read.profiles += read_profiles(reader, document)
    read.unreadable = reader.skips.counts.total()
    return read


def read_profiles(reader: Reader, document: Document) -> Iterator[ProfileColumns]:
    """The profiles of a document; what cannot be read is counted by ``reader``."""
    try:
        of_resources = decoded(_RESOURCE_PROFILES, document.resource_profiles)
        tables = _Tables(decoded(_DICTIONARY, document.dictionary))
    except Unreadable as error:
        reader.skip(LINES, error)
        return
    for of_resource in of_resources:
        try:
            owner = resource(attributes(of_resource.resource.attributes))
        except Unreadable as error:
            reader.skip(RESOURCES, error)
            continue
        for of_scope in of_resource.scope_profiles:
            for profile in of_scope.profiles:
                try:
                    columns = tables.columns(reader, profile, owner, of_scope.scope.name)
                except Unreadable as error:
                    reader.skip(PROFILES, error)
                    continue
                if len(columns):
                    yield columns


class _Tables:
    """A dictionary's tables as the model has them. Positions that lead nowhere name the zero value."""

    def __init__(self, given: _Dictionary) -> None:
        self._strings = given.string_table
        self._attributes = [
            (self.text(each.key_strindex), _profiled(each.value)) for each in given.attribute_table
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
            memory_start=uint64(given.memory_start),
            memory_limit=uint64(given.memory_limit),
            file_offset=uint64(given.file_offset),
            build_id_gnu=str(ids.get(_GNU, "")),
            build_id_htlhash=str(ids.get(_HTLHASH, "")),
        )

    def _location(self, given: _Location) -> Location:
        reported = self.attributes(given.attribute_indices).get(_FRAME_TYPE, "")
        known = {each.value: each for each in FrameType}
        return Location(
            frame_type=known.get(str(reported), FrameType.NATIVE),
            mapping=given.mapping_index if 0 < given.mapping_index < len(self.mappings) else None,
            address=uint64(given.address),
            lines=tuple(
                Line(function=each.function_index, line=int64(each.line))
                for each in given.lines
                if 0 <= each.function_index < len(self.functions)
            ),
        )

    def columns(self, reader: Reader, given: _Profile, owner: Resource, scope: str) -> ProfileColumns:
        """A profile. Samples that cannot be read are counted by ``reader``. Raises `Unreadable`."""
        values: list[int] = []
        times: list[int] = []
        stacks: list[int] = []
        links: list[int] = []
        attributes: list[dict[str, Value]] = []
        untimed = 0
        for raw in given.samples:
            try:
                sample = decoded(_SAMPLE, raw)
                of_sample = [int64(value) for value in sample.values]
                at = [uint64(time) for time in sample.timestamps_unix_nano]
            except Unreadable as error:
                reader.skip(SAMPLES, error)
                continue
            of_sample = of_sample or [1] * len(at)  # as profiles.proto has it: each time stands for one
            if not 0 <= sample.stack_index < len(self.stacks) or (at and len(at) != len(of_sample)):
                reader.skip(SAMPLES, "no such stack, or not a time for each value")
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
            period=int64(given.period),
            start_unix_ns=uint64(given.time_unix_nano),
            duration_ns=uint64(given.duration_nano),
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
        )

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


def _profiled(value: AnyValue) -> Value:
    """As columns of attributes have them: text, texts or an integer. Raises `Unreadable`."""
    found: AttributeValue = attribute_value(value)
    if isinstance(found, bool):
        return int(found)
    return str(found) if isinstance(found, float) else found


def _entry(table: Sequence[Entry], code: int) -> Entry | None:
    return table[code] if 0 <= code < len(table) else None


def _ids(links: Sequence[_Link]) -> tuple[Any, Any]:
    """Shapes (m, 16) and (m, 8); zeros for what is no id."""
    columns = []
    for width, texts in ((16, [each.trace_id for each in links]), (8, [each.span_id for each in links])):
        rows = np.zeros((len(texts), width), dtype=np.uint8)
        for row, text in enumerate(texts):
            try:
                rows[row] = np.frombuffer(identity(text, width), dtype=np.uint8)
            except Unreadable:
                continue
        columns.append(rows)
    return columns[0], columns[1]
