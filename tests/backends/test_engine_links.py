"""Links between the requests and the steps of an engine are in a Collector's own file as they were sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.backends.collector import Collector
from tests.backends.engine_session import REQUESTS, replay
from tests.kernel.observing import read_spans

Identity = tuple[str, str]
Link = tuple[str, str, int, tuple[tuple[str, Any], ...]]

_TOKENS: Final = "otelgpu.step.tokens"


def exported(path: Path) -> dict[Identity, list[Link]]:
    """The links of each span in otelgpu's own file."""
    return {
        (span["traceId"], span["spanId"]): [
            (
                link["traceId"],
                link["spanId"],
                link["flags"],
                tuple((item["key"], _plain(item["value"])) for item in link.get("attributes", ())),
            )
            for link in span.get("links", ())
        ]
        for span in read_spans(path)
    }


def _plain(value: dict[str, Any]) -> Any:
    return int(value["intValue"]) if "intValue" in value else value["stringValue"]


def stored(spans: list[Span]) -> dict[Identity, list[Link]]:
    """The same of what a Collector has."""
    return {
        (span.trace_id.hex(), span.span_id.hex()): [
            (
                link.trace_id.hex(),
                link.span_id.hex(),
                link.flags,
                tuple((item.key, _value(item.value)) for item in link.attributes),
            )
            for link in span.links
        ]
        for span in spans
    }


def _value(value: AnyValue) -> Any:
    return getattr(value, str(value.WhichOneof("value")))


def test_links_survive_a_collector(collector: Collector, engine_capture: Path, tmp_path: Path) -> None:
    replay(engine_capture, f"file:{tmp_path / 'traces.jsonl'}")
    replay(engine_capture, f"otlp:{collector.addresses['http/protobuf']}")
    collector.stop()
    spans = [s for p in collector.traces().resource_spans for scope in p.scope_spans for s in scope.spans]
    links = stored(spans)
    assert links == exported(tmp_path / "traces.jsonl")

    steps = {(s.trace_id.hex(), s.span_id.hex()) for s in spans if s.name == "engine.step"}
    requests = {(s.trace_id.hex(), s.span_id.hex()) for s in spans if s.name.startswith("chat")}
    assert len(requests) == REQUESTS
    for request in requests:  # there and back
        mine = {(trace_id, span_id) for trace_id, span_id, _, _ in links[request]}
        assert mine <= steps
        assert mine == {step for step in steps if request in {link[:2] for link in links[step]}}
    given = [dict(link[3])[_TOKENS] for step in steps for link in links[step]]
    assert sum(given) == 8 * REQUESTS
