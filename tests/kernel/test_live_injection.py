"""A library into programs that run: none is harmed, nothing stays, and what they launch has its time on the GPU."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otelgpu.kernel.injection.live import LIVE_FUNCTION, live_request
from otelgpu.kernel.injection.server import InjectListener, read_library
from otelgpu.kernel.loader import read_image
from otelgpu.processes.live_injection.loading import InjectionFailed, load_library
from otelgpu.processes.live_injection.refusals import InjectionRefused, NoCuda
from tests.kernel.observing import OTELGPU
from tests.rig import build_fakes, missing_compiler, start_cuda_client
from tests.rig.injection.repeated import (
    MODES,
    await_dormant,
    build_busy,
    inject_once,
    repeat,
    running,
)
from tests.rig.spans import read_spans

pytestmark = pytest.mark.long

SIZES = ("grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z")
"""Of the fake libcupti's launches."""
FAKE_GPU = {"FAKE_CUDART_DRIVER": "libcuda.so.1", "FAKE_CUDART_KERNEL_US": "300"}


@pytest.fixture(scope="module")
def busy_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing := missing_compiler():
        pytest.skip(missing)
    return build_busy(tmp_path_factory.mktemp("busy"))


def fake_gpu() -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(build_fakes()), **FAKE_GPU}


@pytest.mark.parametrize("mode", MODES)
def test_a_busy_program_is_not_harmed_and_nothing_is_left_in_it(mode: str) -> None:
    (busy,) = repeat(5, (mode,))
    assert (busy.code, busy.injected, dict(busy.refused)) == (0, 5, {}), busy.said
    assert busy.done > 0


