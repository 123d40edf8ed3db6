"""Tier task on live programs: what a task did is its request's, however many share a thread, and never another's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kernel.interleaved import Links, backend, judged, observe
from tests.rig import fake_cudart_path
from tests.rig.pythons import Python, pythons

pytestmark = pytest.mark.long

SERVER = Path(__file__).parent / "data" / "task_server.py"
CALLS = 3  # that a handler makes itself


def served(python: str, way: str, folder: Path, clients: int, requests: int) -> tuple[Links, Links]:
    """How the calls and the outbound requests of an asyncio server are linked."""
    with backend() as port:
        command = [python, str(SERVER), way, str(port), str(fake_cudart_path())]
        return judged(observe(command, folder, clients, requests))


@pytest.mark.parametrize("python", [each for each in pythons() if each.root is None], ids=str)
def test_what_asyncio_handlers_do_is_linked_by_task(python: Python, tmp_path: Path) -> None:
    calls, outbound = served(str(python.path), "streams", tmp_path, clients=8, requests=20)
    assert (calls.right, calls.all) == (CALLS * 160, CALLS * 160)
    assert calls.sources == {"task": CALLS * 160}
    assert (outbound.right, outbound.all) == (160, 160)


def test_what_a_connections_task_does_after_its_response_is_never_the_next_ones(tmp_path: Path) -> None:
    calls, outbound = served(sys.executable, "after", tmp_path, clients=16, requests=20)
    print(f"calls: {calls}; outbound: {outbound}")
    assert calls.wrong == outbound.wrong == 0
    assert calls.all == (CALLS + 2) * 320


@pytest.mark.parametrize(("way", "beside"), [("protocol", 0), ("children", 3), ("background", 2)])
def test_what_tasks_beside_the_answering_one_do_is_nobodys(way: str, beside: int, tmp_path: Path) -> None:
    calls, outbound = served(sys.executable, way, tmp_path, clients=32, requests=10)
    assert calls.wrong == outbound.wrong == 0
    assert calls.all == (CALLS + beside) * 320
    assert (
        calls.right >= CALLS * 320 * 0.98
    )  # a number that is another's soon after is nobody's where both overlap
    assert calls.right <= CALLS * 320
    assert outbound.right >= 320 * 0.98 and outbound.all == 320
