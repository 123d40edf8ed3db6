"""Device time in the observed process (otelgpu/inject/cupti*.c) against a fake libcupti and the real ones.

The program of steps (tests/fakes/cupti/steps.c) calls the CUPTI part as the interposer does and prints what
it would have written to the ring.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.rig.fakes import BUILD, ROOT, missing_compiler

KERNEL, COPY, SET = 1, 2, 3
MS = 1_000_000


@dataclass
class Run:
    """What the program printed, and the ledger of the fake."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    activities: list[dict[str, Any]] = field(default_factory=list)
    slices: list[int] = field(default_factory=list)  # as they begin
    names: dict[int, str] = field(default_factory=dict)
    total: dict[str, Any] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0

    @property
    def counted(self) -> Mapping[str, int]:
        return self.total["counted"]

    def read(self, output: str) -> None:
        for line in output.splitlines():
            said = json.loads(line)
            if "call" in said:
                self.calls.append(said)
            elif "activity" in said and not said["activity"]:
                self.slices.append(said["slice"])
            elif "activity" in said:
                self.activities.append(said)
            elif "called" in said:
                text = self.names.get(said["called"], "")[: said["offset"]] + said["text"]
                self.names[said["called"]] = text
                assert len(text) <= said["length"]
            else:
                self.total = said


@pytest.fixture(scope="module")
def program() -> Path:
    if missing := missing_compiler():
        pytest.skip(missing)
    makefile = ROOT / "tests/fakes/cupti/Makefile.inc"
    subprocess.run(["make", "-s", "-f", makefile, f"BUILD={BUILD}", "cupti"], check=True, timeout=100)
    return BUILD / "cupti_steps"


@pytest.fixture
def steps(program: Path, tmp_path: Path) -> Iterator[Any]:
    def run(*options: str, library: str | None = None, wanted: str = "1", **settings: str) -> Run:
        ledger = tmp_path / "ledger"
        own = {
            "OTELGPU_INJECT_CUPTI": wanted,
            "OTELGPU_CUPTI": library if library is not None else str(BUILD / "libcupti.so.12"),
            "FAKE_CUPTI_LEDGER": str(ledger),
        }
        began = time.monotonic()
        done = subprocess.run(
            [program, *options],
            env={**os.environ, **own, **settings},
            capture_output=True,
            text=True,
            timeout=60,
        )
        result = Run(seconds=time.monotonic() - began)
        assert (done.returncode, done.stderr) == (0, "")
        result.read(done.stdout)
        if ledger.exists():
            result.ledger = [json.loads(line) for line in ledger.read_text().splitlines()]
            ledger.unlink()
        return result

    yield run


def correlations(run: Run) -> Counter[int]:
    return Counter(activity["correlation"] for activity in run.activities)


def test_below_the_budget_everything_is_measured_and_joined(steps: Any) -> None:
    run = steps("--steps=13", "--launches=5", "--graph-nodes=3")
    assert run.counted == {}
    assert run.total["calls"] == run.total["correlated"] == 13 * 8
    assert correlations(run) == Counter({call["outer"]: call["pieces"] for call in run.calls})
    assert Counter(a["activity"] for a in run.activities) == {KERNEL: 13 * 8, COPY: 13, SET: 13}
    for call in run.calls:
        assert call["inner"] == 0
    assert {a["duration"] for a in run.activities} == {20_000}
    (ledger,) = run.ledger
    assert ledger["monotonic"]
    assert set(ledger["kinds"]) == {1, 2, 10, 22}
    launching = {"cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000", "cuLaunchKernel", "cuGraphLaunch"}
    copying = {"cudaMemcpyAsync_v3020", "cuMemcpyHtoDAsync_v2", "cudaMemsetAsync_v3020"}
    assert launching | copying <= set(ledger["callbacks"])
    assert not {"cudaMalloc_v3020", "cudaStreamSynchronize_v3020"} & set(ledger["callbacks"])
    assert (ledger["device_buffer"], ledger["device_pool"]) == (1 << 20, 32)


