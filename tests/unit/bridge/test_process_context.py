"""The process context (OTEP 4719): its payload, when it changes, and what a child of fork() has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from tests.unit.bridge.observed import LIBRARY, run

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="otelgpu.bridge has no library: no Python.h at build time"
)

VALUES = st.recursive(
    st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.binary(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=5,
)


def parsed(payload: bytes) -> tuple[Resource, dict[str, AnyValue]]:
    """A ProcessContext: {Resource resource = 1; repeated KeyValue attributes = 2}, which opentelemetry-proto lacks.

    The resource is field 1 of any message that has one there, and so on: its tags are read by hand.
    """
    resource, attributes, at = Resource(), {}, 0
    while at < len(payload):
        tag, at = payload[at], at + 1
        size, shift = 0, 0
        while True:
            byte, at = payload[at], at + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        part, at = payload[at : at + size], at + size
        assert len(part) == size
        if tag == 1 << 3 | 2:
            resource.MergeFromString(part)
        else:
            assert tag == 2 << 3 | 2
            pair = KeyValue.FromString(part)
            attributes[pair.key] = pair.value
    return resource, attributes


def plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    return (
        [plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
    )


def resource_of(payload: bytes) -> dict[str, object]:
    return {pair.key: plain(pair.value) for pair in parsed(payload)[0].attributes}


@given(st.dictionaries(st.text(), VALUES, max_size=6))
def test_any_attributes_are_encoded_as_they_are(attributes: dict[str, object]) -> None:
    from otelgpu.bridge.process_context import encode

    resource, threads = parsed(encode(attributes))
    assert {pair.key: plain(pair.value) for pair in resource.attributes} == attributes
    assert resource.dropped_attributes_count == 0
    assert threads["threadlocal.schema_version"].string_value == "tlsdesc_v1_dev"
    assert list(threads["threadlocal.attribute_key_map"].array_value.values) == []


def test_what_has_no_type_goes_as_text_and_what_does_not_fit_is_counted() -> None:
    from otelgpu.bridge.process_context import MAX_PAYLOAD, encode

    assert resource_of(encode({"a": None, "b": 2**64, "c": "\ud800"})) == {
        "a": "None",
        "b": str(2**64),
        "c": "?",
    }
    payload = encode(
        {"small": 1, "large": "x" * MAX_PAYLOAD, "half": "y" * 40_000, "other half": "z" * 40_000, "b": 2}
    )
    assert len(payload) <= MAX_PAYLOAD
    assert list(resource_of(payload)) == ["small", "half", "b"]
    assert parsed(payload)[0].dropped_attributes_count == 2


def test_the_environment_is_read_as_the_sdk_reads_it() -> None:
    from opentelemetry.sdk.resources import OTELResourceDetector

    from otelgpu.bridge.process_context import environment_resource

    for attributes in (
        "a=1,b=x%20y",
        " a = 1 , b=2=3,nothing,=empty,c=",
        "",
        ",",
        "service.name=from attributes",
    ):
        for name in ("", "from name"):
            environment = {"OTEL_RESOURCE_ATTRIBUTES": attributes, "OTEL_SERVICE_NAME": name}
            with pytest.MonkeyPatch.context() as patch:
                for key, value in environment.items():
                    patch.setenv(key, value)
                sdk = OTELResourceDetector().detect().attributes
            # The SDK's Resource drops an empty key, as an attribute of that name is invalid.
            ours = {key: value for key, value in environment_resource(environment).items() if key}
            assert ours == {key: value for key, value in sdk.items() if key}


def payloads(stdout: str) -> list[dict[str, object]]:
    return [resource_of(bytes.fromhex(line)) for line in stdout.splitlines()]


def test_the_resource_is_the_environments_then_the_providers(tmp_path: Path) -> None:
    done = run(
        """
        print(process_context().hex())
        with tracer.start_as_current_span("first"):
            print(process_context().hex())
        with tracer.start_as_current_span("second"):
            print(process_context().hex())
        """,
        tmp_path,
        OTEL_SERVICE_NAME="by environment",
    )
    before, first, second = payloads(done.stdout)
    assert before == {"service.name": "by environment"}
    assert first["service.name"] == "observed"
    assert first["shards"] == 4
    assert second == first


def test_spans_that_do_not_record_report_the_provider_too(tmp_path: Path) -> None:
    done = run(
        """
        from opentelemetry.trace import NonRecordingSpan, SpanContext
        context.attach(trace.set_span_in_context(NonRecordingSpan(SpanContext(1, 2, is_remote=True))))
        print(process_context().hex())
        """,
        tmp_path,
    )
    assert payloads(done.stdout)[0]["service.name"] == "observed"


def test_a_child_of_fork_publishes_its_own(tmp_path: Path) -> None:
    done = run(
        """
        with tracer.start_as_current_span("before") as span:
            before = process_context()
            others = [threading.Thread(target=time.sleep, args=(0.5,)) for _ in range(3)]
            for thread in others: thread.start()
            child = os.fork()
            if child == 0:
                try:
                    check()
                    assert published() is not None
                    assert process_context() == before
                    with tracer.start_as_current_span("in the child"):
                        check()
                    os._exit(0)
                except BaseException as error:
                    print(repr(error), file=sys.stderr, flush=True)
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            check()
            assert process_context() == before
        """,
        tmp_path,
    )
    assert done.stderr == ""
