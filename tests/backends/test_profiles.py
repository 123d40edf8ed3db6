"""Profiles of a live session through a real Collector: they conform, and their links lead to spans of the session."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Profile, ProfilesData, Sample

from otelgpu.export.otlp.exporter import ITEMS, OtlpExporter
from otelgpu.export.otlp.settings import OtlpSettings
from tests.backends.collector import Collector
from tests.backends.test_collector import FAST, environment, until
from tests.unit.export.profile_builders import samples
from tests.unit.export.profile_conformance import broken_rules

OTELGPU: Final = Path(sys.executable).with_name("otelgpu")
REQUESTS: Final = 12
SERVER: Final = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        spin(0.2)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
for _ in range(int(sys.argv[1])):
    server.handle_request()
    spin(0.05)
"""
"""Spins 200 ms for each request, and 50 ms for nobody."""


def conforming(data: ProfilesData) -> list[str]:
    """Rules that a message breaks; it has the fields of a request.

    The Collector writes the first attribute, which is none, with a value that is empty.
    """
    request = ExportProfilesServiceRequest.FromString(data.SerializeToString())
    if request.dictionary.attribute_table and not request.dictionary.attribute_table[0].value.WhichOneof(
        "value"
    ):
        request.dictionary.attribute_table[0].ClearField("value")
    return broken_rules(request)


def profiles_of(messages: Sequence[ProfilesData]) -> Iterator[tuple[ProfilesData, Profile]]:
    for message in messages:
        for of_resource in message.resource_profiles:
            for scope in of_resource.scope_profiles:
                for profile in scope.profiles:
                    yield message, profile


def sample_type(message: ProfilesData, profile: Profile) -> str:
    return message.dictionary.string_table[profile.sample_type.type_strindex]


def names_of(message: ProfilesData, sample: Sample) -> list[str]:
    """Of a sample's frames, the leaf first."""
    tables = message.dictionary
    stack = tables.stack_table[sample.stack_index]
    lines = (line for at in stack.location_indices for line in tables.location_table[at].lines)
    return [tables.string_table[tables.function_table[line.function_index].name_strindex] for line in lines]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_observations_arrive_as_they_were_given(collector: Collector, protocol: str) -> None:
    variables = environment(collector, protocol, "gzip")
    exporter = OtlpExporter(
        *(OtlpSettings.from_environment(variables, signal) for signal in ITEMS), retry=FAST
    )
    batches = [samples(7), samples(3)]
    exporter.export_profiles(batches)
    exporter.close(10)
    stats = exporter.stats()
    assert stats["profiles_given"] == stats["profiles_accepted"] == 10, stats
    until(lambda: len(collector.profiles()) >= 2)
    assert [conforming(each) for each in collector.profiles()] == [[], []]
    assert len(list(profiles_of(collector.profiles()))) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_continuous_profiles_of_a_server_link_to_the_spans_of_its_requests(
    collector: Collector, protocol: str, tmp_path: Path
) -> None:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    options = ("--profiles=cpu", "--profile-frequency-hz=199", "--export=otlp", "--quiet")
    variables = environment(collector, protocol) | {"OTELGPU_PROFILE_INTERVAL_S": "1"}
    with subprocess.Popen(
        [OTELGPU, "run", *options, "--", sys.executable, program, str(REQUESTS)],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as observed:
        assert observed.stdout is not None
        port = int(observed.stdout.readline())
        for _ in range(REQUESTS):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
                assert answer.read() == b"ok"
        assert observed.wait(60) == 0

    messages = collector.profiles()
    assert [conforming(each) for each in messages] == [[]] * len(messages)
    exported = {
        span.span_id
        for part in collector.traces().resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    }
    linked: Counter[bytes] = Counter()
    total = of_handler = 0
    for message, profile in profiles_of(messages):
        assert sample_type(message, profile) == "cpu"
        assert profile.period == 1_000_000_000 // 199
        for sample in profile.samples:
            value = sum(sample.values)
            total += value
            if any(name.endswith("do_GET") for name in names_of(message, sample)):
                of_handler += value
            if sample.link_index:
                linked[message.dictionary.link_table[sample.link_index].span_id] += value
    assert set(linked) <= exported
    assert len(linked) == REQUESTS
    assert sum(linked.values()) == pytest.approx(REQUESTS * 0.2e9, rel=0.15)
    assert of_handler == pytest.approx(REQUESTS * 0.2e9, rel=0.15)
    assert total > sum(linked.values()) + REQUESTS * 0.04e9