def test_what_the_device_did_is_reported_in_full(steps: Any) -> None:
    run = steps("--steps=2", "--launches=2", "--graph-nodes=2")
    by_kind = {kind: [a for a in run.activities if a["activity"] == kind] for kind in (KERNEL, COPY, SET)}
    assert {(a["bytes"], a["detail"]) for a in by_kind[COPY]} == {(4096, 1)}
    assert {(a["bytes"], a["detail"]) for a in by_kind[SET]} == {(512, 7)}
    of_graph = [(a["graph"], a["graph_node"]) for a in by_kind[KERNEL] if a["graph"]]
    assert of_graph == [(3, 1000), (3, 1001)] * 2
    named = Counter(run.names[a["name"]] for a in by_kind[KERNEL])
    assert named == {"_Z" + "k" * 397: 2, "_Z9flash_fwdPfS_": 2, "_Z6decodev": 4}
    assert {a["stream"] for a in run.activities} == {7}


def test_it_is_off_unless_asked_for(steps: Any) -> None:
    run = steps(wanted="")
    assert (run.activities, run.total["correlated"], run.counted) == ([], 0, {})
    assert run.ledger == []


@pytest.mark.parametrize("version", [14, 28, 130500])
def test_records_of_every_release_are_read(steps: Any, version: int) -> None:
    run = steps("--steps=3", "--graph-nodes=2", FAKE_CUPTI_VERSION=str(version))
    assert run.counted == {}
    assert correlations(run) == Counter({call["outer"]: call["pieces"] for call in run.calls})


def test_a_clock_of_its_own_is_converted_with_its_drift(steps: Any) -> None:
    run = steps(
        *("--steps=300", "--launches=1", "--step-us=2000"),
        FAKE_CUPTI_OWN_CLOCK="1",
        FAKE_CUPTI_OFFSET_NS="1700000000000000000",
        FAKE_CUPTI_DRIFT_PPM="5000",
    )
    assert run.counted == {}
    assert not run.ledger[0]["monotonic"]
    began = {call["outer"]: call["start"] for call in run.calls}
    offsets = [a["start"] - began[a["correlation"]] for a in run.activities if a["activity"] == KERNEL]
    # The kernel begins within its call. Without the drift it would be 500 µs off for each 0.1 s between flushes.
    assert len(offsets) == 300
    offsets.sort()
    assert -50_000 < offsets[15] <= offsets[150] < 50_000


def test_the_budget_is_kept_by_whole_steps(steps: Any) -> None:
    ended_early = {"slices_cut", "slices_unaligned"}  # as when the machine holds a step up for long
    for _ in range(4):
        run = steps(
            *("--steps=500", "--launches=18", "--call-us=200", "--kernel-us=5"),
            OTELGPU_INJECT_CUPTI_RATE="500",
        )
        if not set(run.counted) & ended_early:
            break
    assert not set(run.counted) & ended_early
    measured = run.total["correlated"]
    assert measured == len(run.activities)
    # 5,000 a second were made for 2 s and more; a second's budget is there at once.
    assert 800 <= measured <= 500 * (run.seconds + 1) + 200
    slices = Counter(a["slice"] for a in run.activities)
    assert len(slices) >= 3
    assert set(slices) <= set(run.slices)
    assert len(run.slices) - len(slices) in (0, 1)  # the program may end just as one begins
    assert all(count % 20 == 0 for count in slices.values())
    shares = {a["slice"]: a["sampled"] / 1e6 for a in run.activities}
    first, *later = (shares[began] for began in sorted(shares))
    assert first == 1
    # The last is nearest to what was really measured; the first slices have a second's budget to spend.
    assert len(later) == 1 or later[0] > later[-1]
    assert later[-1] == pytest.approx(measured / run.total["calls"], rel=0.7)


def test_a_graph_launch_costs_what_its_nodes_cost(steps: Any) -> None:
    run = steps(
        *("--steps=400", "--launches=1", "--graph-nodes=97", "--step-us=5000", "--kernel-us=1"),
        OTELGPU_INJECT_CUPTI_RATE="1000",
    )
    # 20,000 a second for 2 s. The first slice learns what a call causes when it has been paid for.
    assert 97 <= len(run.activities) <= 1000 * (run.seconds + 1) + 6000
    assert len({a["slice"] for a in run.activities}) >= 1
    assert run.total["correlated"] < run.total["calls"]


