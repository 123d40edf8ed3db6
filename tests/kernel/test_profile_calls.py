"""Stacks of library calls: one sample for each outermost call, with the very start that the call's record has."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otelgpu.engine.call_stacks import CallStacks
from otelgpu.families.gpu.cuda.decode import CudaDecoder
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.families.nccl.decode import NcclDecoder
from otelgpu.families.profiles.decode import ProfileDecoder
from otelgpu.kernel import libbpf
from otelgpu.kernel.uprobe_links import UprobeLinks
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import Memory, OperationKind, Operations, concatenate
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.samples import SampleKind, Samples, StackNamed, concatenated
from otelgpu.sources import loading
from tests.kernel.observing import OTELGPU, Watch
from tests.kernel.test_verbs_capture import mapped_providers, wait_for
from tests.rig import (
    MemoryProgram,
    build_fakes,
    fake_cudart_path,
    memory_command,
    missing_compiler,
    run_cuda_client,
    start_cuda_client,
    start_ranks,
)
from tests.rig.verbs_client import VerbsClient

SOURCE = Path(__file__).parent / "data" / "call_stacks.c"
CUDA, NCCL, VERBS = 1, 2, 3
CALLERS = {
    ("caller_of_launches", "cudaLaunchKernel"): 7,
    ("caller_of_other_launches", "cudaLaunchKernel"): 11,
    ("caller_of_copies", "cudaMemcpy"): 15,
    ("caller_of_the_driver", "cuMemcpyHtoD_v2"): 2,
    ("caller_of_events", "cudaEventRecord"): 6,
    ("caller_of_allocations", "cudaMallocManaged"): 4,
}
JUMPED_OVER = ("caller_that_is_jumped_over", "cudaStreamSynchronize")
JUMPED_TO = ("caller_of_allocations", "cudaMalloc")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if tool := missing_compiler():
        pytest.skip(f"needs {tool}")
    made = tmp_path_factory.mktemp("stacks") / "program"
    # Every function begins with a frame of its own: where no table is there yet, frame pointers report all callers.
    options = ("-O0", "-Wall", "-Wextra", "-Werror", "-fcf-protection=none", "-no-pie")
    subprocess.run(["gcc", *options, "-o", made, SOURCE], check=True)
    return made


class Stacks:
    """A live source of calls and of their stacks, by name."""

    def __init__(self, watching: Watch) -> None:
        self.watching = watching

    def run(self, program: Path) -> None:
        process = subprocess.Popen([program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdin is not None and process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        self.watching.observe(process.pid)
        self.watching.pump(0.3)
        process.stdin.write("\n")
        process.stdin.flush()
        self.watching.during(process.stderr.readline)
        self.watching.pump(0.1)
        process.communicate("\n", timeout=30)
        assert process.returncode == 0

    @property
    def samples(self) -> Samples:
        decoder = ProfileDecoder()
        batches = [each for each in self.watching.inputs if isinstance(each, Batch)]
        return concatenated([decoder.samples(each) for each in batches if each.family == "profile"])

    @property
    def calls(self) -> Operations:
        decoder = CudaDecoder(self.watching.source.btf["cuda"])
        found = [item for item in self.watching.inputs if isinstance(item, Batch) and item.family == "cuda"]
        return concatenate([decoder.decode(batch) for batch in found])

    @property
    def frames(self) -> dict[int, list[str]]:
        """Of each stack its functions, the leaf first."""
        return {
            item.stack: [frame.name for frame in item.frames]
            for item in self.watching.inputs
            if isinstance(item, StackNamed)
        }


Taking = Callable[..., Stacks]


@pytest.fixture
def taking(watch: Callable[..., Watch]) -> Taking:
    def start(
        kinds: tuple[ProfileKind, ...] = (ProfileKind.CUDA,), family: str = "cuda", **options: object
    ) -> Stacks:
        profile = ProfileSettings(kinds=frozenset(kinds))
        return Stacks(watch(families=(family, "profile"), profile=profile, **options))

    return start


def by_caller(taken: Stacks) -> Counter[tuple[str, str]]:
    """(caller, function) → calls whose operation and sample say the same start, by the sample's stack."""
    stacks, calls = CallStacks(), taken.calls
    stacks.add(taken.samples, 0)
    found, numbers = stacks.find(calls)
    assert found.all(), "each operation has a sample"
    frames = taken.frames
    apis = taken.watching.api_names()
    made: Counter[tuple[str, str]] = Counter()
    for call, number in zip(calls, numbers.tolist(), strict=True):
        leaf, caller, *_ = frames[number]
        assert leaf == apis[int(call["api"])]
        made[caller, leaf] += 1
    return made


