"""Tier task on live programs: what a task did is its request's, however many share a thread, and never another's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kernel.interleaved import Links, Scene, backend, judged, play_all
from tests.rig import fake_cudart_path
from tests.rig.pythons import Python, pythons

pytestmark = pytest.mark.long

SERVER = Path(__file__).parent / "data" / "task_server.py"
CALLS = 3  # that a handler makes itself
PYTHONS = [each for each in pythons() if each.root is None]
BESIDE = {"protocol": 0, "children": 3, "background": 2}
"""Calls of a request's other tasks, by the way of making them."""


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> dict[object, tuple[Links, Links]]:
    """How calls and outbound requests of an asyncio server are linked, by interpreter or way."""

    def scene(python: object, way: str, clients: int, requests: int) -> Scene:
        command = (str(python), str(SERVER), way, str(port), str(fake_cudart_path()))
        return Scene(command=command, clients=clients, requests=requests)

    with backend() as port:
        scenes: dict[object, Scene] = {
            each.path: scene(each.path, "streams", clients=8, requests=20) for each in PYTHONS
        }
        scenes["after"] = scene(sys.executable, "after", clients=16, requests=20)
        scenes |= {way: scene(sys.executable, way, clients=32, requests=10) for way in BESIDE}
        spans = play_all(scenes, tmp_path_factory.mktemp("tasks"))
    return {key: judged(each) for key, each in spans.items()}


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_what_asyncio_handlers_do_is_linked_by_task(
    python: Python, linked: dict[object, tuple[Links, Links]]
) -> None:
    calls, outbound = linked[python.path]
    assert (calls.right, calls.all) == (CALLS * 160, CALLS * 160)
    assert calls.sources == {"task": CALLS * 160}
    assert (outbound.right, outbound.all) == (160, 160)


def test_what_a_connections_task_does_after_its_response_is_never_the_next_ones(
    linked: dict[object, tuple[Links, Links]],
) -> None:
    calls, outbound = linked["after"]
    print(f"calls: {calls}; outbound: {outbound}")
    assert calls.wrong == outbound.wrong == 0
    assert calls.all == (CALLS + 2) * 320


@pytest.mark.parametrize("way", BESIDE)
def test_what_tasks_beside_the_answering_one_do_is_nobodys(
    way: str, linked: dict[object, tuple[Links, Links]]
) -> None:
    calls, outbound = linked[way]
    assert calls.wrong == outbound.wrong == 0
    assert calls.all == (CALLS + BESIDE[way]) * 320
    # A number that is another's soon after is nobody's where both overlap.
    assert CALLS * 320 * 0.98 <= calls.right <= CALLS * 320
    assert outbound.right >= 320 * 0.98 and outbound.all == 320
