"""Kernels whose names no demangler returns from stop nobody but their own."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.attacks import LAUNCHER
from tests.hostile.stage import Stage, ends_in_time
from tests.kernel.observing import cuda_calls, read_spans
from tests.rig import fake_cudart_path, start_cuda_client

NAMES = (
    "_ZNDTsrUy_quHT_msrZ3fooHSaclS0__UlvE_yfp_",
    "_ZNDTsrCGRGVR",
    *(f"_ZNDTsrCGRGVR{number}" for number in range(50)),
)
"""Names that libstdc++ does not come back from."""
CALLS = 61


@pytest.fixture
def kernels() -> Iterator[Path]:
    """A library with functions of these names, where everybody may read it."""
    source = "".join(
        f'void f{i}(void) __asm__("{name}"); void f{i}(void) {{}}\n' for i, name in enumerate(NAMES)
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        library = Path(folder, "libkernels.so")
        compiler = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"]
        subprocess.run(compiler, input=source, text=True, check=True, timeout=60)
        yield library


def test_a_kernel_whose_name_hangs_demanglers_stops_nobody(stage: Stage, kernels: Path) -> None:
    with stage.agent("--families=cuda") as agent:
        stage.attack_with(LAUNCHER, str(fake_cudart_path()), str(kernels), *NAMES)
        time.sleep(3)
        with start_cuda_client(prefix=stage.victim, calls=CALLS) as victim:
            time.sleep(1)
            victim.finish()
        ends_in_time(agent)
    spans = read_spans(stage.traces)
    named = [span["name"] for span in spans if span["name"].startswith("cudaLaunchKernel ")]
    attacker = {name.split()[1] for name in named if "_ZNDTsr" in name}
    assert attacker >= set(NAMES)
    assert (
        sum("_ZNDTsr" not in name for name in named)
        == CALLS
        == cuda_calls(span for span in spans if "_ZNDTsr" not in span["name"])["cudaLaunchKernel"]
    )
