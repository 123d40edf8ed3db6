"""Servers whose runtimes interleave requests on a thread, or move them between threads: no link is wrong.

Without one that is exact there is none, and it is said why.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Final, Self

import pytest

from tests.kernel.test_real_programs import (
    CLIENT,
    SERVER,
    Load,
    Scene,
    Seen,
    Stage,
    calls_of,
    number_of,
    row,
)
from tests.rig.spans import Span, read_spans

pytestmark = pytest.mark.long

LOADS: Final = tuple(Load(how="http", together=together, each=each) for together, each in ((1, 24), (16, 8)))
SCENES: Final = {
    "Tokio": Scene("tokio_server", loads=LOADS),
    "FastAPI, after the answer": Scene(
        *("fastapi_server.py", "httptools", "asyncio", "background"), loads=LOADS
    ),
    "gevent, after the answer": Scene("gevent_server.py", loads=LOADS),
}
PIPELINED: Final = Load(how="pipelining_client.py", together=3, each=8)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Programs under a session of their own."""
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(900)  # the first time a program is built, of what a registry has to answer for
@pytest.mark.parametrize("name", SCENES)
def test_no_call_is_linked_to_another_request(name: str, stage: Stage) -> None:
    if "gevent" in name:
        pytest.importorskip("gevent", reason="gevent is not installed")
    played = stage.play(SCENES[name])
    seen = Seen(ended(stage), stage.truth_path.read_text().splitlines())
    links = [seen.links(each.numbers) for each in played]
    print(*map(row, repeat(name), played, links), sep="\n")
    assert [each["wrong"] for each in links] == [0] * len(LOADS)
    assert [each.total() for each in links] == [calls_of(seen, each) for each in played]
    assert set().union(*links) <= {"multiplexed", "other_task", "ambiguous", "no_request"}


def test_what_a_gateway_asks_for_pipelined_requests_is_linked_to_none_of_them(stage: Stage) -> None:
    """Node.js has read all three before it asks for the first, and asks in an order of its own."""
    upstream = Program(stage, "node_server.mjs")
    gateway = Program(stage, "node_gateway.mjs", upstream.url)
    with upstream, gateway:
        played = stage.ask(PIPELINED, gateway.url)
    sent: dict[int, Span] = {}
    traces: dict[int, str] = {}  # of the requests at the gateway
    for span in ended(stage):
        number = number_of(span)
        if number is None or span["resource"]["process.pid"] != gateway.pid:
            continue
        if span["kind"] == CLIENT:
            sent[number] = span
        elif span["kind"] == SERVER:
            traces[number] = span["traceId"]
    assert set(sent) == set(traces) == set(played.numbers)
    wrong = [n for n in sent if sent[n]["traceId"] in {traces[other] for other in traces if other != n}]
    right = [n for n in sent if sent[n]["traceId"] == traces[n]]
    print(f"sent {len(sent)}, right {len(right)}, wrong {len(wrong)}")
    assert wrong == []
    assert f"correlate.requests_multiplexed {len(sent)}" in stage.said


class Program:
    """A server of data/servers, ended when it is left."""

    def __init__(self, stage: Stage, name: str, *arguments: str) -> None:
        self.pid, port = stage.start(*stage.command_of(name), *arguments)
        self.url = f"http://localhost:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGTERM)


def ended(stage: Stage) -> list[Span]:
    """All spans of a session, which is over then."""
    stage.close()
    return read_spans(stage.folder / "traces.jsonl")
