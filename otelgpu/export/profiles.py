"""Columns of profile samples to OTLP protobuf bytes, with no Python statement per sample. Pure.

In: :class:`~otelgpu.model.profiles.ProfileColumns`. Out: serialized ``ExportProfilesServiceRequest`` messages
(opentelemetry/proto/collector/profiles/v1development/profiles_service.proto, release 1.10). It must not look at
what names mean.

How. Each batch is one profile, in as many payloads as the limit asks for. Each payload stands alone: resource,
scope, types, a run of samples, and a dictionary of what these use. Runs are cut by cost, before anything is
written (:mod:`otelgpu.export.profile_rows`).

Example: 50,000 kernel times under 300 stacks of 20 frames, without times, are one payload of 300 samples:
200 KB of values, four bytes each, and a dictionary of 70 KB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import pack
from typing import Final

from msgspec import Struct

from otelgpu.export.profile_rows import Run, SampleRows
from otelgpu.export.protobuf import delimited, varint
from otelgpu.export.wire import DEFAULT_MAX_BYTES, resource_field, scope_field
from otelgpu.model.profiles import ProfileColumns

# Tag bytes: field number << 3 | wire type (0 varint, 1 fixed64, 2 bytes).
_RESOURCE_PROFILES, _DICTIONARY = b"\x0a", b"\x12"
_SCOPE_PROFILES = _PROFILES = b"\x12"
_SAMPLE_TYPE, _TIME, _DURATION, _PERIOD_TYPE, _PERIOD = b"\x0a", b"\x19", b"\x20", b"\x2a", b"\x30"
_TYPE, _UNIT = b"\x08", b"\x10"

_U64: Final = 0xFFFF_FFFF_FFFF_FFFF
_HEADER_BYTES: Final = 6
"""A tag and a length of at most five bytes."""
_TYPES_BYTES: Final = 2 * (2 + 2 * 6)
"""Sample and period type: a tag and a length each, and two numbers of at most five bytes behind their tags."""


class ProfilePayload(Struct, frozen=True, kw_only=True):
    """One serialized ``ExportProfilesServiceRequest``. ``rows``: how many observations it holds."""

    body: bytes
    rows: int


def encode_profiles(
    batches: Iterable[ProfileColumns], *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Iterator[ProfilePayload]:
    """Serialize every row of ``batches``, in payloads of at most ``max_bytes``, one at a time.

    Rows come by identity, within one in their order. Only a single row that is larger than ``max_bytes`` by
    itself, with its dictionary, makes a larger payload, alone.

    Raises :class:`ValueError` when columns differ in length, a code is outside its table, an attribute is
    neither text nor integer, or two have one key, after all rows of the batches before have been given out.
    """
    for columns in batches:
        if not len(columns):
            continue
        rows = SampleRows(columns)
        resource, scope = resource_field(columns.resource), scope_field(columns.scope)
        facts = _facts(columns)
        room = max_bytes - (len(resource) + len(scope) + len(facts) + _TYPES_BYTES + 4 * _HEADER_BYTES)
        first = 0
        while first < len(rows):
            run = rows.run(first, room)
            yield ProfilePayload(body=_body(rows, run, resource, scope, facts), rows=run.last - first)
            first = run.last


def _facts(columns: ProfileColumns) -> bytes:
    """The fields of a ``Profile`` that are the same in every payload."""
    return (
        _TIME
        + pack("<Q", columns.start_unix_ns & _U64)
        + _DURATION
        + varint(columns.duration_ns & _U64)
        + _PERIOD
        + varint(columns.period & _U64)
    )


def _body(rows: SampleRows, run: Run, resource: bytes, scope: bytes, facts: bytes) -> bytes:
    types = list(map(varint, rows.type_numbers(run)))
    sample_type = delimited(_SAMPLE_TYPE, _TYPE + types[0] + _UNIT + types[1])
    period_type = delimited(_PERIOD_TYPE, _TYPE + types[2] + _UNIT + types[3])
    head, samples = sample_type + facts + period_type, rows.samples(run)
    tables = rows.dictionary(run)

    profile = _PROFILES + varint(len(head) + len(samples)) + head
    of_scope = _SCOPE_PROFILES + varint(len(scope) + len(profile) + len(samples)) + scope + profile
    of_resource = (
        _RESOURCE_PROFILES + varint(len(resource) + len(of_scope) + len(samples)) + resource + of_scope
    )
    return b"".join(
        [of_resource, samples, _DICTIONARY + varint(sum(map(len, tables))), *tables]  # type: ignore[list-item]
    )
