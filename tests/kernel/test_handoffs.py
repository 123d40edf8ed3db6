"""Tier wakeup on live programs: work given to a pool is its request's, and never another's."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.kernel.interleaved import FIRST, Scene, ask, play_all
from tests.rig import fake_cudart_path
from tests.rig.spans import Span

pytestmark = pytest.mark.long

SERVER = Path(__file__).parent / "data" / "handoff_server.py"
APART = {"executor": 4, "queue": 4}
"""Workers, by the way of handing over: requests that come one by one."""
AT_ONCE = [
    ("executor", 1, 0.0, 0.5),
    ("executor", 3, 0.2, 0.5),
    ("queue", 2, 0.0, 0.5),
    ("locks", 3, 0.0, 0.5),
    ("nested", 4, 0.0, 0.5),
    # What a thread waits for may be no result, or results come unreported: next to nothing is linked.
    ("shares", 8, 0.0, 0.0),
    ("between", 3, 0.0, 0.0),
    ("several", 4, 0.0, 0.0),
]
"""The way, workers, seconds between a client's requests, the least share of calls that are linked."""
CALLS = {"nested": 6, "several": 9}
"""Allocations for a request, where they are not three."""


def requests_of(pause_s: float) -> int:
    """Of a client, of which others ask at the same time."""
    return 20 if pause_s else 60


@pytest.fixture(scope="module")
def judgements(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[object, ...], tuple[int, int, int]]:
    """Of each server, by way and workers: allocations whose trace is their request's, another's, and nobody's."""

    def scene(way: str, workers: int, clients: int, requests: int, pause_s: float) -> Scene:
        command = (sys.executable, str(SERVER), way, str(workers), str(fake_cudart_path()))
        asking = partial(ask, pause_s=pause_s)
        return Scene(command=command, clients=clients, requests=requests, asking=asking)

    scenes: dict[tuple[object, ...], Scene] = {
        (way, "apart"): scene(way, workers, 1, 40, 0.03) for way, workers in APART.items()
    }
    for way, workers, pause_s, _ in AT_ONCE:
        scenes[way, workers] = scene(way, workers, 8, requests_of(pause_s), pause_s)
    scenes["batch", 1] = scene("batch", 1, 8, 60, 0.0)
    observed = play_all(scenes, tmp_path_factory.mktemp("handoffs"))
    return {key: judged(spans) for key, spans in observed.items()}


def judged(spans: list[Span]) -> tuple[int, int, int]:
    paths = {s["traceId"]: s["attributes"]["url.path"] for s in spans if "url.path" in s["attributes"]}
    right = wrong = nobodys = 0
    for span in spans:
        own = f"/job/{span['attributes'].get('cuda.size')}"
        if span["name"] != "cudaMalloc" or own == FIRST:
            continue
        path = paths.get(span["traceId"])
        if path is None:
            nobodys += 1
        elif path == own:
            assert span["attributes"]["otelgpu.context.source"] == "wakeup"
            right += 1
        else:
            wrong += 1
    return right, wrong, nobodys


@pytest.mark.parametrize("way", APART)
def test_requests_that_come_apart_are_linked(
    way: str, judgements: dict[tuple[object, ...], tuple[int, int, int]]
) -> None:
    right, wrong, nobodys = judgements[way, "apart"]
    assert right + wrong + nobodys == 120
    # A pool starts a thread for the first, and a connection's thread wakes the one that started it.
    assert wrong == 0
    assert right >= 105  # and a worker that had not gone idle again is not woken


@pytest.mark.parametrize(("way", "workers", "pause_s", "least"), AT_ONCE)
def test_however_many_at_once_none_is_linked_to_another(
    way: str,
    workers: int,
    pause_s: float,
    least: float,
    judgements: dict[tuple[object, ...], tuple[int, int, int]],
) -> None:
    right, wrong, nobodys = judgements[way, workers]
    print(
        f"{way}, {workers} workers, {pause_s} s apart: {right} linked, {nobodys} unattributed, {wrong} wrong"
    )
    assert right + wrong + nobodys == 8 * requests_of(pause_s) * CALLS.get(way, 3)
    assert wrong == 0
    assert right >= least * (right + nobodys)


def test_what_is_done_for_several_at_once_is_nobodys(
    judgements: dict[tuple[object, ...], tuple[int, int, int]],
) -> None:
    right, wrong, nobodys = judgements["batch", 1]
    print(f"batches: {right} linked to one, {nobodys} unattributed, {wrong} wrong")
    assert wrong == 0
    assert right <= 0.1 * nobodys
