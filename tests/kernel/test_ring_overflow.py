"""A ring that is too small loses records, and says exactly how many."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.kernel.observing import OTELGPU, Watch, cuda_calls, read_spans
from tests.rig import run_cuda_client, start_cuda_client

CALLS = 100_003  # prime


def test_what_was_recorded_and_what_was_lost_make_up_what_was_called(watch: Callable[..., Watch]) -> None:
    watching = watch(ring_bytes=65_536)
    with start_cuda_client(calls=CALLS, functions=("cudaMalloc",), threads=2) as client:
        watching.observe(client.pid)
        said = watching.during(client.finish, drain=False)  # the worst case: nobody drains
    submitted, lost = watching.total("cuda", "submitted"), watching.total("cuda", "ring_full")
    assert said.calls["cudaMalloc"] == CALLS
    assert lost > 0
    assert submitted + lost == CALLS
    assert sum(watching.calls().values()) == submitted
    # The ring works on after that.
    watching.start_anew()
    with start_cuda_client(calls=101, functions=("cudaMalloc",)) as client:
        watching.observe(client.pid)
        watching.during(client.finish)
    assert watching.calls() == {"cudaMalloc": 101}


def test_a_session_with_a_tiny_ring_ends_and_tells_the_loss(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    said = run_cuda_client(
        prefix=(OTELGPU, "run", "--ring-bytes=65536", "--families=cuda", f"--export=file:{traces}", "--"),
        calls=CALLS,
        functions=("cudaMalloc",),
        threads=2,
    )
    assert said.exit_code == 0
    assert said.calls["cudaMalloc"] == CALLS
    told = re.search(r"records +(\d+) cuda\D", said.stderr)
    assert told, said.stderr
    lost = re.search(r"cuda\.ring_full (\d+)", said.stderr)
    assert int(told[1]) + (int(lost[1]) if lost else 0) == CALLS
    assert cuda_calls(read_spans(traces)) == {"cudaMalloc": int(told[1])}
