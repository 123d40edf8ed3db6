"""What PyTorch's allocator gives to tensors, as otelgpu says it, is what the program knows it gave.

The program (tests/fakes/torch/tensors.c) reports to a fake libc10.so as PyTorch's allocator does to the real one
(tests/kernel/test_real_torch.py), keeps its own account, and stands still at each checkpoint.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from otelgpu.engine.profile_rows import ProfileRows
from otelgpu.families.gpu.torch.decode import TorchDecoder
from otelgpu.families.gpu.torch.profile_rows import (
    ALLOCATED,
    ALLOCATIONS,
    HOLD_NS,
    IN_USE,
    IN_USE_ALLOCATIONS,
    TensorProfiles,
)
from otelgpu.families.profiles.decode import ProfileDecoder
from otelgpu.families.profiles.torch_operators import operator_of
from otelgpu.model.allocators import device_name
from otelgpu.model.inputs import Batch
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.samples import StackNamed
from tests.kernel.observing import OTELGPU, Watch, read_metrics
from tests.rig import missing_compiler
from tests.rig.tensor_program import Sum, TensorCheckpoint, TensorProgram, read_checkpoint, tensor_command

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=f"needs {missing_compiler()}")

LEVELS = ("allocated", "reserved")
SUMS = ("allocations", "allocated_bytes", "frees", "freed_bytes", "refusals")


class Tensors:
    """A live source of what tensors are given, and of who asked."""

    def __init__(self, watching: Watch) -> None:
        self.watching = watching
        self.profiles = TensorProfiles()
        self.levels: dict[str, dict[str, int]] = {}  # by device
        self.reported: dict[str, Counter[tuple[str, str]]] = defaultdict(
            Counter
        )  # by sample type and who asked
        self._who: dict[int, tuple[str, str]] = {}

    def during(self, work: Callable[[], Any]) -> Any:
        done = self.watching.during(work)
        self.read()
        return done

    def read(self, *, final: bool = False) -> None:
        """All that came so far; a stack may be named a little later."""
        self.watching.pump(0.3)
        now_ns = time.monotonic_ns()
        for item in self.watching.inputs:
            if isinstance(item, StackNamed):
                self._who[item.stack] = operator_of((frame.type, frame.name) for frame in item.frames)
            elif isinstance(item, Batch) and item.family == "profile":
                self.profiles.see_samples(ProfileDecoder().samples(item), now_ns)
            elif isinstance(item, Batch) and item.family == "torch":
                self.profiles.see_calls(TorchDecoder().tensor_calls(item))
                for row in TorchDecoder().levels(item):
                    numbers = {name: int(row[name]) for name in row.dtype.names}
                    self.levels[device_name(numbers.pop("device"))] = numbers
        self.watching.inputs.clear()
        for rows in self.profiles.take(now_ns + HOLD_NS, final=final):
            self.reported[rows.sample_type.type] += self._by_caller(rows)

    def held(self) -> dict[str, Counter[tuple[str, str]]]:
        return {
            rows.sample_type.type: self._by_caller(rows) for rows in self.profiles.held(time.monotonic_ns())
        }

    def _by_caller(self, rows: ProfileRows) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for stack, value in zip(rows.rows["stack"].tolist(), rows.rows["value"].tolist(), strict=True):
            found[self._who[stack]] += value
        return found

    @property
    def losses(self) -> dict[str, int]:
        return {name: count for name, count in self.profiles.counters.items() if count}


@pytest.fixture
def tensors(watch: Callable[..., Watch]) -> Tensors:
    profile = ProfileSettings(kinds=frozenset((ProfileKind.MEM,)))
    return Tensors(watch(families=("torch", "profile"), profile=profile))


@pytest.fixture
def program() -> Iterator[Callable[..., TensorProgram]]:
    started: list[TensorProgram] = []

    def start(**options: int) -> TensorProgram:
        started.append(TensorProgram(**options))
        return started[-1]

    yield start
    for each in started:
        each.close()


def sizes(sums: Mapping[tuple[str, str], Sum]) -> dict[tuple[str, str], int]:
    return {who: each.bytes for who, each in sums.items() if each.bytes}


def counts(sums: Mapping[tuple[str, str], Sum]) -> dict[tuple[str, str], int]:
    return {who: each.count for who, each in sums.items() if each.count}


def checkpoints(tensors: Tensors, running: TensorProgram) -> Iterator[TensorCheckpoint]:
    steps = running.checkpoints()
    while checkpoint := tensors.during(lambda: next(steps, None)):
        yield checkpoint


@pytest.mark.parametrize(("threads", "devices", "seed"), [(1, 1, 1), (5, 2, 2)])
def test_memory_in_use_by_stack_equals_the_program_s_own_account_at_every_checkpoint(
    tensors: Tensors, program: Callable[..., TensorProgram], threads: int, devices: int, seed: int
) -> None:
    running = program(operations=4999, checkpoint=833, threads=threads, devices=devices, seed=seed)
    tensors.watching.observe(running.pid)
    tensors.watching.pump(0.5)  # unwind tables
    seen = 0
    for checkpoint in checkpoints(tensors, running):
        held = tensors.held()
        assert held[IN_USE.type] == sizes(checkpoint.in_use), f"checkpoint {seen + 1}"
        assert held[IN_USE_ALLOCATIONS.type] == counts(checkpoint.in_use)
        assert tensors.reported[ALLOCATED.type] == sizes(checkpoint.given)
        assert tensors.reported[ALLOCATIONS.type] == counts(checkpoint.given)
        seen += 1
    assert seen >= 5 and running.close() == 0
    assert not tensors.losses
    assert tensors.watching.total("torch", "ring_full") == tensors.watching.total("profile", "ring_full") == 0


@pytest.mark.parametrize("before", [0, 307])
def test_totals_equal_the_allocator_s_at_every_checkpoint_without_any_profile(
    watch: Callable[..., Watch], program: Callable[..., TensorProgram], before: int
) -> None:
    watching = watch(families=("torch",))
    tensors = Tensors(watching)
    running = program(operations=2503, checkpoint=500, threads=3, devices=2, before=before)
    watching.observe(running.pid)
    began = None
    for checkpoint in checkpoints(tensors, running):
        for device, numbers in checkpoint.devices.items():
            level = tensors.levels[device]
            assert {name: level[name] for name in LEVELS} == {name: numbers[name] for name in LEVELS}
            if not before:
                assert {name: level[name] for name in SUMS} == {name: numbers[name] for name in SUMS}
                assert level["allocated_peak"] == numbers["allocated_peak"]
                assert level["reserved_peak"] == numbers["reserved_peak"]
            elif began is not None:
                grown = {name: level[name] - began[0][device][name] for name in SUMS}
                assert grown == {name: numbers[name] - began[1].devices[device][name] for name in SUMS}
        if began is None:
            began = ({device: dict(level) for device, level in tensors.levels.items()}, checkpoint)
    assert began is not None and running.close() == 0
    assert not watching.records("torch_memory"), "without a profile nothing is reported one by one"


def test_nonsense_changes_nothing_and_is_counted(
    tensors: Tensors, program: Callable[..., TensorProgram]
) -> None:
    running = program(operations=1009, checkpoint=500, absurd=41)
    tensors.watching.observe(running.pid)
    tensors.watching.pump(0.5)
    *_, last = checkpoints(tensors, running)
    assert tensors.held()[IN_USE.type] == sizes(last.in_use)
    assert set(tensors.levels) == {"cuda:0", "type77:-3"}
    level, numbers = tensors.levels["cuda:0"], last.devices["cuda:0"]
    assert {name: level[name] for name in SUMS} == {name: numbers[name] for name in SUMS}
    assert tensors.watching.total("torch", "allocator_implausible") == 4 * 41
    assert tensors.losses == {"free_unknown": 41}


def test_what_was_allocated_before_is_in_the_totals_and_its_frees_are_counted(
    tensors: Tensors, program: Callable[..., TensorProgram]
) -> None:
    running = program(operations=1009, checkpoint=500, before=307)
    tensors.watching.observe(running.pid)
    tensors.watching.pump(0.5)
    *_, last = checkpoints(tensors, running)
    assert tensors.held()[IN_USE.type] == sizes(last.in_use)
    assert tensors.levels["cuda:0"]["allocated"] > sum(sizes(last.in_use).values())
    assert set(tensors.losses) == {"free_unknown"}


def test_what_a_killed_program_s_tensors_held_is_free(
    tensors: Tensors, program: Callable[..., TensorProgram]
) -> None:
    running = program(operations=1009, checkpoint=500)
    tensors.watching.observe(running.pid)
    checkpoint = next(checkpoints(tensors, running))
    assert sum(tensors.held()[IN_USE.type].values()) == sum(sizes(checkpoint.in_use).values()) > 0
    running.close()
    tensors.watching.pump(0.3)
    assert tensors.watching.source.totals()["torch", "submitted"] > 0
    assert not list(tensors.watching.source._loaded["torch"].map("levels").list_keys())
    tensors.profiles.end_process(running.pid, time.monotonic_ns())
    tensors.read(final=True)
    assert tensors.held() == {}


def samples_of(path: Path) -> dict[str, Counter[tuple[str, str]]]:
    """Sample type → (operator, node) → sum, of a file with OTLP profiles: of levels, those of the last interval."""
    found: dict[str, Counter[tuple[str, str]]] = {}
    for line in path.read_text().splitlines():
        reported = json.loads(line)
        if "resourceProfiles" not in reported:
            continue
        words, tables = reported["dictionary"]["stringTable"], reported["dictionary"]
        attributes = [
            (words[int(each.get("keyStrindex", 0))], each.get("value", {}).get("stringValue", ""))
            for each in tables["attributeTable"]
        ]
        for resource in reported["resourceProfiles"]:
            for profile in (each for scope in resource["scopeProfiles"] for each in scope["profiles"]):
                name = words[int(profile["sampleType"]["typeStrindex"])]
                sums = found.setdefault(name, Counter())
                if name in (IN_USE.type, IN_USE_ALLOCATIONS.type):
                    sums.clear()
                for sample in profile["samples"]:
                    mine = dict(attributes[int(at)] for at in sample.get("attributeIndices", ()))
                    assert mine["torch.device"].startswith("cuda:")
                    who = mine.get("torch.operator", ""), mine.get("torch.autograd.node", "")
                    sums[who] += sum(map(int, sample["values"]))
    return found


def test_a_profile_of_memory_reports_what_tensors_were_given_and_what_they_hold_at_its_end(
    tmp_path: Path, program: Callable[..., TensorProgram]
) -> None:
    reported, running = tmp_path / "reported.jsonl", program(operations=1009, checkpoint=500)
    command = [OTELGPU, "profile", "-t", "mem", "-d", "4", "--quiet", f"--export=file:{reported}"]
    with subprocess.Popen([*command, "-p", str(running.pid)], stderr=subprocess.PIPE, text=True) as profiling:
        assert profiling.stderr is not None
        assert "profiling process" in profiling.stderr.readline()
        line = running.next_line()
        assert profiling.wait(60) == 0
    assert line is not None
    found, truth = samples_of(reported), read_checkpoint(line)
    assert found[IN_USE.type] == sizes(truth.in_use)
    assert found[IN_USE_ALLOCATIONS.type] == counts(truth.in_use)
    assert found[ALLOCATED.type] == sizes(truth.given)
    assert found[ALLOCATIONS.type] == counts(truth.given)


def test_metrics_report_the_allocator_s_totals(tmp_path: Path) -> None:
    reported = tmp_path / "reported.jsonl"
    command = [OTELGPU, "run", "--families=cuda,torch", "--quiet", f"--export=file:{reported}", "--"]
    done = subprocess.run(
        [*command, *tensor_command(operations=3001, checkpoint=1000, devices=1)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    truth = read_checkpoint(done.stdout.splitlines()[-1]).devices["cuda:0"]
    found: dict[str, int] = {}
    for name, points in read_metrics(reported).items():
        if name.startswith("torch."):
            (point,) = points
            assert point["attributes"] == {"torch.device": "cuda:0"}
            found[name] = int(point["asInt"])
    assert found == {
        "torch.memory.allocated": truth["allocated"],
        "torch.memory.reserved": truth["reserved"],
        "torch.memory.cached": truth["reserved"] - truth["allocated"],
        "torch.memory.allocated.peak": truth["allocated_peak"],
        "torch.memory.reserved.peak": truth["reserved_peak"],
        "torch.memory.allocations": truth["allocated_bytes"],
        "torch.memory.allocation.calls": truth["allocations"],
        "torch.memory.free.bytes": truth["freed_bytes"],
        "torch.memory.free.calls": truth["frees"],
        "torch.memory.allocation.failures": truth["refusals"],
    }
