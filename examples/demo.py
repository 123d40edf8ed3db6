"""``make demo``: a request's trace with its CUDA work, on this machine, checked against the truth.

Starts the example LLM server under ``otelgpu run``, sends it streamed requests, and then looks at the
OTLP JSON file as a stranger would: every request must have its trace, every trace its CUDA operations, and
TTFT and TPOT must agree with what the server itself logged. Exits with 1 when they do not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from examples.llm_server.client import Load, Outcome, run
from examples.trace_tree import trace_tree
from tests.rig import LlmServer, start_llm_server
from tests.rig.spans import Span, cuda_calls, read_spans

_REAL_GPU: Final = Path("/dev/nvidiactl")


def main() -> int:
    """Run the demonstration; 0 when everything agreed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_load_options(parser)
    parser.add_argument(
        "--tolerance-ms",
        type=float,
        default=2.0,
        help="how far TTFT and TPOT may be from the server's figures, in the median of the requests",
    )
    parser.add_argument("--output", type=Path, default=Path("demo/otelgpu.jsonl"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.unlink(missing_ok=True)
    console = Console()

    gpu = "a real GPU" if _REAL_GPU.exists() else "the fake libcudart of tests/fakes (no GPU here)"
    console.print(f"[bold]1.[/bold] starting examples/llm_server under 'otelgpu run', on {gpu}")
    otelgpu = str(Path(sys.executable).with_name("otelgpu"))
    prefix = (otelgpu, "run", "--export", f"file:{options.output}", "--")
    with start_llm_server(env=service_environment(), prefix=prefix) as server:
        console.print(f"[bold]2.[/bold] sending {options.requests} streamed requests to {server.url}")
        outcomes, truth = send_requests(server, options)
        output = server.output_path
        console.print("[bold]3.[/bold] stopping it (SIGTERM), which flushes")
        server.process.terminate()
        server.process.wait(30)
        said = output.read_text(errors="replace")
    console.print(_summary(said), highlight=False, markup=False)
    return _judge(options.output, truth, outcomes, options.tolerance_ms, console)


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """How much to send."""
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=16)


def service_environment() -> dict[str, str]:
    """For the example server: on the fake, kernels of half a millisecond give it the pace of a real model."""
    if _REAL_GPU.exists():
        return {"LLM_TOLERATE_LAUNCH_ERRORS": "1", "LLM_CUDART": os.environ.get("LLM_CUDART", "")}
    return {"FAKE_CUDART_KERNEL_US": "500"}


def send_requests(
    server: LlmServer, options: argparse.Namespace
) -> tuple[list[Outcome], list[dict[str, Any]]]:
    """Streamed requests as the options say; what the client saw of each, and what the server logged of each."""
    load = Load(
        url=server.url,
        requests=options.requests,
        concurrency=options.concurrency,
        stream=True,
        max_tokens=options.max_tokens,
        api="chat",
        model="example-7b",
        prompt="Report me about tracing.",
        traceparent=False,
    )
    run(replace(load, requests=1))  # warms up: Python imports lazily, between the read and the handler
    outcomes = run(load)
    return outcomes, server.truth(1 + options.requests)[1:]


def _summary(said: str) -> str:
    """What otelgpu printed, without the server's own lines."""
    lines = said.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("Requests:")), len(lines))
    return "\n".join(lines[first:]) if first < len(lines) else said


def _judge(
    path: Path, truth: list[dict[str, Any]], outcomes: list[Outcome], tolerance_ms: float, console: Console
) -> int:
    traces: dict[str, list[Span]] = defaultdict(list)
    for span in read_spans(path):
        traces[span["traceId"]].append(span)
    by_response: dict[str, Span] = {
        span["attributes"]["gen_ai.response.id"]: span
        for spans in traces.values()
        for span in spans
        if "gen_ai.response.id" in span["attributes"]
    }
    clients = {outcome.id: outcome for outcome in outcomes}
    table = Table(title="Against the truth (ms)", title_justify="left", title_style="bold")
    for name in ("request", "CUDA calls", "TTFT", "server", "client", "TPOT", "server", "client"):
        table.add_column(name, justify="left" if name == "request" else "right")
    problems: list[str] = []
    differences: dict[str, list[float]] = {"TTFT": [], "TPOT": []}
    for line in truth:
        request = by_response.get(line["id"])
        if request is None:
            problems.append(f"{line['id']}: no trace")
            continue
        calls = dict(sorted(cuda_calls(traces[request["traceId"]]).items()))
        if calls != (made := _made(line)):
            problems.append(f"{line['id']}: CUDA calls {calls}, but the server made {made}")
        # The server's own log begins when it has read the request.
        unread = request["attributes"].get("otelgpu.http.time_to_read", 0)
        ttft = request["attributes"].get("gen_ai.latency.time_to_first_token", float("nan")) - unread
        tpot = request["attributes"].get("otelgpu.gen_ai.time_per_output_token", float("nan"))
        for name, seen, reported in (("TTFT", ttft, line["ttft_s"]), ("TPOT", tpot, line["tpot_s"])):
            if isnan(seen):
                problems.append(f"{line['id']}: no {name}")
            else:
                differences[name].append(abs(seen - reported) * 1e3)
        client = clients[line["id"]]
        table.add_row(
            line["id"],
            f"{sum(calls.values())}",
            *(f"{v * 1e3:.2f}" for v in (ttft, line["ttft_s"], client.ttft_s or 0)),
            *(f"{v * 1e3:.2f}" for v in (tpot, line["tpot_s"], client.tpot_s or 0)),
        )
    console.print(table)
    for name, found in differences.items():
        # Of one request: between the read and the server's clock its thread may wait for Python's lock, 5 ms each time.
        if found and not median(found) <= tolerance_ms:
            problems.append(f"{name} is {median(found):.2f} ms from what the server says, in the median")
    if by_response:
        shown = traces[next(iter(by_response.values()))["traceId"]]
        console.print(trace_tree(shown, "One request's trace"))
    console.print(
        f"The traces are in {path} (OTLP JSON lines), and to look at in {_page(path)}: open it in a browser."
    )
    console.print("To send them to a Collector instead:")
    console.print(
        "  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 otelgpu run -- YOUR SERVER", highlight=False
    )
    for problem in problems:
        console.print(f"[red]wrong:[/red] {problem}", highlight=False)
    if not problems:
        console.print(
            f"[green]right:[/green] {len(truth)} requests, each with its trace and exactly its CUDA calls"
        )
    return 1 if problems else 0


def _page(path: Path) -> str:
    """The page that the built-in viewer makes of the traces, opened where there is a desktop."""
    otelgpu = Path(sys.executable).with_name("otelgpu")
    made = subprocess.run([otelgpu, "view", path], stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.strip()


def _made(line: dict[str, Any]) -> dict[str, int]:
    """The calls that the server counted: all that it makes for a request have probes."""
    return dict(sorted(line["cuda_calls"].items()))


if __name__ == "__main__":
    sys.exit(main())
