"""Every server at each of its loads: ``python -m tests.servers.measure [WORD…]`` writes build/servers/NAME.json.

Of all that are built, or of those with one of the words in their names. Each is asked before an agent observes it,
meanwhile, and once it is gone. What is compared is all of the time between; how long answers take is taken from four
seconds on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.kernel.observing import Session
from tests.rig.spans import read_spans
from tests.servers.compare import SERVER, faults, figures
from tests.servers.load import Outcome
from tests.servers.running import Server, Upstream, started
from tests.servers.stacks import ROOT, STACKS, Stack
from tests.servers.versions import versions

RESULTS: Final = ROOT / "build" / "servers"
_WARM_S: Final = 4.0
_ATTEMPTS: Final = 3
"""Where the agent had so little of a processor that it said it had not parsed everything: on machines that do more."""
_REQUESTS: Final = 400
"""At least as many in each load but that of one connection."""

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A load's outcomes, and the processor time that the server had for each request."""

    outcomes: list[Outcome]
    cpu_ms: float

    def median_ms(self) -> float:
        """How long a whole completion took at the client."""
        return 1e3 * median(outcome.seconds for outcome in self.outcomes if outcome.kind == "answer")


def measured(stack: Stack) -> Result:
    """What came of a server."""
    with tempfile.TemporaryDirectory(prefix="otelgpu-servers-") as name, contextlib.ExitStack() as stay:
        folder = Path(name)
        upstream = Upstream(folder)
        stay.callback(upstream.close)
        server = stay.enter_context(started(stack, upstream, folder / "server"))
        return _measured(server, upstream, folder / "traces.jsonl")


def _measured(server: Server, upstream: Upstream, traces: Path) -> Result:
    numbers = count(1_000_000, 1_000_000)

    def ask(together: int, least_s: float = 0.0) -> Asked:
        rounds = 8 if together == 1 else max(1, _REQUESTS // (15 * together))
        began_s = server.cpu_s()
        outcomes = server.ask(next(numbers), together, rounds, least_s)
        return Asked(outcomes, 1e3 * (server.cpu_s() - began_s) / len(outcomes))

    together, busy = server.stack.together, os.getloadavg()[0]
    ask(8)  # what happens once has happened
    before = {n: ask(n) for n in together}
    pids = ",".join(map(str, server.pids()))
    with Session("attach", f"-p{pids}", "--families=http,sched", traces=traces) as session:
        warm = ask(8, _WARM_S)
        during = {n: ask(n) for n in together}
        asked = [outcome for each in (warm, *during.values()) for outcome in each.outcomes]
        _wait_for_spans(session, server, len(asked))
    after = {n: ask(n) for n in together}
    spans = read_spans(traces)
    found, lost = server.compare(asked, upstream, spans), _lost(session.said)
    return {
        "stack": server.stack.name,
        "versions": versions(server.stack),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load_average": busy,
        "lost": lost,
        "faults": faults(found, lost="http.chunks_" in lost),
        "all": figures(found),
        "loads": {
            n: figures(server.compare(during[n].outcomes, upstream, _of(spans, during[n].outcomes)))
            | {"median_ms": [each[n].median_ms() for each in (before, during, after)]}
            | {"cpu_ms": [each[n].cpu_ms for each in (before, during, after)]}
            for n in together
        },
    }


def _wait_for_spans(session: Session, server: Server, number: int) -> None:
    """All of the server's; where they do not come, the comparison says so."""
    try:
        session.spans(
            lambda span: span["kind"] == SERVER and span["attributes"].get("server.port") == server.port,
            number,
            limit_s=10,
        )
    except AssertionError as error:
        print(f"{server.stack.name}: {str(error)[:200]}", file=sys.stderr)


def _of(spans: Iterable[dict[str, Any]], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Spans but SERVER spans of other clients."""
    ports = {outcome.port for outcome in outcomes}
    return [
        span for span in spans if span["kind"] != SERVER or span["attributes"].get("client.port") in ports
    ]


def _lost(said: str) -> str:
    """What the session's end says of records that were lost."""
    lines = (re.match(r"lost +([\w.]+ \d+)", line) for line in said.splitlines())
    return ", ".join(found[1] for found in lines if found is not None)


def main() -> int:
    """Measure those that are named, or all; 1 where something was wrong that is not known."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    chosen = [stack for stack in STACKS if _is_chosen(stack, sys.argv[1:])]
    found = [fault for stack in chosen for fault in _kept(stack)]
    return 1 if found or not chosen else 0


def _is_chosen(stack: Stack, words: Sequence[str]) -> bool:
    if not words:
        return not stack.large or stack.is_built()
    return any(word.lower() in stack.name.lower() for word in words)


def _kept(stack: Stack) -> list[str]:
    """Measure a server, keep what came of it, say so; what was wrong."""
    began = time.monotonic()
    result = measured(stack)
    for _ in range(_ATTEMPTS - 1):
        if "shed" in result["lost"]:
            result = measured(stack)
    result_path(stack).write_text(json.dumps(result, indent=1))
    whole = result["all"]
    print(
        f"{stack.name}: {whole['requests']} requests, {whole['calls']} calls, links {dict(whole['links'])}, "
        f"{time.monotonic() - began:.0f} s"
    )
    for fault in result["faults"]:
        print(f"  WRONG    {fault}"[:1000], flush=True)
    faults: list[str] = result["faults"]
    return faults


def result_path(stack: Stack) -> Path:
    """Where what came of a server is kept."""
    return RESULTS / f"{re.sub('[^a-z]+', '-', stack.name.lower())}.json"


if __name__ == "__main__":
    sys.exit(main())
