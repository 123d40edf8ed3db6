"""`otelgpu top` on running programs: rates that are there, a clean end, frames that can be read by programs."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.observing import OTELGPU
from tests.rig import start_ranks
from tests.rig.cuda_client import start_cuda_client
from tests.rig.fakes import build_fakes
from tests.rig.verbs_client import VerbsClient

pytestmark = pytest.mark.usefixtures("kernel")

LIMIT_S = 90
Frame = dict[str, Any]


@contextmanager
def top(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running `otelgpu top`, ended like at a terminal; it must end well and have nothing to say."""
    command = [OTELGPU, "top", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, said) == (0, "")
    finally:
        process.kill()


def until(process: subprocess.Popen[str], found: Callable[[Frame], object]) -> Frame:
    """The first frame that has what is looked for."""
    assert process.stdout is not None
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        frame: Frame = json.loads(process.stdout.readline())
        if found(frame):
            return frame
    raise AssertionError(f"not within {LIMIT_S} s")


def test_launches_of_a_process_are_seen() -> None:
    # Many launches, slowly: they go on while frames are waited for.
    with (
        start_cuda_client(calls=200_000, sleep_us=200) as client,
        top("cuda", "-p", str(client.pid), "--json", "--interval", "0.3") as process,
    ):
        assert client.process.stdin is not None
        client.process.stdin.write("go\n")
        client.process.stdin.flush()
        frame = until(process, lambda frame: any(row["launches_per_s"] for row in frame["processes"]))
    assert (frame["view"], [row["pid"] for row in frame["processes"]]) == ("cuda", [client.pid])
    assert frame["seconds"] > 0


def test_the_rank_that_is_late_is_named(tmp_path: Path) -> None:
    options = ("--wait=1", "--ranks=3", "--communicators=1", "--collectives=100000", "--synchronize=1")
    late = ("--late-rank=1", "--late-every=1", "--late-us=3000")
    with start_ranks("collectives", *options, *late, truth=tmp_path) as ranks:
        pids = ",".join(map(str, ranks.pids))
        with top("nccl", "-p", pids, "--json", "--interval", "1") as process:
            until(process, lambda frame: True)  # the probes are there
            ranks.open_gate()
            frame = until(process, lambda frame: any(row["last_rank"] for row in frame["communicators"]))
        ranks.process.kill()
    latest = frame["ranks"][0]
    assert (latest["rank"], latest["pid"]) == (1, ranks.pids[1])
    assert latest["lateness_mean_s"] > 0.002
    names = ("communicator", "operation")
    of_it = [row for row in frame["communicators"] if all(row[name] == latest[name] for name in names)]
    assert [row["last_rank"] for row in of_it] == ["1"]


@pytest.fixture
def client() -> Iterator[VerbsClient]:
    if not (build_fakes() / "verbs" / "verbs_client").exists():
        pytest.skip("the headers of libibverbs are not installed (Debian: libibverbs-dev)")
    with VerbsClient() as made:
        yield made


def test_work_requests_of_a_queue_pair_are_seen(client: VerbsClient) -> None:
    with top("rdma", "-p", str(client.pid), "--json", "--interval", "0.5", "--rdma-budget", "100") as process:
        until(process, lambda frame: True)  # the probes are there
        client.do("open", "pair")

        def posted(frame: Frame) -> bool:
            client.do("post 50", "poll 60")
            return any(row["work_requests_per_s"] and row["bytes_per_s"] for row in frame["queue_pairs"])

        frame = until(process, posted)
    assert {(row["pid"], row["device"], row["queue_pair"]) for row in frame["queue_pairs"]} <= {
        (client.pid, "fake0", 100),
        (client.pid, "fake0", 101),
    }
    assert {row["state"] for row in frame["queue_pairs"]} == {"ready_to_send"}
    assert {row["failures"] for row in frame["queue_pairs"]} == {None}


def test_one_frame_for_people_and_then_the_end() -> None:
    command = [OTELGPU, "top", "rdma", "--once", "--interval", "0.3", "--families", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "RDMA queue pairs" in done.stdout and "RDMA ports" in done.stdout


def test_a_process_that_is_not_there_is_said() -> None:
    command = [OTELGPU, "top", "cuda", "-p", "4194303", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no process 4194303" in done.stderr
