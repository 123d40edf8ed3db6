"""From the interposed calls of a program on the fake device to device work joined to its host calls."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from otelgpu.families.gpu.cuda.decode import CudaDecoder
from otelgpu.families.gpu.device_time.join import DeviceTime
from otelgpu.families.gpu.device_time.names import ActivityNames
from otelgpu.kernel.injection.server import InjectListener, environment, read_library
from otelgpu.kernel.loader import read_image
from otelgpu.model.device_work import ACTIVITY, Work, correlations, join_work
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind
from tests.rig.fakes import ROOT, build_fakes, cuda_include_flags, missing_compiler

STEPS, LAUNCHES = 13, 5
MS = 1_000_000
CLOCKS_AGREE_NS = 20_000  # the calls' clock is tied to the device's once a millisecond


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/gpu/program.c, here on the fakes."""
    if missing := missing_compiler():
        pytest.skip(missing)
    fakes, built = build_fakes(), tmp_path_factory.mktemp("program") / "program"
    command = ["gcc", "-O2", *cuda_include_flags(), "-o", built, ROOT / "tests/gpu/program.c"]
    subprocess.run([*command, f"-L{fakes}", "-l:libcudart.so.12"], check=True, timeout=60)
    return built


@pytest.fixture
def listener() -> Iterator[InjectListener]:
    library = read_library()
    made = InjectListener(library.layout, read_image("cuda").btf)
    made.start()
    yield made
    made.close()


def observe(listener: InjectListener, program: Path, *arguments: str) -> list[Batch]:
    """Everything that a run of the program wrote."""
    fakes = build_fakes()
    own = {
        "LD_LIBRARY_PATH": str(fakes),
        "FAKE_CUDART_DRIVER": "libcuda.so.1",
        "FAKE_CUDART_KERNEL_US": "50",
        "OTELGPU_INJECT_CUPTI": "1",
    }
    env = environment(read_library().path, listener.path, {**os.environ, **own})
    with subprocess.Popen(
        [program, *arguments], env={**os.environ, **own, **env}, stdout=subprocess.PIPE
    ) as run:
        batches: list[Batch] = []
        until = time.monotonic() + 30
        while run.poll() is None and time.monotonic() < until:
            batches += listener.drain()
            time.sleep(0.01)
        assert run.wait(timeout=1) == 0
    return [*batches, *listener.drain()]


def test_every_launch_has_its_time_on_the_device(program: Path, listener: InjectListener) -> None:
    batches = observe(listener, program, "decode", str(STEPS), str(LAUNCHES), "50")
    join, names, decoder = DeviceTime(), ActivityNames(), CudaDecoder(read_image("cuda").btf)
    called: dict[int, str] = {}
    launches = 0
    for batch in batches:
        if batch.kind == "cuda_activity":
            join.add_activities(batch.records.view(ACTIVITY), 0)
        elif batch.kind == "cuda_activity_name":
            called |= {number: name for _, number, name in names.feed(batch.records)}
        elif batch.kind == "cuda_call":
            rows = decoder.decode(batch)
            join.add_calls(rows, correlations(rows), 0)
            launches += int((rows["kind"] == OperationKind.LAUNCH).sum())
    work = join_work([join.take(0, final=True)])
    assert launches == (STEPS + 1) * LAUNCHES
    assert len(work) == launches
    assert join.counters == {}
    assert Counter(called[number] for number in work["name_id"].tolist()) == {"otelgpu_spin": launches}
    assert set(work["duration_ns"].tolist()) == {50_000}
    assert set(work["work"].tolist()) == {Work.KERNEL}
    early = work["start_ns"].astype(np.int64) - work["device_start_ns"].astype(np.int64)
    assert early.max() <= CLOCKS_AGREE_NS
    # A step's kernels run one after the other, and each waits for those before it alone.
    waited = (work["device_start_ns"] - work["start_ns"]).astype(np.int64)
    assert waited.max() < LAUNCHES * MS
    assert len(set(work["tid"].tolist())) == 1
    assert {reason for reason in listener.counters() if reason.startswith(("cupti_", "activit"))} == set()
