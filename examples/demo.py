"""``make demo``: a request's trace with its CUDA work, on this machine, checked against the truth.

Starts the example LLM server under ``otelgpu run``, sends it streamed requests, and then looks at the
OTLP JSON file as a stranger would: every request must have its trace, every trace its CUDA operations, and
TTFT and TPOT must agree with what the server itself logged. Exits with 1 when they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from examples.llm_server.client import Load, Outcome, run
from tests.rig import start_llm_server

_REAL_GPU: Final = Path("/dev/nvidiactl")
Span = dict[str, Any]


def main() -> int:
    """Run the demonstration; 0 when everything agreed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument(
        "--tolerance-ms",
        type=float,
        default=2.0,
        help="how far TTFT and TPOT may be from the server's figures",
    )
    parser.add_argument("--output", type=Path, default=Path("demo/otelgpu.jsonl"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.unlink(missing_ok=True)
    console = Console()

    # Kernels of half a millisecond make the example decode at the pace of a real model.
    environment = {"FAKE_CUDART_KERNEL_US": "500"}
    gpu = "a real GPU" if _REAL_GPU.exists() else "the stand-in libcudart of tests/fakes (no GPU here)"
    console.print(f"[bold]1.[/bold] starting examples/llm_server under 'otelgpu run', on {gpu}")
    otelgpu = str(Path(sys.executable).with_name("otelgpu"))
    prefix = (otelgpu, "run", "--export", f"file:{options.output}", "--")
    if _REAL_GPU.exists():
        environment = {"LLM_TOLERATE_LAUNCH_ERRORS": "1", "LLM_CUDART": os.environ.get("LLM_CUDART", "")}
    with start_llm_server(env=environment, prefix=prefix) as server:
        console.print(f"[bold]2.[/bold] sending {options.requests} streamed requests to {server.url}")
        load = Load(
            url=server.url,
            requests=options.requests,
            concurrency=options.concurrency,
            stream=True,
            max_tokens=options.max_tokens,
            api="chat",
            model="example-7b",
            prompt="Tell me about tracing.",
            traceparent=False,
        )
        run(replace(load, requests=1))  # warms up: Python imports lazily, between the read and the handler
        outcomes = run(load)
        truth = server.truth(1 + options.requests)[1:]
        output = server.output_path
        console.print("[bold]3.[/bold] stopping it (SIGTERM), which flushes")
        server.process.terminate()
        server.process.wait(30)
        said = output.read_text(errors="replace")
    console.print(_summary(said), highlight=False, markup=False)
    return _judge(options.output, truth, outcomes, options.tolerance_ms, console)


def _summary(said: str) -> str:
    """What otelgpu printed, without the server's own lines."""
    lines = said.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("Requests:")), len(lines))
    return "\n".join(lines[first:]) if first < len(lines) else said


def read_spans(path: Path) -> Iterator[Span]:
    """The spans of an OTLP JSON lines file, attributes as plain mappings."""
    for line in path.read_text().splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    yield span | {
                        "attributes": {a["key"]: _value(a["value"]) for a in span.get("attributes", ())}
                    }


def _value(value: dict[str, Any]) -> Any:
    kind, content = next(iter(value.items()))
    if kind == "arrayValue":
        return tuple(_value(item) for item in content.get("values", ()))
    return int(content) if kind == "intValue" else content


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
    for line in truth:
        request = by_response.get(line["id"])
        if request is None:
            problems.append(f"{line['id']}: no trace")
            continue
        calls = _calls(traces[request["traceId"]])
        if calls != (made := _made(line)):
            problems.append(f"{line['id']}: CUDA calls {calls}, but the server made {made}")
        # The server's own log begins when it has read the request.
        unread = request["attributes"].get("otelgpu.http.time_to_read", 0)
        ttft = request["attributes"].get("gen_ai.latency.time_to_first_token", float("nan")) - unread
        tpot = request["attributes"].get("otelgpu.gen_ai.time_per_output_token", float("nan"))
        for name, seen, told in (("TTFT", ttft, line["ttft_s"]), ("TPOT", tpot, line["tpot_s"])):
            if not abs(seen - told) * 1e3 <= tolerance_ms:
                problems.append(
                    f"{line['id']}: {name} {seen * 1e3:.2f} ms, but the server says {told * 1e3:.2f} ms"
                )
        client = clients[line["id"]]
        table.add_row(
            line["id"],
            f"{sum(calls.values())}",
            *(f"{v * 1e3:.2f}" for v in (ttft, line["ttft_s"], client.ttft_s or 0)),
            *(f"{v * 1e3:.2f}" for v in (tpot, line["tpot_s"], client.tpot_s or 0)),
        )
    console.print(table)
    if by_response:
        console.print(_tree(traces[next(iter(by_response.values()))["traceId"]]))
    console.print(f"The traces are in {path} (OTLP JSON lines). To send them to a Collector instead:")
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


def _calls(spans: list[Span]) -> dict[str, int]:
    """CUDA calls by function in a trace; a folded span stands for several."""
    calls: dict[str, int] = defaultdict(int)
    for span in spans:
        name = span["name"].split()[0]
        if name.startswith("cuda"):
            calls[name] += span["attributes"].get("otelgpu.count", 1)
    return dict(sorted(calls.items()))


def _made(line: dict[str, Any]) -> dict[str, int]:
    """The calls that the server counted: all that it makes for a request have probes."""
    return dict(sorted(line["cuda_calls"].items()))


def _tree(spans: list[Span]) -> Tree:
    """One trace as a tree in order of time, cut after a few children."""
    children: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda s: int(s["startTimeUnixNano"])):
        children[span.get("parentSpanId", "")].append(span)

    def grow(branch: Tree, parent: str) -> None:
        for span in children[parent][:8]:
            grow(branch.add(_label(span), highlight=False), span["spanId"])
        if len(children[parent]) > 8:
            branch.add(f"… {len(children[parent]) - 8} more")

    tree = Tree("[bold]One request's trace[/bold]")
    grow(tree, "")
    return tree


def _label(span: Span) -> str:
    duration = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6
    shown = ("gen_ai.usage.output_tokens", "otelgpu.count", "cuda.size", "cuda.launch.calls")
    facts = " ".join(f"{key}={span['attributes'][key]}" for key in shown if key in span["attributes"])
    return f"{span['name']}  {duration:.3f} ms  [dim]{facts}[/dim]"


if __name__ == "__main__":
    sys.exit(main())
