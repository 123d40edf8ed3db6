"""How fast chunks of HTTP connections become exchanges, on one core.

Run: ``.venv/bin/python -m tests.bench.bench_http [--json] [--chunks N]``. Prints rates of one run and their
ratio to the baseline, which is httptools alone reading the same response bytes (no pairing, no events, no
JSON); asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable

import httptools

from otelgpu.model.inputs import Batch
from tests.bench.rows import Row
from tests.unit.families.requests.traffic import (
    LAST_CHUNK,
    Connection,
    chunk,
    joined,
    new_state,
    request,
    response,
)

EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,'
    b'"model":"meta-llama/Llama-3.1-8B","choices":[{"index":0,"delta":{"content":" token"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
CONNECTIONS = 100
GIGABYTE = 1 << 30


def stream(chunks: int) -> tuple[list[Batch], list[bytes]]:
    """Streams of many connections, token by token in turn, as the ring drains them."""
    connections = [Connection(identity=i + 1, tid=200 + i) for i in range(CONNECTIONS)]
    batches: list[Batch] = []
    sent: list[bytes] = []
    for connection in connections:
        batches.append(connection.open())
        body = b'{"model":"meta-llama/Llama-3.1-8B","stream":true,"messages":[]}'
        batches += connection.read(request("POST", "/v1/chat/completions", body))
    head = response(200, None, content_type="text/event-stream", transfer_encoding="chunked")
    turns = [head, *[chunk(EVENT)] * (chunks // CONNECTIONS - 2), chunk(b"data: [DONE]\n\n") + LAST_CHUNK]
    for data in turns:
        for connection in connections:
            batches += connection.write(data)
            sent.append(data)
    return joined(batches), sent


def small_requests(chunks: int) -> list[Batch]:
    """Keep-alive requests of two chunks each."""
    connection = Connection()
    batches = [connection.open()]
    for _ in range(chunks // 2):
        batches += connection.read(request("GET", "/health?x=1", host="127.0.0.1:8000", user_agent="curl/8"))
        batches += connection.write(response(200, b'{"status":"ok"}', content_type="application/json"))
    return joined(batches)


def json_requests(count: int) -> tuple[list[Batch], list[tuple[bytes, bytes]]]:
    """Chat completions that are not streamed, and the bytes of each request and its response."""
    prompt = b"Why was the first token of this request slow? " * 8
    asked = b'{"model":"meta-llama/Llama-3.1-8B","messages":[{"role":"user","content":"%s"}]}' % prompt
    answered = (
        b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","model":"meta-llama/Llama-3.1-8B",'
        b'"choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":64,"completion_tokens":64,"total_tokens":128}}' % prompt
    )
    pair = (
        request("POST", "/v1/chat/completions", asked, content_type="application/json"),
        response(200, answered, content_type="application/json"),
    )
    connection = Connection()
    batches = [connection.open()]
    for _ in range(count):
        batches += connection.read(pair[0])
        batches += connection.write(pair[1])
    return joined(batches), [pair] * count


def large_upload(size: int) -> list[Batch]:
    """A body of which the kernel captured the first 16 KiB and nothing else, then the response."""
    connection = Connection()
    head = f"POST /upload HTTP/1.1\r\ncontent-length: {size}\r\n\r\n".encode()
    batches = [connection.open(), *connection.read(head + bytes(16384))]
    connection.skip("read", size - 16384 - 100)
    return [*batches, *connection.read(bytes(100)), *connection.write(response(200, b"ok"))]


class Nothing:
    """The cheapest protocol object that httptools takes."""

    def on_body(self, data: bytes) -> None:
        pass


def best_seconds(work: Callable[[], object], rounds: int = 3) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()  # others may have this core meanwhile
        work()
        best = min(best, time.process_time() - start)
    return best


def feed_all(batches: list[Batch]) -> int:
    state = new_state()
    return sum(len(state.feed(batch).exchanges) for batch in batches)


def parse_all(sent: list[bytes]) -> None:
    parsers = [httptools.HttpResponseParser(Nothing()) for _ in range(CONNECTIONS)]
    for i, data in enumerate(sent):
        parsers[i % CONNECTIONS].feed_data(data)


def parse_pairs(pairs: list[tuple[bytes, bytes]]) -> None:
    for asked, answered in pairs:
        httptools.HttpRequestParser(Nothing()).feed_data(asked)
        httptools.HttpResponseParser(Nothing()).feed_data(answered)


def measure(chunks: int) -> dict[str, float]:
    batches, sent = stream(chunks)
    seconds = best_seconds(lambda: feed_all(batches))
    baseline = best_seconds(lambda: parse_all(sent))
    # The ring gives runs of one record where sizes alternate; here each batch is one record.
    single = [
        Batch(family=b.family, kind=b.kind, records=b.records[i : i + 1])
        for b in batches
        for i in range(len(b.records))
    ]
    single_seconds = best_seconds(lambda: feed_all(single))
    requests = small_requests(chunks // 4)
    request_seconds = best_seconds(lambda: feed_all(requests))
    batches, pairs = json_requests(chunks // 10)
    json_seconds = best_seconds(lambda: feed_all(batches))
    json_baseline = best_seconds(lambda: parse_pairs(pairs))
    upload = large_upload(GIGABYTE)
    upload_seconds = best_seconds(lambda: feed_all(upload))
    return {
        "stream_chunks_per_s": round(chunks / seconds),
        "stream_chunks_per_s_batches_of_one": round(chunks / single_seconds),
        "httptools_alone_chunks_per_s": round(len(sent) / baseline),
        "stream_us_per_chunk": round(1e6 * seconds / chunks, 2),
        "httptools_alone_us_per_chunk": round(1e6 * baseline / len(sent), 3),
        "stream_cost_over_httptools_alone": round(seconds / baseline, 1),
        "keep_alive_requests_per_s": round(chunks / 8 / request_seconds),
        "json_requests_per_s": round(len(pairs) / json_seconds),
        "httptools_alone_json_requests_per_s": round(len(pairs) / json_baseline),
        "gigabyte_upload_ms": round(upload_seconds * 1000, 2),
    }


def rows(quick: bool) -> list[Row]:
    """Chunks of streamed responses (tokens), whole small requests, and JSON completions."""
    result = measure(20_000 if quick else 100_000)
    alone = result["httptools_alone_chunks_per_s"]
    return [
        Row(
            bench="http",
            name="streamed chunks to exchanges",
            value=result["stream_chunks_per_s"],
            unit="chunks/s",
            baseline="httptools alone, same bytes",
            baseline_value=alone,
        ),
        Row(
            bench="http",
            name="a server-sent event",
            value=result["stream_us_per_chunk"],
            unit="µs",
            baseline="httptools alone, same bytes",
            baseline_value=result["httptools_alone_us_per_chunk"],
        ),
        Row(
            bench="http",
            name="the same in batches of one",
            value=result["stream_chunks_per_s_batches_of_one"],
            unit="chunks/s",
            baseline="httptools alone, same bytes",
            baseline_value=alone,
        ),
        Row(
            bench="http",
            name="keep-alive requests to exchanges",
            value=result["keep_alive_requests_per_s"],
            unit="requests/s",
        ),
        Row(
            bench="http",
            name="JSON completions to exchanges",
            value=result["json_requests_per_s"],
            unit="requests/s",
            baseline="httptools alone, same bytes",
            baseline_value=result["httptools_alone_json_requests_per_s"],
        ),
        Row(bench="http", name="an upload of 1 GB", value=result["gigabyte_upload_ms"], unit="ms"),
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--chunks", type=int, default=100_000)
    options = arguments.parse_args()
    result = measure(options.chunks)
    if options.json:
        machine = f"{platform.machine()} {platform.release()} Python {platform.python_version()}"
        print(json.dumps({**result, "machine": machine}))
        return
    for name, value in result.items():
        print(f"{name:36} {value:>14,}")


if __name__ == "__main__":
    main()
