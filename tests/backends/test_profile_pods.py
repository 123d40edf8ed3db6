"""``otelgpu profile-pods`` where the agent's profiles are sent: to a real Collector, with the events of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

from tests.backends.collector import Collector
from tests.backends.test_collector import environment
from tests.backends.test_profiles import conforming
from tests.kernel.observing import wait_until
from tests.kernel.test_profile_pods import asked_for


def events(collector: Collector) -> list[str]:
    return [
        record.body.string_value
        for of_resource in collector.logs().resource_logs
        for scope in of_resource.scope_logs
        for record in scope.log_records
    ]


def resources(message: ProfilesData) -> Iterator[tuple[str, str]]:
    """Attributes of all resources; the Collector moves their texts into the table."""
    texts = message.dictionary.string_table
    for of_resource in message.resource_profiles:
        for each in of_resource.resource.attributes:
            key, value = texts[each.key_strindex], texts[each.value.string_value_strindex]
            yield each.key or key, each.value.string_value or value


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to sample the pod's processes")
def test_a_profile_of_a_pod_that_is_annotated_is_in_the_collector_and_in_no_file(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(collector, "grpc").items():
        monkeypatch.setenv(name, value)
    with asked_for(tmp_path, {"export": ["otlp"], "profiles": ["cpu"]}) as asking:
        wait_until(lambda: len(events(collector)) == 2, "the event that it ended", limit_s=90)
    began, ended = events(collector)
    assert began == "pod serving/asking: a profile of 2 s began"
    assert ended.startswith("pod serving/asking: a profile of 2 s ended: over: ")
    assert ended.endswith(" samples")
    messages = collector.profiles()
    assert [broken for each in messages for broken in conforming(each)] == []
    names = {text for each in messages for text in each.dictionary.string_table}
    assert "asked_for" in names and "not_asked_for" not in names
    pods = {value for each in messages for key, value in resources(each) if key == "k8s.pod.uid"}
    assert pods == {asking}
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["decided.json"]
