"""Time to first token and time per output token, against the packets' own time stamps on loopback.

Truth is taken at the server's end of the wire: the request's first byte as it arrives, and the packet that
carries the first content chunk (for TPOT, also the last of the response) as it leaves. The errors are printed, the
client's own figures beside them; ``OTELGPU_TRUTH_REQUESTS=2000`` asks for that many requests at each concurrency.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from examples.llm_server.client import Load, Outcome, percentile, run
from tests.kernel.observing import OTELGPU, Span, read_spans, requests
from tests.rig import start_llm_server
from tests.rig.packets import PacketExchange, PacketLog

REQUESTS = int(os.environ.get("OTELGPU_TRUTH_REQUESTS", "0"))
TOKENS = 8
LIMIT_MS = 1.0
FIRST_CONTENT = re.compile(rb'"delta":\{"content":"[^"]')
RESPONSE_ID = re.compile(rb'"id":"(chatcmpl-[0-9a-f]+)"')


@dataclass(frozen=True, slots=True)
class Latency:
    """What one observer says of one request, in seconds."""

    first_token_s: float
    per_token_s: float


def on_the_wire(exchanges: Iterable[PacketExchange]) -> dict[str, Latency]:
    """Streamed completions by response id."""
    found = {}
    for exchange in exchanges:
        response = exchange.response
        content, name = FIRST_CONTENT.search(response), RESPONSE_ID.search(response)
        if content is None or name is None:
            continue
        first_ns = exchange.left_ns(content.start())
        found[name[1].decode()] = Latency(
            (first_ns - exchange.arrived_ns) / 1e9, (exchange.left_ns(-1) - first_ns) / 1e9 / (TOKENS - 1)
        )
    return found


def by_spans(spans: Iterable[Span]) -> dict[str, Latency]:
    return {
        reported["gen_ai.response.id"]: Latency(
            reported["gen_ai.latency.time_to_first_token"], reported["otelgpu.gen_ai.time_per_output_token"]
        )
        for reported in (span["attributes"] for span in spans)
        if "gen_ai.response.id" in reported
    }


def by_client(outcomes: Iterable[Outcome]) -> dict[str, Latency]:
    found = {}
    for outcome in outcomes:
        assert outcome.ttft_s is not None and outcome.tpot_s is not None, outcome
        found[outcome.id] = Latency(outcome.ttft_s, outcome.tpot_s)
    return found


@dataclass(frozen=True, slots=True)
class Errors:
    """What an observer said more (or less) than the packets, in ms, one a request."""

    first_token_ms: list[float]
    per_token_ms: list[float]

    @classmethod
    def of(cls, said: dict[str, Latency], truth: dict[str, Latency]) -> Errors:
        pairs = [(said[name], truth[name]) for name in truth]
        return cls(
            [1e3 * (mine.first_token_s - true.first_token_s) for mine, true in pairs],
            [1e3 * (mine.per_token_s - true.per_token_s) for mine, true in pairs],
        )


def described(who: str, errors: Errors) -> str:
    rows = []
    for what, values in (("TTFT", errors.first_token_ms), ("TPOT", errors.per_token_ms)):
        sizes = [abs(value) for value in values]
        rows.append(
            f"{who} {what}: error p50 {percentile(values, 0.5):+.3f}, |p50| {percentile(sizes, 0.5):.3f}, "
            f"|p99| {percentile(sizes, 0.99):.3f}, |max| {max(sizes):.3f} ms"
        )
    return "\n".join(rows)


@pytest.mark.parametrize(("concurrency", "count"), [(1, REQUESTS or 200), (64, REQUESTS or 400)])
def test_latencies_are_those_of_the_packets(concurrency: int, count: int, tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    prefix = (OTELGPU, "run", "--quiet", "--detail=phases", f"--export=file:{traces}", "--")
    with start_llm_server(threads=max(10, concurrency), prefix=prefix) as server:
        port = urlsplit(server.url).port
        assert port is not None
        load = Load(
            url=server.url,
            requests=count,
            concurrency=concurrency,
            stream=True,
            max_tokens=TOKENS,
            api="chat",
            model="tiny-llm",
            prompt="Why was the first token of this request slow?",
            traceparent=False,
        )
        with PacketLog(port) as packets:
            outcomes = run(load)
    assert packets.lost == 0
    truth = on_the_wire(packets.exchanges())
    served = [span for span in requests(read_spans(traces)) if "gen_ai.response.id" in span["attributes"]]
    ours, clients = by_spans(served), by_client(outcomes)
    assert ours.keys() == truth.keys() == clients.keys()
    assert len(truth) == count
    errors = Errors.of(ours, truth)
    load_average = os.getloadavg()[0]
    print(f"\n{count} requests, {concurrency} at once, load average {load_average:.1f}")
    print(
        f"by packets: TTFT p50 {1e3 * percentile([one.first_token_s for one in truth.values()], 0.5):.2f} ms"
    )
    print(described("otelgpu", errors))
    print(described("client", Errors.of(clients, truth)))
    starts = Counter(span["attributes"]["otelgpu.start.source"] for span in served)
    assert starts.keys() <= {"arrival", "read"}
    # Of what comes while accept() is on its way back nobody keeps the arrival (bpf/http/arrival.h): it says so.
    assert starts["arrival"] >= 0.98 * count
    assert percentile([abs(error) for error in errors.first_token_ms], 0.99) <= LIMIT_MS
    assert percentile([abs(error) for error in errors.per_token_ms], 0.99) <= LIMIT_MS
