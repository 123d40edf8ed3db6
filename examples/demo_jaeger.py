"""``make demo-jaeger``: a service's requests, from the agent beside it through a Collector into Jaeger, and back.

A Collector, Jaeger and, where it is, Zipkin listen on the loopback interface; ``otelgpu agent`` observes the example
LLM server, which knows nothing of it (with ``--training``: a job of eight ranks). The traces are then read by Jaeger's
own API. Exits with 1 when one is missing, or a request's has not exactly the CUDA calls that the server made.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from examples.demo import add_load_options, send_requests, service_environment
from examples.trace_tree import trace_tree
from examples.training.rank import BUCKETS
from tests.backends.collector import Collector, missing_collector, running_collector
from tests.backends.jaeger import Jaeger, missing_jaeger, running_jaeger
from tests.backends.programs import ChildProcess
from tests.backends.zipkin import Zipkin, missing_zipkin, running_zipkin
from tests.rig import ROOT, RigError, build_fakes, start_llm_server
from tests.rig.browser import screenshot
from tests.rig.cgroup import in_cgroup, own_cgroup
from tests.rig.spans import Span, cuda_calls

_OTELGPU: Final = Path(sys.executable).with_name("otelgpu")
_OUTPUT: Final = Path("demo/otelgpu.jsonl")
_ARRIVE_S: Final = 30.0
_RANKS: Final = 8
_LATE_RANK: Final = 3
_STEPS: Final = 40
_PICTURE: Final = (1400, 720)
Traces = dict[str, list[Span]]


def main() -> int:
    """Run the demonstration; 0 when all that was done is in Jaeger."""
    parser = argparse.ArgumentParser(prog="examples.demo_jaeger", description=__doc__.splitlines()[0])
    add_load_options(parser)
    parser.add_argument("--training", action="store_true", help="a job of ranks and collectives instead")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    parser.add_argument("--screenshot", type=Path, help="write a picture of the trace's page in Zipkin here")
    options = parser.parse_args()
    console = Console(highlight=False)
    if missing := missing_collector() or missing_jaeger():
        console.print(missing)
        return 1
    for number in (signal.SIGINT, signal.SIGTERM):  # what was started is ended then
        signal.signal(number, signal.default_int_handler)
    demonstrate = _training if options.training else _serving
    try:
        with running_backends(console) as backends, demonstrate(backends, options, console) as outcome:
            _show(outcome, backends, console)
            if options.screenshot and backends.zipkin:
                screenshot(
                    backends.zipkin.page(outcome.trace_id), options.screenshot, _PICTURE, budget_ms=20_000
                )
            if options.keep:
                console.print("Ctrl-C ends everything.")
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()
            return 1 if outcome.problems else 0
    except RigError as error:
        console.print(f"[red]wrong:[/red] {error}")
        return 1
    except KeyboardInterrupt:
        console.print("ended")
        return 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """What runs, and a folder for what it writes."""

    folder: Path
    collector: Collector
    jaeger: Jaeger
    zipkin: Zipkin | None

    @property
    def agent_log(self) -> Path:
        """What the agent says."""
        return self.folder / "agent.log"

    def read_back(self, since_s: float) -> Traces:
        """All traces that Jaeger has, by id."""
        found: Traces = defaultdict(list)
        for service in self.jaeger.services():
            for span in self.jaeger.find(service, since_s):
                found[span["traceId"]].append(span)
        return {
            trace_id: list({one["spanId"]: one for one in spans}.values())
            for trace_id, spans in found.items()
        }


@contextlib.contextmanager
def running_backends(console: Console) -> Iterator[Backends]:
    """Until the end of the block."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otelgpu-demo-")))
        without = missing_zipkin()
        names = "a Collector and Jaeger" if without else "a Collector, Jaeger and Zipkin"
        console.print(f"[bold]1.[/bold] starting {names}")
        jaeger = stack.enter_context(running_jaeger(folder))
        zipkin = None if without else stack.enter_context(running_zipkin(folder))
        to = [jaeger.destination] + ([zipkin.destination] if zipkin else [])
        collector = stack.enter_context(running_collector(folder, "nop", to))
        yield Backends(folder=folder, collector=collector, jaeger=jaeger, zipkin=zipkin)


