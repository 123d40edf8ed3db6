"""A load client for the server: sends completions over kept-alive connections and measures what it sees.

In: an address and how much. Out: a table, and with --output a JSON line per request. Standard library only.
TTFT is from just before the request is sent to the first token that arrives; TPOT is (duration - TTFT) /
(tokens - 1), as in OpenTelemetry's gen_ai.server.time_per_output_token.
"""

from __future__ import annotations

import argparse
import http.client
import json
import secrets
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the client saw of one request; times are CLOCK_MONOTONIC in ns."""

    id: str = ""
    x_request_id: str = ""
    trace_id: str = ""
    status: int = 0
    error: str = ""
    start_ns: int = 0
    end_ns: int = 0
    first_byte_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send."""

    url: str
    requests: int
    concurrency: int
    max_tokens: int
    stream: bool = True
    api: str = "chat"
    model: str = "example-7b"
    prompt: str = "how long is a piece of string"
    traceparent: bool = False

    @property
    def path(self) -> str:
        """The endpoint."""
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"

    def body(self) -> bytes:
        """The request's body."""
        content: dict[str, Any] = {"model": self.model, "max_tokens": self.max_tokens, "stream": self.stream}
        if self.api == "chat":
            content["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            content["prompt"] = self.prompt
        if self.stream:
            content["stream_options"] = {"include_usage": True}
        return json.dumps(content).encode()


def _read_stream(response: http.client.HTTPResponse, outcome: Outcome) -> None:
    while line := response.readline():
        now_ns = time.monotonic_ns()
        if not line.startswith(b"data: ") or line == b"data: [DONE]\n":
            continue
        event = json.loads(line[len(b"data: ") :])
        if outcome.first_byte_s is None:
            outcome.first_byte_s = (now_ns - outcome.start_ns) / 1e9
        outcome.id = event.get("id", outcome.id)
        if "error" in event:
            outcome.error = event["error"]["message"]
        for choice in event.get("choices", ()):
            if choice.get("text") or choice.get("delta", {}).get("content"):
                if outcome.ttft_s is None:
                    outcome.ttft_s = (now_ns - outcome.start_ns) / 1e9
                outcome.output_tokens += 1


def _read_whole(response: http.client.HTTPResponse, outcome: Outcome) -> None:
    body = json.loads(response.read())
    if "error" in body:
        outcome.error = body["error"]["message"]
    else:
        outcome.id = body["id"]
        outcome.output_tokens = body["usage"]["completion_tokens"]


def send(connection: http.client.HTTPConnection, load: Load) -> Outcome:
    """Send one request and read its whole answer."""
    outcome = Outcome(x_request_id=secrets.token_hex(8))
    headers = {"Content-Type": "application/json", "X-Request-Id": outcome.x_request_id}
    if load.traceparent:
        outcome.trace_id = secrets.token_hex(16)
        headers["traceparent"] = f"00-{outcome.trace_id}-{secrets.token_hex(8)}-01"
    body = load.body()
    outcome.start_ns = time.monotonic_ns()
    try:
        connection.request("POST", load.path, body, headers)
        response = connection.getresponse()
        outcome.status = response.status
        streamed = response.headers.get_content_type() == "text/event-stream"
        (_read_stream if streamed else _read_whole)(response, outcome)
    except (OSError, http.client.HTTPException, ValueError) as error:
        connection.close()
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.end_ns = time.monotonic_ns()
    if outcome.ttft_s is not None and outcome.output_tokens > 1:
        duration_s = (outcome.end_ns - outcome.start_ns) / 1e9
        outcome.tpot_s = (duration_s - outcome.ttft_s) / (outcome.output_tokens - 1)
    return outcome


def run(load: Load) -> list[Outcome]:
    """Send `load.requests` requests over `load.concurrency` connections, each with a thread of its own."""
    address = urlsplit(load.url)
    remaining = iter(range(load.requests))
    lock = threading.Lock()
    outcomes: list[Outcome] = []

    def work() -> None:
        connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=60)
        while True:
            with lock:
                if next(remaining, None) is None:
                    break
            outcome = send(connection, load)
            with lock:
                outcomes.append(outcome)
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(load.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(outcomes, key=lambda outcome: outcome.start_ns)


def percentile(values: list[float], fraction: float) -> float:
    """The value below which `fraction` of the (non-empty) `values` lie, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def format_table(outcomes: list[Outcome]) -> str:
    """Counts, and the spread of each measure in milliseconds."""
    failed = [outcome for outcome in outcomes if outcome.error or outcome.status != 200]
    tokens = sum(outcome.output_tokens for outcome in outcomes)
    lines = [f"{len(outcomes)} requests, {len(failed)} failed, {tokens} tokens"]
    lines.append(f"{'ms':<12}{'p50':>9}{'p95':>9}{'p99':>9}{'max':>9}")
    measures = {
        "first byte": [o.first_byte_s for o in outcomes if o.first_byte_s is not None],
        "TTFT": [o.ttft_s for o in outcomes if o.ttft_s is not None],
        "TPOT": [o.tpot_s for o in outcomes if o.tpot_s is not None],
        "duration": [(o.end_ns - o.start_ns) / 1e9 for o in outcomes],
    }
    for name, values in measures.items():
        if values:
            columns = (
                percentile(values, 0.5),
                percentile(values, 0.95),
                percentile(values, 0.99),
                max(values),
            )
            lines.append(f"{name:<12}" + "".join(f"{1e3 * value:>9.2f}" for value in columns))
    if failed:
        lines.append(f"first failure: {failed[0].status} {failed[0].error}")
    return "\n".join(lines)


def parse_options(arguments: list[str] | None = None) -> tuple[Load, Path | None]:
    """Command line → what to send, and where the JSON lines go."""
    parser = argparse.ArgumentParser(prog="client.py", description="Sends completions and measures them.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--stream", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--api", choices=("chat", "completions"), default="chat")
    parser.add_argument("--model", default="tiny-llm")
    parser.add_argument("--prompt", default="Why was the first token of this request slow?")
    parser.add_argument("--traceparent", action="store_true", help="send a W3C traceparent, a new trace each")
    parser.add_argument("--output", type=Path, help="append a JSON line per request to this file")
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    return Load(**options), output


def main() -> int:
    """Run the load; 1 when a request failed."""
    load, output = parse_options()
    outcomes = run(load)
    print(format_table(outcomes))
    if output is not None:
        with output.open("a") as file:
            file.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
    return int(any(outcome.error or outcome.status != 200 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
