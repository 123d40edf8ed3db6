"""HTTP/2 connections that have worked for a while when otelgpu comes: their generations, at both ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel.http2_ends import CLIENT, SERVER, ask, line_of, program, until_first_token
from tests.kernel.observing import Session, Span
from tests.rig.certificates import make_certificate
from tests.rig.http2_traffic import FIRST_S, MODEL, TOKENS

BEFORE, AFTER, AT_ONCE = 23, 64, 8


@pytest.mark.parametrize("protocol", ["h2", "h2-tls", "grpc"])
def test_generations_have_their_tokens_and_times(protocol: str, tmp_path: Path) -> None:
    certificate = [str(make_certificate(tmp_path))] if protocol == "h2-tls" else []
    with program("serve", protocol, *certificate) as server:
        port = line_of(server).strip()
        with program("ask", protocol, port) as client:
            ask(client, BEFORE, AT_ONCE)
            with Session(
                "attach", f"-p{server.pid},{client.pid}", traces=tmp_path / "traces.jsonl"
            ) as session:
                waited = ask(client, AFTER, AT_ONCE)
                spans = session.spans(lambda span: span["kind"] in (SERVER, CLIENT), 2 * AFTER)
    for kind in (SERVER, CLIENT):
        found = [span for span in spans if span["kind"] == kind]
        assert len(found) == AFTER
        for span in found:
            check(span, protocol)
        first = sorted(until_first_token(span) for span in found)
        for reported, truth in zip(first, sorted(waited), strict=True):
            assert FIRST_S < reported <= truth + 0.001


def check(span: Span, protocol: str) -> None:
    reported = span["attributes"]
    assert reported["gen_ai.request.model"] == reported["gen_ai.response.model"] == MODEL
    assert reported["gen_ai.usage.output_tokens"] == reported["otelgpu.gen_ai.chunks"] == TOKENS
    assert not reported.keys() & {
        "error.type",
        "otelgpu.incomplete",
        "http.route",
        "url.template",
        "url.path",
    }
    if protocol == "grpc":
        assert "rpc.method" not in reported
        assert (reported["otelgpu.rpc.request.messages"], reported["otelgpu.rpc.response.messages"]) == (
            1,
            TOKENS,
        )
