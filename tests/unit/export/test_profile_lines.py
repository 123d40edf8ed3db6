"""Profiles in files, on terminals and in memory: what is written is what was given, and the account is exact."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from msgspec.structs import replace
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

from otelgpu.export.base import Exporter
from otelgpu.export.console.exporter import ConsoleExporter
from otelgpu.export.console.top_stacks import TopStacks
from otelgpu.export.file.exporter import FileExporter
from otelgpu.export.memory import MemoryExporter
from otelgpu.export.profiles import encode_profiles
from otelgpu.model.profiles import Links
from otelgpu.otlp_json.writer import message_line
from tests.unit.export.profile_builders import from_columns, from_payloads, function, native, samples
from tests.unit.export.profile_conformance import broken_rules


def account(exporter: Exporter) -> dict[str, int]:
    stats = exporter.stats()
    found = {key.removeprefix("profiles_"): n for key, n in stats.items() if key.startswith("profiles_")}
    lost = sum(n for key, n in found.items() if key.startswith("lost_"))
    assert found.get("given", 0) == found.get("accepted", 0) + found.get("queued", 0) + lost
    return found


def as_protobuf(node: Any) -> Any:
    """Ids in hex to what protobuf's JSON mapping has."""
    import base64

    if isinstance(node, Mapping):
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode()
            if key in ("traceId", "spanId")
            else as_protobuf(value)
            for key, value in node.items()
        }
    return [as_protobuf(each) for each in node] if isinstance(node, list) else node


def test_a_line_is_the_profile_with_ids_in_hex_and_large_numbers_as_text() -> None:
    links = Links(
        codes=np.zeros(4, dtype=np.intp),
        trace_id=np.full((1, 16), 0xAB, np.uint8),
        span_id=np.full((1, 8), 0xCD, np.uint8),
    )
    columns = samples(4, links=links)
    (encoded,) = encode_profiles([columns])
    line = message_line(ProfilesData.FromString(encoded.body))
    assert line.endswith(b"\n")
    content = json.loads(line)
    assert content["dictionary"]["linkTable"][1] == {"traceId": "ab" * 16, "spanId": "cd" * 8}
    profile = content["resourceProfiles"][0]["scopeProfiles"][0]["profiles"][0]
    assert profile["timeUnixNano"] == str(columns.start_unix_ns)
    request = ParseDict(as_protobuf(content), ExportProfilesServiceRequest())
    assert broken_rules(request) == []

    class Payload:
        body = request.SerializeToString()

    payload: Any = Payload
    assert from_payloads([payload]) == from_columns(columns)


def test_a_file_has_a_line_for_each_profile(tmp_path: Path) -> None:
    exporter = FileExporter(str(tmp_path / "out"))
    exporter.export_profiles([samples(3), samples(0), samples(4)])
    exporter.export_profiles([replace(samples(2), stack=np.array([0, 77]))])
    exporter.close(1)
    exporter.export_profiles([samples(5)])
    assert len((tmp_path / "out").read_text().splitlines()) == 2
    found = account(exporter)
    assert (found["accepted"], found["lost_unencodable"], found["lost_shutdown"]) == (7, 2, 5)


def test_sessions_without_profiles_say_nothing_of_them(tmp_path: Path) -> None:
    for exporter in (FileExporter(str(tmp_path / "out")), ConsoleExporter(io.StringIO())):
        assert account(exporter) == {}
        assert [each.profiles for each in exporter.deliveries()] == [False, False]
        exporter.export_profiles([samples(1)])
        assert [each.profiles for each in exporter.deliveries()] == [False, False, True]


def test_a_terminal_gets_the_largest_stacks_at_the_end() -> None:
    out = io.StringIO()
    exporter = ConsoleExporter(out)
    columns = samples(
        3,
        value=np.array([3_000_000, 500_000, 1_500_000]),
        stack=np.array([0, 1, 0]),
        stacks=((0,), (1, 0)),
        locations=(native(1, *samples(1).locations[0].lines), native(2, *samples(1).locations[1].lines)),
        functions=(function("big\x1b[2J"), function("small")),
    )
    exporter.export_profiles([columns])
    assert out.getvalue() == "" and account(exporter)["queued"] == 3
    exporter.close(1)
    assert account(exporter)["accepted"] == 3
    assert "\x1b" not in out.getvalue()
    lines = out.getvalue().splitlines()
    assert lines[0] == "profile gpu_kernel_time  5.00 ms"
    assert lines[1].split()[:4] == ["90.0", "%", "4.50", "ms"] and len(lines) == 3


def test_a_summary_has_ten_stacks_and_holds_a_bounded_number() -> None:
    top = TopStacks()
    functions = tuple(function(f"f{n}") for n in range(6000))
    locations = tuple(
        native(n + 1, replace(samples(1).locations[0].lines[0], function=n)) for n in range(6000)
    )
    columns = samples(
        6000,
        value=np.arange(6000),
        stack=np.arange(6000),
        stacks=tuple((n,) for n in range(6000)),
        functions=functions,
        locations=locations,
    )
    top.add(columns)
    lines = top.lines()
    assert len(lines) == 11 and lines[1].endswith("f5999")
    (sums,) = top._sums.values()
    assert len(sums) <= 4096


def test_memory_keeps_so_many_and_counts_the_others() -> None:
    exporter = MemoryExporter(max_rows=5)
    exporter.export_profiles([samples(3), samples(4), samples(2)])
    assert [len(each) for each in exporter.profiles] == [3, 2]
    assert account(exporter)["lost_memory_full"] == 4


@pytest.mark.parametrize("unit", ["bytes", "count", "nanoseconds"])
def test_quantities_are_in_their_unit(unit: str) -> None:
    top = TopStacks()
    top.add(samples(1, value=np.array([2048]), sample_type=type(samples(1).sample_type)(type="t", unit=unit)))
    shown = {"bytes": "2.0 KiB", "count": "2,048", "nanoseconds": "2.05 µs"}
    assert top.lines()[0] == f"profile t  {shown[unit]}"
