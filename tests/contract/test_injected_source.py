"""The in-process source as the pipeline sees it: a program's calls, names and facts, with no privilege."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from otelgpu.engine import registry
from otelgpu.errors import OtelgpuError
from otelgpu.kernel.injection.server import InjectError, read_library
from otelgpu.model.inputs import (
    Batch,
    ClockAnchor,
    FunctionNamed,
    Input,
    LossCounted,
    ProcessGone,
    ProcessSeen,
    Tick,
)
from otelgpu.sources.injected import InjectedSource
from tests.rig.fakes import build_fakes


@pytest.fixture
def open_source() -> Iterator[Callable[..., InjectedSource]]:
    try:
        read_library()
    except InjectError as error:
        pytest.skip(str(error))
    opened: list[InjectedSource] = []

    def make(**options: int) -> InjectedSource:
        opened.append(InjectedSource(registry.select(("cuda",)), **options))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for source in opened:
        source.close()


def observe(source: InjectedSource, *command: str | Path) -> list[Input]:
    """Run a program to its end, and everything that the source gave until then."""
    process = subprocess.Popen(command, env=source.environment(os.environ), stdout=subprocess.DEVNULL)
    ended = os.pidfd_open(process.pid)
    inputs: list[Input] = []
    until = time.monotonic() + 60
    while ended not in source.wait(0.1, [ended]) and time.monotonic() < until:
        inputs += source.collect()
    os.close(ended)
    assert process.wait(10) == 0
    return inputs + source.collect()


def test_a_program_is_reported_from_beginning_to_end(open_source: Callable[..., InjectedSource]) -> None:
    source = open_source()
    program = build_fakes() / "program_shared"
    inputs = observe(source, program)
    batches = [item for item in inputs if isinstance(item, Batch)]
    (seen,) = (item for item in inputs if isinstance(item, ProcessSeen))
    (gone,) = (item for item in inputs if isinstance(item, ProcessGone))
    assert isinstance(inputs[0], ClockAnchor) and isinstance(inputs[-1], Tick)
    assert {int(tgid) for batch in batches for tgid in batch.heads["tgid"]} == {seen.tgid} == {gone.tgid}
    assert dict(seen.resource.attributes)["process.executable.path"] == str(program.resolve())
    position = [type(item) for item in inputs]
    assert position.index(ProcessSeen) < position.index(Batch) < position.index(ProcessGone)
    kernels = {item.name for item in inputs if isinstance(item, FunctionNamed) and item.known}
    assert {"scale_rows(float*, int)", "sum_columns(float const*, float*, int)"} <= kernels


def test_numbers_of_another_pid_namespace_are_translated(open_source: Callable[..., InjectedSource]) -> None:
    enter = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip(f"{' '.join(enter)} is not allowed here")
    source = open_source()
    inputs = observe(source, *enter, build_fakes() / "cuda_client", "--threads=3", "--sleep-us=50000")
    (seen,) = (item for item in inputs if isinstance(item, ProcessSeen))
    heads = np.concatenate([item.heads for item in inputs if isinstance(item, Batch)])
    assert seen.tgid > 1 and set(heads["tgid"].tolist()) == {seen.tgid}
    tids = set(heads["tid"].tolist())
    # Not as they call themselves. The first is not always the least: who sets ns_last_pid has numbers given anew.
    assert len(tids) == 3 and seen.tgid in tids and not tids & {0, 1, 2, 3}


def test_a_tick_comes_after_all_that_ended_before_it(open_source: Callable[..., InjectedSource]) -> None:
    last_ns = 0
    for item in observe(open_source(), build_fakes() / "cuda_client", "--threads=4", "--calls=2000"):
        if isinstance(item, Batch):
            ends = item.heads["time_ns"] + item.heads["duration_ns"]
            assert int(ends.min()) > last_ns
        elif isinstance(item, Tick):
            last_ns = item.time_ns


def test_what_a_full_ring_loses_is_counted(open_source: Callable[..., InjectedSource]) -> None:
    source = open_source(ring_bytes=4096)
    source.wait(0)
    process = subprocess.run(
        [build_fakes() / "program_shared", "--launches=1000"],
        env=source.environment(os.environ), stdout=subprocess.DEVNULL, check=False, timeout=60,
    )  # fmt: skip
    inputs = source.collect()
    recorded = sum(len(item.records) for item in inputs if isinstance(item, Batch))
    losses = {item.reason: item.count for item in inputs if isinstance(item, LossCounted)}
    assert process.returncode == 0
    assert losses["ring_full"] > 900 and recorded + losses["ring_full"] > 1000
    assert source.totals()["cuda", "submitted"] == recorded
    assert source.losses() == []


def test_a_ring_that_fills_ends_the_wait(open_source: Callable[..., InjectedSource]) -> None:
    source = open_source(ring_bytes=1 << 16)
    process = subprocess.Popen(
        [build_fakes() / "program_shared", "--launches=400"],
        env=source.environment(os.environ), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    began = time.monotonic()
    source.wait(20)
    assert time.monotonic() - began < 10
    assert process.wait(10) == 0


def test_it_is_for_cuda_and_says_what_it_does_not_see(open_source: Callable[..., InjectedSource]) -> None:
    with pytest.raises(OtelgpuError, match="cuda"):
        InjectedSource(registry.select(("http",)))
    source = InjectedSource(registry.select(("cuda", "http")))
    source.close()
    source.close()
    assert source.unseen == ("http",)
    assert set(source.btf) == set(source.btf_sections) == {"cuda"}
