"""A ring that is too small loses records, and says exactly how many."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu.model.inputs import RecordsLost
from tests.kernel.observing import OTELGPU, Watch, cuda_calls, probed, read_spans
from tests.rig import run_cuda_client, start_cuda_client, start_program

CALLS = 100_003  # prime
LIMIT_S = 60


def test_what_was_recorded_and_what_was_lost_make_up_what_was_called(watch: Callable[..., Watch]) -> None:
    watching = watch(ring_bytes=65_536)
    with start_cuda_client(calls=CALLS, functions=("cudaMalloc",), threads=2) as client:
        watching.observe(client.pid)
        said = watching.during(client.finish, drain=False)  # the worst case: nobody drains
    submitted, lost = watching.total("cuda", "submitted"), watching.total("cuda", "ring_full")
    assert said.calls["cudaMalloc"] == CALLS
    assert lost > 0
    assert submitted + lost == sum(probed(dict(said.calls)).values())
    assert sum(watching.calls().values()) == submitted
    # The ring works on after that.
    watching.start_anew()
    with start_cuda_client(calls=101, functions=("cudaMalloc",)) as client:
        watching.observe(client.pid)
        watching.during(client.finish)
    assert watching.calls()["cudaMalloc"] == 101


def test_who_lost_how_many_records_is_known(watch: Callable[..., Watch]) -> None:
    watching = watch(ring_bytes=65_536)
    made: dict[int, int] = {}
    for calls in (5_003, 10_007):
        with start_cuda_client(calls=calls, functions=("cudaMalloc",)) as client:
            watching.observe(client.pid)
            said = watching.during(client.finish, drain=False)
        made[said.pid] = sum(probed(dict(said.calls)).values())
    total = watching.total("cuda", "ring_full")
    deadline = time.monotonic() + LIMIT_S
    while sum(lost(watching).values()) < total and time.monotonic() < deadline:
        watching.pump(0.1)
    assert lost(watching) == {pid: calls - len_of(watching, pid) for pid, calls in made.items()}
    assert sum(lost(watching).values()) == total > 0


def lost(watching: Watch) -> Counter[int]:
    """Records of CUDA calls by process."""
    found: Counter[int] = Counter()
    for item in watching.inputs:
        if isinstance(item, RecordsLost) and item.family == "cuda":
            found[item.tgid] += item.count
    return found


def len_of(watching: Watch, pid: int) -> int:
    return sum(watching.calls(pid).values())


def test_a_session_with_a_tiny_ring_ends_and_reports_the_loss(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    said = run_cuda_client(
        prefix=(OTELGPU, "run", "--ring-bytes=65536", "--families=cuda", f"--export=file:{traces}", "--"),
        calls=CALLS,
        functions=("cudaMalloc",),
        threads=2,
    )
    assert said.exit_code == 0
    assert said.calls["cudaMalloc"] == CALLS
    reported = re.search(r"records +(\d+) cuda\D", said.stderr)
    assert reported, said.stderr
    lost, counted = (
        int(found[1]) if (found := re.search(rf"cuda\.{reason} (\d+)", said.stderr)) else 0
        for reason in ("ring_full", "detail_shed")
    )
    assert int(reported[1]) + lost + counted == sum(probed(dict(said.calls)).values())
    assert sum(cuda_calls(read_spans(traces)).values()) == int(reported[1])


@pytest.mark.parametrize("sessions", [True, False])
def test_calls_beyond_the_detail_are_counted_exactly(watch: Callable[..., Watch], sessions: bool) -> None:
    watching = watch(sessions=sessions)
    (overload,) = watching.source.overloads
    made: Counter[str] = Counter()
    for level in (1, 2, 0):
        overload.force(level)
        with start_program("shared", "--launches=101", "--mallocs=23") as program:
            watching.observe(program.pid)
            (said,) = watching.during(program.finish)
        made += Counter(probed(dict(said.calls)))
        watching.inputs += watching.source.losses()
    recorded, counted = Counter(watching.calls()), Counter(watching.counted())
    assert recorded + counted == made
    assert (recorded["cudaLaunchKernel"], counted["cudaLaunchKernel"]) == (101, 202)
    assert (recorded["cudaMalloc"], counted["cudaMalloc"]) == (2 * 24, 24)
    assert watching.total("cuda", "detail_shed") == sum(counted.values())
    assert (watching.total("cuda", "detail_lowered"), watching.total("cuda", "detail_raised")) == (2, 1)


def test_a_ring_that_fills_has_less_put_into_it_until_it_is_calm_again(watch: Callable[..., Watch]) -> None:
    watching = watch(ring_bytes=65_536)
    with start_cuda_client(calls=CALLS, functions=("cudaLaunchKernel",), threads=2) as client:
        watching.observe(client.pid)
        said = watching.during(client.finish)
    watching.inputs += watching.source.losses()
    lost, counted = watching.total("cuda", "ring_full"), sum(watching.counted().values())
    assert counted > lost
    assert sum(watching.calls().values()) + lost + counted == sum(probed(dict(said.calls)).values())
    assert watching.total("cuda", "detail_lowered") > 0
