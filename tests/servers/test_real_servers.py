"""Real servers under one load: what they did is what is reported. docs/real-servers.md has the table of all of them.

These are the stacks that need nothing but what `make setup` installs, side by side under one agent, eight connections
at once; `make test-servers` tries every stack at each of its loads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import pytest

from tests.kernel.observing import Session, read_spans
from tests.servers.compare import SERVER, Compared
from tests.servers.load import Outcome
from tests.servers.running import Server, Upstream, started
from tests.servers.stacks import BY_NAME, STACKS

TOGETHER: Final = 8
ROUNDS: Final = 2
QUICK: Final = [stack.name for stack in STACKS if stack.quick]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Compared]:
    folder = tmp_path_factory.mktemp("servers")
    traces = folder / "traces.jsonl"
    with contextlib.ExitStack() as stack:
        upstream = Upstream(folder)
        stack.callback(upstream.close)
        servers = [stack.enter_context(started(BY_NAME[name], upstream, folder / name)) for name in QUICK]
        observed = ",".join(str(pid) for server in servers for pid in server.pids())
        with Session("attach", f"-p{observed}", traces=traces) as session:
            outcomes = [server.ask(1_000_000 * i, TOGETHER, ROUNDS) for i, server in enumerate(servers, 1)]
            _let_all_be_seen(session, servers, outcomes)
        spans = read_spans(traces)
        return {
            server.stack.name: server.compare(asked, upstream, spans)
            for server, asked in zip(servers, outcomes, strict=True)
        }


def _let_all_be_seen(session: Session, servers: Sequence[Server], asked: Sequence[Sequence[Outcome]]) -> None:
    """The last clients have their answers; what a server does about those that were cut may go on."""
    ports = {server.port for server in servers}
    session.spans(
        lambda span: span["kind"] == SERVER and span["attributes"].get("server.port") in ports,
        sum(map(len, asked)),
    )


@pytest.mark.parametrize("name", QUICK)
def test_each_request_and_each_call_is_reported_once(name: str, compared: Mapping[str, Compared]) -> None:
    found = compared[name]
    assert found.requests == TOGETHER * ROUNDS * (15 if BY_NAME[name].pipelining else 14)
    assert found.calls > found.requests
    counts = (found.missing, found.twice, found.calls_missing, found.calls_twice)
    assert counts == (0, 0, 0, 0), found.examples


@pytest.mark.parametrize("name", QUICK)
def test_what_is_said_of_a_request_is_so(name: str, compared: Mapping[str, Compared]) -> None:
    assert not compared[name].wrong, (compared[name].wrong, compared[name].examples)


@pytest.mark.parametrize("name", QUICK)
def test_a_first_token_is_between_the_servers_clock_and_the_clients(
    name: str, compared: Mapping[str, Compared]
) -> None:
    found = compared[name]
    assert len(found.ttft_before_client_ms) == TOGETHER * ROUNDS * 3
    print(f"\n{name}: {median(found.ttft_after_server_ms):.2f} ms after the server's, ", end="")
    print(f"{median(found.ttft_before_client_ms):.2f} ms before the client's")


@pytest.mark.parametrize("name", QUICK)
def test_no_call_is_under_another_request_than_its_own(name: str, compared: Mapping[str, Compared]) -> None:
    links = compared[name].links
    print(f"\n{name}: {dict(links)}")
    assert links.total() == compared[name].calls
    assert links["wrong"] * 1000 <= BY_NAME[name].wrong_links * links.total(), compared[name].examples
