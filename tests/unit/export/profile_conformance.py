"""The rules of OTLP profiles (v1development, opentelemetry-proto 1.10), as the proto files' comments state them.

In: a parsed request. Out: a line per rule that it breaks. Rules are MUST and SHOULD alike: we keep both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.profiles.v1development.profiles_pb2 import (
    Function,
    KeyValueAndUnit,
    Link,
    Location,
    Mapping,
    Profile,
    ProfilesDictionary,
    ResourceProfiles,
    Sample,
    Stack,
)

ZERO = {
    "mapping_table": Mapping(),
    "location_table": Location(),
    "function_table": Function(),
    "link_table": Link(),
    "string_table": "",
    "attribute_table": KeyValueAndUnit(),
    "stack_table": Stack(),
}


def broken_rules(request: ExportProfilesServiceRequest) -> list[str]:
    """Empty: the request conforms."""
    if not request.HasField("dictionary"):
        return ["there is no dictionary"]
    found = list(_tables(request.dictionary))
    if found:
        return found  # what refers to broken tables cannot be read
    seen: set[tuple[str, int]] = set()
    references = list(_references(request))
    for table, index, by in references:
        if not 0 <= index < len(getattr(request.dictionary, table)):
            found.append(f"{by} refers to {table}[{index}], which is not there")
        seen.add((table, index))
    if found:
        return found
    for table in ZERO:
        for index in range(1, len(getattr(request.dictionary, table))):
            if (table, index) not in seen:
                found.append(f"{table}[{index}] is an orphan")
    found += _dictionary_content(request.dictionary)
    for profile in _profiles(request):
        found += _profile(profile, request.dictionary)
    return found


def _profiles(request: ExportProfilesServiceRequest) -> Iterator[Profile]:
    for resource in request.resource_profiles:
        for scope in resource.scope_profiles:
            yield from scope.profiles


def _scopes(part: ResourceProfiles) -> Iterator[InstrumentationScope]:
    return (each.scope for each in part.scope_profiles)


def _tables(dictionary: ProfilesDictionary) -> Iterator[str]:
    for table, zero in ZERO.items():
        entries = getattr(dictionary, table)
        if not entries:
            yield f"{table} has no element 0"
        elif entries[0] != zero:
            yield f"{table}[0] is not the zero value"
        elif (most := Counter(map(_value, entries)).most_common(1)[0])[1] > 1:
            yield f"{table} has {most[0]!r} {most[1]} times"


def _value(entry: Any) -> Any:
    """What makes entries equal: attributes are a set. References to tables without duplicates stand for values."""
    if isinstance(entry, str):
        return entry
    copy = type(entry)()
    copy.CopyFrom(entry)
    if isinstance(entry, Mapping | Location):
        copy.attribute_indices[:] = sorted(entry.attribute_indices)
    return copy.SerializeToString(deterministic=True)


def _references(request: ExportProfilesServiceRequest) -> Iterator[tuple[str, int, str]]:
    d = request.dictionary
    for owner in (each for part in request.resource_profiles for each in (part.resource, *_scopes(part))):
        for attribute in owner.attributes:  # by reference, as the Collector writes them
            numbers = attribute.key_strindex, attribute.value.string_value_strindex
            yield from _each("string_table", numbers, "a resource or scope")
    for profile in _profiles(request):
        for of in (profile.sample_type, profile.period_type):
            yield from _each("string_table", (of.type_strindex, of.unit_strindex), "a value type")
        yield from _each("attribute_table", profile.attribute_indices, "a profile")
        for sample in profile.samples:
            yield from _each("stack_table", [sample.stack_index], "a sample")
            yield from _each("attribute_table", sample.attribute_indices, "a sample")
            yield from _each("link_table", [sample.link_index], "a sample")
    for stack in d.stack_table:
        yield from _each("location_table", stack.location_indices, "a stack")
    for location in d.location_table:
        yield from _each("mapping_table", [location.mapping_index], "a location")
        yield from _each("function_table", [line.function_index for line in location.lines], "a location")
        yield from _each("attribute_table", location.attribute_indices, "a location")
    for mapping in d.mapping_table:
        yield from _each("string_table", [mapping.filename_strindex], "a mapping")
        yield from _each("attribute_table", mapping.attribute_indices, "a mapping")
    for function in d.function_table:
        names = function.name_strindex, function.system_name_strindex, function.filename_strindex
        yield from _each("string_table", names, "a function")
    for attribute in d.attribute_table:
        yield from _each("string_table", (attribute.key_strindex, attribute.unit_strindex), "an attribute")


def _each(table: str, indices: Iterable[int], by: str) -> Iterator[tuple[str, int, str]]:
    return ((table, index, by) for index in indices)


def _dictionary_content(d: ProfilesDictionary) -> Iterator[str]:
    for link in d.link_table[1:]:
        if (
            len(link.trace_id) != 16
            or len(link.span_id) != 8
            or not any(link.trace_id)
            or not any(link.span_id)
        ):
            yield f"a link of {link.trace_id!r}, {link.span_id!r}"
    for attribute in d.attribute_table[1:]:
        if attribute.value.WhichOneof("value") in (None, "double_value"):
            yield f"an attribute of type {attribute.value.WhichOneof('value')}"
    for owner in (*d.mapping_table, *d.location_table):
        yield from _attribute_set(owner.attribute_indices, d, type(owner).__name__)
    for stack in d.stack_table:
        if 0 in stack.location_indices:
            yield "a stack with the location that is none"


def _attribute_set(indices: Sequence[int], d: ProfilesDictionary, owner: str) -> Iterator[str]:
    if 0 in indices:
        yield f"{owner} with the attribute that is none"
    keys = [d.attribute_table[index].key_strindex for index in indices]
    if len(set(keys)) < len(keys):
        yield f"{owner} with a key twice"


def _profile(profile: Profile, d: ProfilesDictionary) -> Iterator[str]:
    if not profile.HasField("sample_type"):
        yield "a profile without a sample type"
    if profile.profile_id and (len(profile.profile_id) != 16 or not any(profile.profile_id)):
        yield "a profile id that is invalid"
    if bool(profile.original_payload) != bool(profile.original_payload_format):
        yield "an original payload without its format, or the other way round"
    yield from _attribute_set(profile.attribute_indices, d, "a profile")
    identities = Counter(
        (sample.stack_index, frozenset(sample.attribute_indices), sample.link_index)
        for sample in profile.samples
    )
    yield from (f"identity {identity} {count} times" for identity, count in identities.items() if count > 1)
    if len({(bool(s.values), bool(s.timestamps_unix_nano)) for s in profile.samples}) > 1:
        yield "samples of different shapes"
    for sample in profile.samples:
        yield from _sample(sample, profile, d)


def _sample(sample: Sample, profile: Profile, d: ProfilesDictionary) -> Iterator[str]:
    values, times = sample.values, sample.timestamps_unix_nano
    if not values and not times:
        yield "a sample with neither values nor timestamps"
    if values and times and len(values) != len(times):
        yield f"a sample with {len(values)} values and {len(times)} timestamps"
    end = profile.time_unix_nano + profile.duration_nano
    if any(not profile.time_unix_nano <= time < end for time in times):
        yield "a timestamp outside the profile's time"
    yield from _attribute_set(sample.attribute_indices, d, "a sample")