@pytest.mark.parametrize("sessions", [True, False])
def test_each_outermost_call_has_one_stack_with_its_caller_and_inner_calls_have_none(
    taking: Taking, program: Path, sessions: bool
) -> None:
    taken = taking(sessions=sessions)
    taken.run(program)
    samples = taken.samples
    assert by_caller(taken) == CALLERS
    # What was left by longjmp has no record; its stack was taken all the same.
    left_behind = 3
    assert len(samples) == sum(CALLERS.values()) + left_behind
    assert (samples["kind"] == SampleKind.CALL).all() and (samples["value"] == 1).all()
    assert (samples["other"] >> np.uint64(32) == CUDA).all() and (samples["stack"] != 0).all()


def test_without_return_probes_stacks_are_those_of_the_calls_that_are_reported(
    taking: Taking, program: Path
) -> None:
    taken = taking(return_probes=False)
    taken.run(program)
    assert by_caller(taken) == CALLERS | {JUMPED_OVER: 3, JUMPED_TO: 4}
    assert len(taken.samples) == len(taken.calls)


def test_kernels_without_links_of_many_probes_take_the_same_stacks(
    taking: Taking, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (libbpf, loading):
        monkeypatch.setattr(module, "uprobe_links", lambda: UprobeLinks.SINGLE)
    taken = taking()
    taken.run(program)
    assert by_caller(taken) == CALLERS


@pytest.mark.parametrize(
    ("kind", "functions"),
    [
        (ProfileKind.KERNEL, {"cudaLaunchKernel": 18}),
        (ProfileKind.MEM, {"cudaMallocManaged": 4}),
    ],
)
def test_only_calls_that_a_kind_needs_have_their_stacks_taken(
    taking: Taking, program: Path, kind: ProfileKind, functions: Mapping[str, int]
) -> None:
    taken = taking((kind,))
    taken.run(program)
    apis = taken.watching.api_names()
    numbers = (taken.samples["other"] & np.uint64(0xFFFFFFFF)).tolist()
    assert Counter(apis[number] for number in numbers) == functions
    assert len(taken.calls) == sum(CALLERS.values()), "operations are reported as ever"


def test_a_call_s_duration_does_not_hold_the_time_that_its_stack_took(taking: Taking, program: Path) -> None:
    taken = taking()
    taken.run(program)
    calls = taken.calls
    launches = calls[[taken.watching.api_names()[int(api)] == "cudaMemcpy" for api in calls["api"]]]
    ends = np.sort(launches["start_ns"] + launches["duration_ns"])
    assert (launches["duration_ns"] > 0).all()
    assert (np.sort(launches["start_ns"])[1:] >= ends[:-1]).all(), "one after the other"


def test_without_being_asked_for_no_stack_is_taken(taking: Taking, program: Path) -> None:
    taken = taking((ProfileKind.VERBS,))
    taken.run(program)
    assert not len(taken.samples)
    assert len(taken.calls) == sum(CALLERS.values())


@pytest.mark.parametrize(("threads", "resets", "seed"), [(1, False, 1), (5, True, 4)])
def test_memory_in_use_by_stack_adds_up_to_the_program_s_own_account_at_every_checkpoint(
    taking: Taking, threads: int, resets: bool, seed: int
) -> None:
    taken = taking((ProfileKind.MEM,))
    decoder, stacks = CudaDecoder(taken.watching.source.btf["cuda"]), CallStacks()
    ledger = MemoryLedger([decoder], stacks=stacks.stacks_of)
    command = memory_command(operations=6_000, checkpoint=1000, threads=threads, resets=resets, seed=seed)
    program = MemoryProgram(command, {"FAKE_CUDART_DEVICES": "2"})
    taken.watching.observe(program.pid)
    seen = 0
    while checkpoint := taken.watching.during(program.next_checkpoint):
        now_ns = time.monotonic_ns()
        stacks.add(taken.samples, now_ns)
        ledger.add(taken.calls)
        taken.watching.inputs.clear()
        ledger.settle(now_ns)
        held = ledger.processes[program.pid].held_by_stack()
        by_place: Counter[tuple[int, str]] = Counter()
        for (stack, device, memory, _), (size, _) in held.items():
            assert stack, "each allocation has its stack"
            by_place[device, Memory(memory).name.lower()] += size
        not_held = ("imported", "address")  # another process's, and nothing
        truth = {at: live.bytes for at, live in checkpoint.live.items() if at[1] not in not_held}
        assert {at: size for at, size in by_place.items() if size and at[1] not in not_held} == truth
        assert not truth or len({stack for stack, *_ in held}) > 1
        seen += 1
    assert (seen, program.close()) == (7, 0)
    assert not stacks.counters["stacks_beyond_memory"]


@pytest.mark.parametrize("sessions", [True, False])
def test_each_nccl_call_that_is_recorded_has_its_stack_groups_by_their_begin(
    taking: Taking, tmp_path: Path, sessions: bool
) -> None:
    taken = taking((ProfileKind.NCCL,), family="nccl", sessions=sessions)
    options = ("--wait=1", "--ranks=2", "--communicators=1", "--collectives=60", "--points=10")
    with start_ranks("collectives", *options, truth=tmp_path) as ranks:
        taken.watching.observe(*ranks.pids)
        ranks.open_gate()
        taken.watching.during(ranks.finish)
    decoder = NcclDecoder(taken.watching.source.btf["nccl"])
    batches = [item for item in taken.watching.inputs if isinstance(item, Batch) and item.family == "nccl"]
    calls = concatenate([decoder.decode(batch) for batch in batches])
    samples, stacks = taken.samples, CallStacks()
    assert (samples["other"] >> np.uint64(32) == NCCL).all()
    stacks.add(samples, 0)
    found, numbers = stacks.find(calls)
    assert len(calls) > 120 and found.all() and numbers.all()
    assert OperationKind.GROUP in calls["kind"] and OperationKind.COLLECTIVE in calls["kind"]
    reported = dict(zip(zip(samples["tid"], samples["time_ns"], strict=True), samples["other"], strict=True))
    for call in calls:
        assert reported[call["tid"], call["start_ns"]] & np.uint64(0xFFFFFFFF) == call["api"]


def test_stacks_of_posts_stand_for_all_of_them(taking: Taking) -> None:
    if not (build_fakes() / "verbs" / "verbs_client").exists():
        pytest.skip("the headers of libibverbs are not installed (Debian: libibverbs-dev)")
    settings = {"rdma_budget": float("inf")}
    taken = taking(
        (ProfileKind.VERBS,), family="verbs", of_families=settings, constants={"stack_posts_every": 4}
    )
    watching = taken.watching
    with VerbsClient() as client:
        watching.observe(client.pid)
        watching.during(lambda: client.do("open"))
        wait_for(watching, lambda: mapped_providers(watching), "probes on the provider")
        watching.during(lambda: client.do("pair"))
        watching.pump(0.1)
        watching.during(lambda: client.do("post 9"))
    samples = taken.samples
    assert (samples["other"] >> np.uint64(32) == VERBS).all() and samples["stack"].all()
    assert samples["value"].tolist() == [1, 4, 4]


def read_totals(path: Path) -> dict[str, Counter[tuple[str, ...]]]:
    """Sample type → names of a stack, the leaf first → sum, of a file with OTLP profiles."""
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for reported in filter(None, map(_profiles_of, path.read_text().splitlines())):
        words, tables = reported["dictionary"]["stringTable"], reported["dictionary"]
        names = [words[int(each.get("nameStrindex", 0))] for each in tables["functionTable"]]
        frames = [
            tuple(names[int(line.get("functionIndex", 0))] for line in each.get("lines", ()))
            for each in tables["locationTable"]
        ]
        scopes = [scope for each in reported["resourceProfiles"] for scope in each["scopeProfiles"]]
        for profile in (profile for scope in scopes for profile in scope["profiles"]):
            sums = found.setdefault(words[int(profile["sampleType"]["typeStrindex"])], Counter())
            for sample in profile["samples"]:
                stack = tables["stackTable"][int(sample.get("stackIndex", 0))]
                named = [name for place in stack.get("locationIndices", ()) for name in frames[int(place)]]
                sums[tuple(named)] += sum(map(int, sample["values"]))
    return found


def _profiles_of(line: str) -> dict[str, Any] | None:
    reported: dict[str, Any] = json.loads(line)
    return reported if "resourceProfiles" in reported else None


def _leaves(sums: Mapping[tuple[str, ...], int], kind: str) -> set[str]:
    """What kernels are called there; all must be of the kind."""
    assert all(frames[0].startswith(kind) for frames in sums)
    return {frames[0].removeprefix(kind) for frames in sums}


def test_of_a_running_program_it_is_said_how_to_have_time_on_the_device(tmp_path: Path) -> None:
    folded = tmp_path / "kernel.folded"
    with start_cuda_client(calls=2000, sleep_us=2_000) as client:
        profiling = subprocess.Popen(
            (OTELGPU, "profile", "-t", "kernel", "-d", "2", "-o", folded, "-p", str(client.pid)),
            stderr=subprocess.PIPE,
            text=True,
        )
        client.begin()
        said = profiling.communicate(timeout=60)[1]
    assert "otelgpu profile -t kernel -- COMMAND" in said
    assert folded.stat().st_size > 0


def test_a_program_that_is_started_to_be_profiled_has_its_kernels_timed_without_being_asked(
    tmp_path: Path,
) -> None:
    said, folded = tmp_path / "said", tmp_path / "kernel.folded"
    profiled = (OTELGPU, "profile", "-t", "kernel", "-o", str(folded), "--")
    environment = {
        "LD_LIBRARY_PATH": str(fake_cudart_path().parent),
        "FAKE_CUDART_DRIVER": "libcuda.so.1",
        "FAKE_CUDART_KERNEL_US": "300",
    }
    prefix = ("sh", "-c", f'exec "$@" 2>{said}', "sh", *profiled)
    run_cuda_client(prefix=prefix, calls=50, sleep_us=20_000, env=environment)
    assert "no time on the device" not in said.read_text()
    assert "GPU:" in folded.read_text(), said.read_text()


def test_where_no_kernel_could_be_timed_the_reason_is_said(tmp_path: Path) -> None:
    said, folded = tmp_path / "said", tmp_path / "kernel.folded"
    profiled = (OTELGPU, "profile", "-t", "kernel", "-o", str(folded), "--")
    environment = {
        "LD_LIBRARY_PATH": str(fake_cudart_path().parent),
        "FAKE_CUDART_DRIVER": "libcuda.so.1",
        "FAKE_CUPTI_TAKEN": "1",
    }
    prefix = ("sh", "-c", f'exec "$@" 2>{said}', "sh", *profiled)
    run_cuda_client(prefix=prefix, calls=50, sleep_us=20_000, env=environment)
    assert "another profiler" in said.read_text()


def test_time_on_the_device_is_under_the_stack_of_the_launch_as_cupti_measured_it(tmp_path: Path) -> None:
    traces, calls = tmp_path / "traces.jsonl", 400
    command = ("run", "--source=inject", "--device-time", "--profiles=kernel", f"--export=file:{traces}")
    reported = run_cuda_client(
        prefix=(OTELGPU, *command, "--quiet", "--"),
        calls=calls,
        sleep_us=5000,
        linger_ms=300,
        env={
            "LD_LIBRARY_PATH": str(fake_cudart_path().parent),
            "FAKE_CUDART_DRIVER": "libcuda.so.1",
            "FAKE_CUDART_KERNEL_US": "300",
        },
    )
    assert reported.calls["cudaLaunchKernel"] == calls
    totals = read_totals(traces)
    assert sum(totals["kernel_launches"].values()) == calls
    on_device = totals["gpu_kernel_time"]
    assert sum(on_device.values()) == pytest.approx(
        calls * 300_000, rel=0.01
    )  # measuring begins within the first
    assert _leaves(on_device, "GPU: ") == _leaves(totals["kernel_launches"], "launch: ")
    whole = {frames: time_ns for frames, time_ns in on_device.items() if "main" in frames}
    assert all("cudaLaunchKernel" in frames for frames in whole)
    assert sum(whole.values()) > 0.1 * sum(on_device.values()), "before its tables are read a stack is cut"
