"""Real servers under one load: what they did is what is reported. docs/reference/measured/real-servers.md has all.

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
from tests.rig.priority import FIRST
from tests.servers.compare import SERVER, Compared, faults
from tests.servers.load import Outcome
from tests.servers.running import Server, Upstream, started
from tests.servers.stacks import BY_NAME, STACKS

pytestmark = pytest.mark.long

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
        # An agent with too little of a processor says that it does not parse everything.
        with Session("attach", f"-p{observed}", traces=traces, prefix=FIRST) as session:
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
def test_what_a_server_did_is_what_is_reported(name: str, compared: Mapping[str, Compared]) -> None:
    found, stack = compared[name], BY_NAME[name]
    print(
        f"\n{name}: {dict(found.links)}, first tokens {median(found.ttft_after_server_ms):.2f} ms after the server's, "
        f"{median(found.ttft_before_client_ms):.2f} ms before the client's"
    )
    assert found.requests == TOGETHER * ROUNDS * (len(stack.round) + stack.round.count("pipelined"))
    assert found.links.total() == found.calls > found.requests
    assert len(found.ttft_after_server_ms) == TOGETHER * ROUNDS * stack.round.count("stream")
    assert not faults(found)