@contextlib.contextmanager
def running_agent(backends: Backends, console: Console) -> Iterator[tuple[str, ...]]:
    """The sidecar; what to write before the command of a service that it shall observe.

    A container's cgroup, where one can be made, is what reports its processes from others.
    """
    with contextlib.ExitStack() as stack:
        try:
            cgroup = stack.enter_context(own_cgroup())
        except RigError:
            scope, prefix = "--executable=python3*", tuple[str, ...]()
        else:
            scope, prefix = f"--cgroup={cgroup}", in_cgroup(cgroup)
        endpoint = backends.collector.addresses["http/protobuf"]
        console.print(f"[bold]2.[/bold] starting 'otelgpu agent --export otlp:{endpoint}'")
        _OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        _OUTPUT.unlink(missing_ok=True)
        exports = (f"--export=otlp:{endpoint}", f"--export=file:{_OUTPUT}")
        # Every call from the first one on: a process waits for the moment in which a library of its gets its probes.
        command = [str(_OTELGPU), "agent", "--quiet", "--hold-on-load", scope, *exports]
        agent = ChildProcess(command, backends.agent_log)
        try:
            agent.wait_until(lambda: "observing" in agent.said())
            yield prefix
        finally:
            agent.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found in Jaeger: one of the traces, whether all is right, and if not, what is missing."""

    title: str
    trace: Sequence[Span]
    right: str
    problems: Sequence[str]

    @property
    def trace_id(self) -> str:
        """Of the trace; empty where there is none."""
        return self.trace[0]["traceId"] if self.trace else ""


@contextlib.contextmanager
def _serving(backends: Backends, options: argparse.Namespace, console: Console) -> Iterator[Outcome]:
    """Requests to the example server, which runs until the end of the block."""
    began_s = time.time()
    with contextlib.ExitStack() as stack:
        prefix = stack.enter_context(running_agent(backends, console))
        server = stack.enter_context(start_llm_server(env=service_environment(), prefix=prefix))
        console.print(f"[bold]3.[/bold] sending {options.requests} streamed requests to {server.url}")
        _, truth = send_requests(server, options)
        made = {line["id"]: line["cuda_calls"] for line in truth}
        console.print("[bold]4.[/bold] reading the traces back by Jaeger's API")
        traces = _by_response(backends.read_back(began_s))
        deadline = time.monotonic() + _ARRIVE_S
        while (missing := _differences(traces, made)) and time.monotonic() < deadline:
            time.sleep(0.5)
            traces = _by_response(backends.read_back(began_s))
        calls = sum(sum(counts.values()) for counts in made.values())
        yield Outcome(
            title="One request's trace",
            trace=traces.get(truth[-1]["id"], ()),
            right=f"{len(made)} requests, each with its trace in Jaeger and exactly its CUDA calls, {calls} in all",
            problems=missing,
        )


def _by_response(traces: Traces) -> Traces:
    """Those of completions, by the id that the service gave its answer."""
    return {
        span["attributes"]["gen_ai.response.id"]: spans
        for spans in traces.values()
        for span in spans
        if "gen_ai.response.id" in span["attributes"]
    }


def _differences(traces: Traces, made: Mapping[str, dict[str, int]]) -> list[str]:
    """What is not in Jaeger as the server logged it: all calls that it makes for a request have probes."""
    found = {name: cuda_calls(traces.get(name, ())) for name in made}
    return [
        f"{name}: CUDA calls {found[name]}, but the server made {calls}"
        for name, calls in made.items()
        if found[name] != calls
    ]


@contextlib.contextmanager
def _training(backends: Backends, _: argparse.Namespace, console: Console) -> Iterator[Outcome]:
    """A job of ranks, from its start to its end."""
    began_s = time.time()
    build_fakes()
    with running_agent(backends, console) as prefix:
        console.print(
            f"[bold]3.[/bold] training: {_RANKS} ranks, of which rank {_LATE_RANK} is late with its data"
        )
        job = (sys.executable, "-m", "examples.training", f"--ranks={_RANKS}", f"--late-rank={_LATE_RANK}")
        environment = os.environ | {"OTEL_SERVICE_NAME": "training"}
        subprocess.run([*prefix, *job, f"--steps={_STEPS}"], cwd=ROOT, env=environment, check=True)
    console.print("[bold]4.[/bold] reading the traces back by Jaeger's API")
    collectives = [
        (span["attributes"], spans)
        for spans in backends.read_back(began_s).values()
        for span in spans
        if span["attributes"].get("nccl.phase") == "collective"
    ]
    whole = [(reported, spans) for reported, spans in collectives if reported["nccl.ranks.seen"] == _RANKS]
    late = [spans for reported, spans in whole if reported["nccl.arrival.last_rank"] == _LATE_RANK]
    problems = []
    if len(whole) != BUCKETS * _STEPS:
        problems.append(f"{len(whole)} of {BUCKETS * _STEPS} collectives are in Jaeger with all ranks")
    if 2 * len(late) < len(whole):
        problems.append(f"rank {_LATE_RANK} came last to {len(late)} collectives of {len(whole)}")
    yield Outcome(
        title="One collective's trace",
        trace=late[-1] if late else (),
        right=f"{len(whole)} collectives, each with its {_RANKS} ranks in one trace in Jaeger; to {len(late)} of them "
        f"rank {_LATE_RANK} came last",
        problems=problems,
    )


def _show(outcome: Outcome, backends: Backends, console: Console) -> None:
    """One trace with its links, and the judgement."""
    trace_id = outcome.trace_id
    if trace_id:
        console.print(trace_tree(outcome.trace, outcome.title))
        links = {
            "Jaeger": f"{backends.jaeger.query}/trace/{trace_id} (a page of its releases; the Go module has none)",
            "its API": backends.jaeger.trace_url(trace_id),
            "Zipkin": backends.zipkin.page(trace_id) if backends.zipkin else missing_zipkin(),
            "viewer": f"otelgpu view {_OUTPUT}",
        }
        for name, link in links.items():
            console.print(f"{name:>8}  {link}", soft_wrap=True)
    for problem in outcome.problems[:3]:
        console.print(f"[red]wrong:[/red] {problem}")
    if outcome.problems:
        console.print(f"{len(outcome.problems)} problems; the agent says:")
        console.print(escape(backends.agent_log.read_text(errors="replace")))
    else:
        console.print(f"[green]right:[/green] {outcome.right}")


if __name__ == "__main__":
    sys.exit(main())