def test_a_program_that_never_waits_is_measured_all_the_same(steps: Any) -> None:
    run = steps(
        *("--steps=500", "--launches=8", "--step-us=4000", "--no-wait", "--kernel-us=1"),
        OTELGPU_INJECT_CUPTI_RATE="500",
    )
    assert run.counted["slices_cut"] >= 1
    assert run.counted["slices_unaligned"] >= 1
    assert 500 <= len(run.activities) <= 500 * (run.seconds + 1) + 1000


def test_threads_share_one_schedule(steps: Any) -> None:
    run = steps("--steps=50", "--threads=4", "--step-us=500")
    assert run.counted == {}
    # Where the first slice began, another thread may have been within a call.
    assert set(correlations(run)) <= {call["outer"] for call in run.calls}
    assert 4 * 50 * 7 - 20 <= len(run.activities) <= len(run.calls)
    assert len({a["stream"] for a in run.activities}) == 4


def test_a_driver_call_with_an_id_of_its_own_is_known_by_both(steps: Any) -> None:
    run = steps("--steps=3", FAKE_CUPTI_OWN_IDS="1")
    known = {call["outer"] for call in run.calls} | {call["inner"] for call in run.calls}
    assert set(correlations(run)) <= known
    assert any(call["inner"] for call in run.calls)


def test_records_without_times_are_dropped_and_counted(steps: Any) -> None:
    run = steps("--steps=10", "--launches=8", FAKE_CUPTI_ZERO_EACH="10")
    assert run.counted == {"activities_without_times": 10}
    assert len(run.activities) == 90


def test_work_that_does_not_end_is_handed_over_at_the_end_and_counted(steps: Any) -> None:
    run = steps("--steps=1", "--launches=1", "--no-wait", "--kernel-us=3000000")
    assert run.counted == {"activities_without_times": 3}
    assert run.seconds < 2.5


def test_what_the_ring_does_not_take_is_counted(steps: Any) -> None:
    run = steps("--steps=10", "--launches=8", "--full-after=31")
    lost = run.counted["activities_not_sent"]
    assert len(run.activities) + lost == 100
    assert lost >= 65


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"FAKE_CUPTI_TAKEN": "1"}, "cupti_taken"),
        ({"FAKE_CUPTI_NO_PERMISSION": "1"}, "cupti_no_permission"),
        ({"FAKE_CUPTI_VERSION": "12"}, "cupti_version_unknown"),
        ({"OTELGPU_CUPTI": "/nonexistent/libcupti.so"}, "cupti_not_found"),
        ({"OTELGPU_CUPTI": "libc.so.6"}, "cupti_incomplete"),
    ],
)
def test_what_stands_in_the_way_is_one_counted_reason(
    steps: Any, settings: dict[str, str], reason: str
) -> None:
    run = steps("--steps=5", **settings)
    assert run.counted == {reason: 1}
    assert (run.total["calls"], run.total["correlated"], run.activities) == (35, 0, [])


def test_a_flush_that_hangs_does_not_hold_up_the_end(steps: Any) -> None:
    run = steps("--steps=5", FAKE_CUPTI_HANG="1")
    assert run.counted == {"flush_late": 1}
    assert run.seconds < 3


def test_a_child_of_fork_has_no_device_time_and_ends(steps: Any) -> None:
    run = steps("--steps=5", "--fork")
    assert run.counted == {}  # of the parent, whose line comes last
    assert run.total["calls"] == run.total["correlated"] == 35
    assert len(run.activities) == 35


@pytest.mark.parametrize("wheel", ["cuda_cupti/lib/libcupti.so.12", "cu13/lib/libcupti.so.13"])
def test_the_real_library_without_a_gpu_is_refused_and_harmless(steps: Any, wheel: str) -> None:
    import nvidia

    library = next((Path(p) / wheel for p in nvidia.__path__ if (Path(p) / wheel).exists()), None)
    if library is None:
        pytest.skip(f"no {wheel} in this environment")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU: tests/gpu/ has what it answers then")
    run = steps("--steps=5", library=str(library))
    assert run.counted == {"cupti_refused": 1}
    assert run.total["calls"] == 35
