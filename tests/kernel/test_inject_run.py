"""`run --source inject` and `agent` with it, as a user has them: what the library records, to the export.

The truth is the programs' own, as for the probes in test_linking.py and test_correlation.py; what differs is what
can be seen from inside: of a statically linked runtime, its calls into the driver.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from otelgpu.kernel.injection.server import SOCKET_VARIABLE, read_library
from tests.kernel.observing import (
    OTELGPU,
    Session,
    cuda_calls,
    interrupted_at_terminal,
    probed,
    read_metrics,
    read_spans,
    run_otelgpu,
)
from tests.kernel.test_correlation import by_response, send
from tests.kernel.test_linking import COUNTS, calls_of, kernels_of, named, options
from tests.kernel.test_run_command import PATIENT, started
from tests.rig import (
    PROGRAM_KINDS,
    ProgramKind,
    cuda_include_flags,
    fake_cudart_path,
    program_environment,
    program_path,
    run_program,
    start_llm_server,
)

pytestmark = pytest.mark.long

INJECT: Final = ("run", "--source=inject", "--detail=all")
STATIC: Final = ("static", "static_library", "stripped")
"""Kinds whose runtime is inside: what it calls in libcuda is all that can be had."""
UNPRIVILEGED: Final = {
    "another user": ("unshare", "--user", "--map-user=1000", "--map-group=1000"),
    "no capability": ("setpriv", "--bounding-set=-all", "--inh-caps=-all"),
}


@pytest.fixture(params=UNPRIVILEGED)
def unprivileged(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """A command that runs another without any privilege here; skips where it cannot be."""
    prefix = UNPRIVILEGED[request.param]
    if not shutil.which(prefix[0]):
        pytest.skip(f"there is no {prefix[0]}")
    shown = subprocess.run([*prefix, "cat", "/proc/self/status"], capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip(f"{' '.join(prefix)} fails here: {shown.stderr.strip()}")
    assert "CapEff:\t0000000000000000\n" in shown.stdout
    return prefix


@pytest.mark.parametrize(
    ("kind", "families"),
    [*((kind, "cuda") for kind in PROGRAM_KINDS), ("shared", "cuda,http"), ("fork_exec", "cuda,http")],
)
def test_every_call_and_every_kernel_s_name_is_exported(
    kind: ProgramKind, families: str, tmp_path: Path
) -> None:
    """Probes beside the library are no matter to what the library records, however the runtime is linked."""
    traces = tmp_path / "traces.jsonl"
    reported = run_program(
        kind,
        *options(kind),
        prefix=(OTELGPU, *INJECT, f"--families={families}", "--quiet", f"--export=file:{traces}", "--"),
        ledger=tmp_path / "ledger.jsonl",
    )
    spans = read_spans(traces)
    assert len(reported) == (2 if kind == "fork_exec" else 1)
    for said in reported:
        inside = kind in STATIC or (kind == "fork_exec" and said is reported[-1])
        assert calls_of(spans, said.pid) == probed(dict(said.driver_calls if inside else said.calls))
        if kind != "ctypes":  # it launches an address that is no function
            assert kernels_of(spans, said.pid) == named(said)


FORKED: Final = """
#include <crt/host_runtime.h>
#include <sys/wait.h>
#include <unistd.h>
static void stub(void) { __builtin_trap(); }
static const struct { int magic, version; const void *data; void *unused; } wrapper = { 0x466243B1, 1, 0, 0 };
__attribute__((constructor)) static void register_kernels(void)
{
	void **module = __cudaRegisterFatBinary((void *)&wrapper);
	__cudaRegisterFunction(module, (void *)stub, (char *)"_Z9flash_fwdPKfPfi", "_Z9flash_fwdPKfPfi", -1, 0, 0, 0, 0, 0);
	__cudaRegisterFatBinaryEnd(module);
}
int main(void)
{
	dim3 one = { 1, 1, 1 };
	pid_t child = usleep(50000) ? 0 : fork();
	for (int i = 0; i < (child ? 5 : 7); i++)
		cudaLaunchKernel((void *)stub, one, one, 0, 0, 0);
	return child ? waitpid(child, 0, 0) != child : 0;
}
"""


@pytest.mark.parametrize("source", ["inject", "uprobe"])
def test_a_forked_child_s_kernels_have_the_names_that_its_parent_registered(
    tmp_path: Path, source: str
) -> None:
    """The program is stripped: nothing else says what is behind a stub."""
    program, traces = tmp_path / "forked", tmp_path / "traces.jsonl"
    program.with_suffix(".c").write_text(FORKED)
    libraries = (f"-L{fake_cudart_path().parent}", "-l:libcudart.so.12")
    subprocess.run(
        ["gcc", "-O1", "-s", *cuda_include_flags(), "-o", program, program.with_suffix(".c"), *libraries],
        check=True,
    )
    options = (f"--source={source}", "--detail=all", "--families=cuda", f"--export=file:{traces}")
    done = run_otelgpu("run", *options, "--", str(program), env=program_environment())
    assert done.returncode == 0, done.stderr
    spans = read_spans(traces)
    pids = {span["resource"]["process.pid"] for span in spans}
    reported = [kernels_of(spans, pid) for pid in pids]
    assert sorted(reported, key=str) == [{"flash_fwd(float const*, float*, int)": count} for count in (5, 7)]


def test_a_capture_of_it_replays_to_the_same_spans(tmp_path: Path) -> None:
    live, again, capture = (tmp_path / name for name in ("live.jsonl", "again.jsonl", "x.capture"))
    record = ("record", "--source=inject", "--detail=all", f"-o{capture}", f"--export=file:{live}", "--")
    run_program("shared", *COUNTS, prefix=(OTELGPU, *record))
    assert run_otelgpu("replay", "--detail=all", f"-o{again}", str(capture)).returncode == 0
    reported, replayed = (
        sorted((s["name"], s["spanId"], s["start"], s["end"], str(s["attributes"])) for s in read_spans(path))
        for path in (live, again)
    )
    assert reported == replayed and len(reported) > 40


def test_requests_hold_their_own_calls_as_with_probes(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    with start_llm_server(
        workers=2, threads=5, prefix=(OTELGPU, *INJECT, f"--export=file:{traces}", "--")
    ) as server:
        truth = send(server, requests=200, concurrency=40, max_tokens=3)
    spans = read_spans(traces)
    found = by_response(spans)
    assert found.keys() == {line["id"] for line in truth}
    for line in truth:
        request, operations = found[line["id"]]
        assert Counter(span["name"].split()[0] for span in operations) == probed(line["cuda_calls"])
        assert {span["attributes"]["thread.id"] for span in operations} == {line["thread_id"]}
        assert {span["resource"]["process.pid"] for span in (request, *operations)} == {line["pid"]}
        assert all(request["start"] <= s["start"] and s["end"] <= request["end"] for s in operations)
    linked = sum(len(operations) for _, operations in found.values())
    assert linked == sum(sum(probed(line["cuda_calls"]).values()) for line in truth)


def test_a_user_without_privileges_has_the_calls_and_is_reported_what_is_missing(
    unprivileged: tuple[str, ...], tmp_path: Path
) -> None:
    traces = tmp_path / "traces.jsonl"
    script = f"{program_path('shared')}; exit 9"
    done = subprocess.run(
        [*unprivileged, OTELGPU, *INJECT, "--quiet", f"--export=file:{traces}", "--", "sh", "-c", script],
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    assert "otelgpu: not observed: file, gloo, http, mpi, nccl, sched, verbs, which needs eBPF" in done.stderr
    assert "ERROR" not in done.stderr and "Error:" not in done.stderr and "Traceback" not in done.stderr
    spans = read_spans(traces)
    assert cuda_calls(spans)["cudaLaunchKernel"] == 23
    (pid,) = {span["resource"]["process.pid"] for span in spans}
    assert kernels_of(spans, pid) == {
        "scale_rows(float*, int)": 12,
        "sum_columns(float const*, float*, int)": 11,
    }


def test_without_a_privilege_and_without_the_library_one_line_says_what_to_do(
    unprivileged: tuple[str, ...],
) -> None:
    done = subprocess.run(
        [*unprivileged, OTELGPU, "run", "--", "true"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "CAP_BPF" in done.stderr and "Traceback" not in done.stderr


def test_device_time_is_under_the_request_and_in_the_histogram(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    command = (OTELGPU, *INJECT, "--device-time", f"--export=file:{traces}", "--")
    environment = {
        "LD_LIBRARY_PATH": str(fake_cudart_path().parent),
        "FAKE_CUDART_DRIVER": "libcuda.so.1",
        "FAKE_CUDART_KERNEL_US": "300",
    }
    with start_llm_server(threads=2, env=environment, prefix=command) as server:
        truth = send(server, requests=20, concurrency=2, max_tokens=5)[
            2:
        ]  # measuring begins within the first
    spans = read_spans(traces)
    found = by_response(spans)
    on_device = [span for span in spans if "cuda.correlation.id" in span["attributes"]]
    kernels = [span for span in on_device if "cuda.kernel.name" in span["attributes"]]
    parents = Counter(span["traceId"] for span in kernels)
    launches = {found[line["id"]][0]["traceId"]: line["cuda_calls"]["cudaLaunchKernel"] for line in truth}
    assert {trace: parents[trace] for trace in launches} == launches
    assert {span["end"] - span["start"] for span in kernels} == {300_000}
    (point,) = read_metrics(traces)["gpu.cuda.kernel.duration"]
    assert int(point["count"]) == len(kernels)
    assert point["sum"] == pytest.approx(len(kernels) * 300e-6)


def test_an_agent_hears_of_programs_that_bring_the_library(tmp_path: Path) -> None:
    traces, socket = tmp_path / "traces.jsonl", tmp_path / "inject.sock"
    environment = {SOCKET_VARIABLE: str(socket), "LD_PRELOAD": str(read_library().path)}
    alone = run_program("shared", *COUNTS, env=environment)  # nobody listens: no harm
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTELGPU_SOURCE", "inject")
        patch.setenv("OTELGPU_INJECT_SOCKET", str(socket))
        session = Session("agent", "--detail=all", "--families=cuda", traces=traces)
    with session:
        reported = [run_program("shared", *COUNTS, env=environment)[0] for _ in range(3)]
        run_program("shared", *COUNTS)  # brings none
    spans = read_spans(traces)
    assert {span["resource"].get("process.pid") for span in spans} == {said.pid for said in reported}
    for said in reported:
        assert calls_of(spans, said.pid) == probed(dict(alone[0].calls))
        assert kernels_of(spans, said.pid) == named(said)
    assert not socket.exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("attach", "-p1"), "loads a library into a process that runs already, which is not done unasked"),
        (("agent",), "source inject needs a place where programs can find the agent"),
        (("run", "--families=http", "--", "true"), "source inject sees family cuda only"),
    ],
)
def test_what_it_cannot_do_is_reported_in_one_line_and_a_hint(command: tuple[str, ...], words: str) -> None:
    done = run_otelgpu(*command, env={**os.environ, "OTELGPU_SOURCE": "inject"})
    assert done.returncode == 1
    first, hint = done.stderr.splitlines()
    assert words in first and hint


@pytest.mark.parametrize(("program", "code"), [("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_program_s_own(program: str, code: int) -> None:
    done = run_otelgpu(*INJECT, "--export=file:/dev/null", "--", "sh", "-c", program)
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize(
    ("more", "code"),
    [(("--export=file:/dev/null", "--", "./none"), 127), (("--export=file:/none/x", "--", "true"), 1)],
)
def test_what_cannot_start_leaves_nothing_behind(tmp_path: Path, more: tuple[str, ...], code: int) -> None:
    done = run_otelgpu(
        *INJECT,
        *more,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == code, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_program_s_end_is_still_seen(
    tmp_path: Path, number: signal.Signals
) -> None:
    traces = tmp_path / "traces.jsonl"
    command = (
        *INJECT,
        f"--export=file:{traces}",
        "--",
        sys.executable,
        "-c",
        PATIENT,
        str(fake_cudart_path()),
    )
    with started(*command, start_new_session=True) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        time.sleep(0.1)
        agent.send_signal(number)
        stdout, stderr = agent.communicate(timeout=20)
    assert (stdout, agent.returncode) == (f"[{int(number)}]\n", 5)
    assert "Traceback" not in stderr
    assert cuda_calls(read_spans(traces))["cudaDeviceSynchronize"] == 13


def test_ctrl_c_at_a_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    traces, output = tmp_path / "traces.jsonl", tmp_path / "output.txt"
    command = [OTELGPU, *INJECT, f"--export=file:{traces}", "--", sys.executable, "-c", PATIENT]
    code = interrupted_at_terminal([*command, str(fake_cudart_path())], output)
    assert code == 5, output.read_text()
    assert "[2]\n" in output.read_text()  # and not [2, 2]
    assert cuda_calls(read_spans(traces))["cudaDeviceSynchronize"] == 13