def test_what_runs_already_has_gpu_frames_in_its_flame_graph(tmp_path: Path) -> None:
    folded = tmp_path / "kernel.folded"
    with start_cuda_client(calls=30_000, sleep_us=2_000, env=fake_gpu()) as client:
        client.begin()
        time.sleep(0.5)
        command = (OTELGPU, "profile", "-t", "kernel", "-d", "4", "-o", folded, "--inject", "-p")
        done = subprocess.run(
            (*command, str(client.pid)), stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert client.process.poll() is None
    lines = folded.read_text().splitlines()
    on_device = [line for line in lines if line.startswith("gpu_kernel_time") and "main;" in line]
    assert any("cudaLaunchKernel" in line and "GPU: flash_fwd" in line for line in on_device), lines
    assert not any("libcupti" in line or "called_back" in line for line in lines)
    assert f"loading a library into process {client.pid}" in done.stderr


def test_attach_with_source_inject_reports_launches_and_their_work(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    with start_cuda_client(calls=30_000, sleep_us=2_000, env=fake_gpu()) as client:
        client.begin()
        time.sleep(0.3)
        command = (
            OTELGPU,
            "attach",
            "--source=inject",
            "--detail=all",
            "--duration=2",
            f"--export=file:{traces}",
        )
        done = subprocess.run(
            (*command, "-p", str(client.pid)), stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    spans = read_spans(traces)
    launches = [span for span in spans if span["name"].startswith("cuLaunchKernel")]
    sizes = {tuple(int(span["attributes"][f"cuda.{what}"]) for what in SIZES) for span in launches}
    assert sizes == {(2, 3, 5, 7, 11, 13)}
    assert any("cuda.correlation.id" in span["attributes"] for span in spans)


def test_the_second_of_two_agents_is_refused_and_the_first_goes_on(busy_program: Path) -> None:
    library = read_library()
    with running(busy_program, "threads") as busy:
        busy.before = busy.counts
        listener = InjectListener(library.layout, read_image("cuda").btf)
        request = live_request(library.layout)
        try:
            answers = [
                load_library(
                    busy.process.pid,
                    library.path,
                    LIVE_FUNCTION,
                    request,
                    listener.answer,
                ).answer
                for _ in range(2)
            ]
        finally:
            listener.close()
        names = {number: name for name, number in library.layout.enumerators("live_answer").items()}
        assert [names[answer] for answer in answers] == ["LIVE_OBSERVED", "LIVE_ALREADY"]
        assert await_dormant(busy), (busy.counts, busy.before)


KILLING = """
import os, signal, sys
from otelgpu.kernel import ptrace
from otelgpu.processes.live_injection import target
from tests.rig.injection.repeated import inject_once
steps, real, real_write = 0, ptrace._request, target.Target.write
def count(last):
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGKILL)
def killed_at(last):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    def request(*arguments):
        count(last)
        real(*arguments)
    def write(*arguments):
        count(last)
        real_write(*arguments)
    ptrace._request, target.Target.write = request, write
    inject_once(int(sys.argv[1]))
    os._exit(0)
killed = 0
for last in range(1, 400, int(sys.argv[2])):
    if killed_at(last) != signal.SIGKILL:
        break
    killed += 1
    os.kill(int(sys.argv[1]), 0)
print(killed)
"""


@pytest.mark.parametrize("mode", ["waits", "numbers"])
def test_killed_at_any_moment_the_injector_leaves_the_program_unharmed(busy_program: Path, mode: str) -> None:
    with running(busy_program, mode) as busy:
        killing = (sys.executable, "-c", KILLING, str(busy.process.pid), "3")
        done = subprocess.run(killing, stdout=subprocess.PIPE, text=True, timeout=200, check=True)
        assert int(done.stdout) > 8
        time.sleep(1)
        busy.end()
        assert busy.code == 0, busy.said


def test_an_agent_that_is_killed_leaves_a_library_that_ends_what_it_does(busy_program: Path) -> None:
    dying = (
        "import os, signal, sys\nfrom otelgpu.kernel.injection.server import InjectListener\n"
        "from tests.rig.injection import repeated\n"
        "InjectListener.close = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
        "repeated.inject_once(int(sys.argv[1]))"
    )
    with running(busy_program, "threads") as busy:
        busy.before = busy.counts
        command = (sys.executable, "-c", dying, str(busy.process.pid))
        done = subprocess.run(command, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        assert busy.left_behind, "its memory is there until the library misses it"
        assert await_dormant(busy, unheard=True), (busy.counts, busy.before, busy.left_behind)
        busy.end()
        assert busy.code == 0, busy.said


def test_a_process_without_cuda_is_refused(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as idle:
        try:
            with pytest.raises(NoCuda, match="makes no CUDA calls"):
                inject_once(idle.pid)
        finally:
            idle.kill()


def test_who_is_traced_already_is_refused_and_so_is_who_is_stopped(busy_program: Path) -> None:
    with running(busy_program, "numbers") as busy:
        busy.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, busy.process.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(InjectionRefused, match="it is stopped"):
            inject_once(busy.process.pid)
        busy.process.send_signal(signal.SIGCONT)


def nobody(*command: str | Path, reads: bool = False) -> tuple[str | Path, ...]:
    """A command as user 65534, without a capability; ``reads``: but to read files, for the interpreter."""
    kept = "-all,+dac_read_search" if reads else "-all"
    sets = (f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}")
    return ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *sets, "--", *command)


@pytest.fixture
def open_client() -> Path:
    """The fake client, where others may run it."""
    client = build_fakes() / "cuda_client"
    seen = subprocess.run(nobody("test", "-x", client), check=False)
    if seen.returncode:
        pytest.skip(f"needs a checkout whose files other users may read: {client} is not theirs to run")
    return client


@pytest.mark.parametrize("own", [True, False], ids=["his own", "root's"])
def test_a_user_who_is_not_root_observes_his_own_processes_and_no_others(
    open_client: Path, own: bool
) -> None:
    client: tuple[str | Path, ...] = (open_client, "--calls=30000", "--sleep-us=2000")
    with subprocess.Popen(
        nobody(*client) if own else client, env={**os.environ, **fake_gpu()}, stdout=subprocess.DEVNULL
    ) as running_client:
        try:
            time.sleep(1)
            attach = ("attach", "--source=inject", "--duration=2", "--export=console", "-p")
            command = (sys.executable, "-m", "otelgpu", *attach, str(running_client.pid))
            done = subprocess.run(
                nobody(*command, reads=True), capture_output=True, text=True, timeout=60, check=False
            )
            assert running_client.poll() is None
        finally:
            running_client.kill()
    if own:
        assert done.returncode == 0, done.stderr
        assert re.search(r"exported \d{2,} spans", done.stderr), done.stderr
    else:
        assert done.returncode == 1
        assert "it is user 0's, and we are user 65534" in done.stderr
        assert "as that user, or as root (CAP_SYS_PTRACE, and CAP_DAC_OVERRIDE to write" in done.stderr


@pytest.mark.parametrize("target", [("--inject", "-p"), ("--",)], ids=["running", "started"])
def test_kernels_are_not_profiled_without_privileges_and_what_is_missing_is_said(
    open_client: Path, target: tuple[str, ...]
) -> None:
    what = open_client if target == ("--",) else str(os.getpid())
    command = (sys.executable, "-m", "otelgpu", "profile", "-t", "kernel", *target, what)
    done = subprocess.run(
        nobody(*command, reads=True), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(
        "run as root, or with CAP_BPF and CAP_PERFMON (otelgpu check says what is missing)\n"
    )


def test_a_library_that_is_none_is_said_and_the_program_goes_on(busy_program: Path, tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    with running(busy_program, "numbers") as busy:
        busy.before = busy.counts
        with pytest.raises(InjectionFailed, match="No such file"):
            load_library(busy.process.pid, other, LIVE_FUNCTION, b"", socket.socket.close)
        other.write_bytes(b"not an ELF file" * 100)
        with pytest.raises(InjectionFailed, match=r"cannot load the library: /proc/thread-self/fd/.*ELF"):
            load_library(busy.process.pid, other, LIVE_FUNCTION, b"", socket.socket.close)
        assert await_dormant(busy), (busy.counts, busy.before, busy.left_behind)
        busy.end()
        assert busy.code == 0


def test_another_profiler_in_the_process_is_named_and_nothing_is_left(busy_program: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_CUPTI_TAKEN", "1")
        with running(busy_program, "numbers") as busy:
            busy.before = busy.counts
            command = (OTELGPU, "attach", "--source=inject", "--export=file:/dev/null", "-p")
            done = subprocess.run(
                (*command, str(busy.process.pid)), stderr=subprocess.PIPE, text=True, timeout=60, check=False
            )
            assert done.returncode == 1
            assert "another profiler of the process subscribed to CUPTI first" in done.stderr
            assert await_dormant(busy)
            busy.end()
            assert busy.code == 0, busy.said


def test_a_thread_that_another_traces_is_left_to_it(busy_program: Path) -> None:
    tracing = (
        "import sys, time\nfrom otelgpu.kernel.ptrace import HeldThread\n"
        "held = HeldThread(int(sys.argv[1]))\nprint('ready', flush=True)\ntime.sleep(30)"
    )
    with running(busy_program, "numbers") as busy:
        command = (sys.executable, "-c", tracing, str(busy.process.pid))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tracer:
            try:
                assert tracer.stdout is not None and tracer.stdout.readline() == "ready\n"
                with pytest.raises(InjectionRefused, match=f"process {tracer.pid} traces it already"):
                    inject_once(busy.process.pid)
            finally:
                tracer.kill()
        busy.end()
        assert busy.code == 0, busy.said
