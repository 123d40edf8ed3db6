"""Return probes and seccomp: tried before they are used, and not needed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from otelgpu.kernel import features
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind
from tests.kernel.observing import OTELGPU, Watch, probed
from tests.rig import fake_cudart_path, run_cuda_client, start_cuda_client

# A filter as strict container runtimes have: what it does not know is death. 335: __NR_uretprobe.
FILTERED = (
    sys.executable,
    "-c",
    "import ctypes, os, struct, sys\n"
    "code = struct.pack('<HBBIHBBIHBBIHBBI', 0x20,0,0,0, 0x15,0,1,335, 6,0,0,0x80000000, 6,0,0,0x7fff0000)\n"
    "buffer = ctypes.create_string_buffer(code, len(code))\n"
    "libc = ctypes.CDLL(None)\n"
    "assert libc.prctl(38, 1, 0, 0, 0) == 0\n"
    "program = struct.pack('<HxxxxxxQ', 4, ctypes.addressof(buffer))\n"
    "assert libc.prctl(22, 2, program, 0, 0) == 0\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n",
)


def test_the_trial_reports_what_a_filtered_process_would_meet() -> None:
    safe = features.return_probes_are_safe()
    version = features.kernel_version()
    if version < (6, 11):
        assert safe  # there is no uretprobe system call yet
    elif version >= (6, 14):
        assert safe  # commit cf6cb56ef244: seccomp lets it pass


@pytest.mark.parametrize("return_probes", [False, True])
def test_a_filtered_process_lives_and_each_call_gives_one_record(
    watch: Callable[..., Watch], return_probes: bool
) -> None:
    if return_probes and not features.return_probes_are_safe():
        pytest.skip("return probes kill filtered processes on this kernel: the trial just showed it")
    watching = watch(return_probes=return_probes)
    with start_cuda_client(prefix=FILTERED, calls=101, functions=("all",), threads=3) as client:
        watching.observe(client.pid)
        said = watching.during(client.finish)
    assert said.exit_code == 0
    assert watching.calls(said.pid) == probed(dict(said.calls))
    heads = np.concatenate([i.heads for i in watching.inputs if isinstance(i, Batch) and i.family == "cuda"])
    heads = heads[heads["kind"] != OperationKind.EVENT]  # never probed at the return
    assert set(heads["returned"].tolist()) == {int(return_probes)}
    assert (heads["duration_ns"] > 0).all() == return_probes


def test_they_can_be_switched_off() -> None:
    said = run_cuda_client(
        prefix=(OTELGPU, "run", "--export=file:/dev/null", "--", *FILTERED),
        calls=11,
        functions=("cudaMalloc",),
        library=fake_cudart_path(),  # LD_LIBRARY_PATH leads to it: no blind window
        env={"OTELGPU_RETURN_PROBES": "off"},
    )
    assert said.exit_code == 0
    assert f"{sum(probed(dict(said.calls)).values())} cuda" in said.stderr
