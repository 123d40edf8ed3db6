"""Whose events are seen: listed processes and their children, a cgroup's, or everybody's but the agent's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from otelgpu.kernel.scope import Scope
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.processes.listing import age_s
from tests.kernel.observing import OTELGPU, Watch, cuda_calls, probed, read_spans, wait_until
from tests.rig import (
    RigError,
    fake_cudart_path,
    own_suffix,
    run_cuda_client,
    start_cuda_client,
    start_llm_server,
)
from tests.rig.cgroup import in_cgroup, own_cgroup
from tests.rig.health import Health
from tests.rig.ports import free_port

Watcher = Callable[..., Watch]

# argv: library, calls. Forks; the child calls once more and execs a third that calls.
FAMILY = """
import ctypes, os, sys
library, calls = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
sys.stdin.readline()
for _ in range(calls): library.cudaDeviceSynchronize()
child = os.fork()
if child == 0:
    for _ in range(calls): library.cudaDeviceSynchronize()
    os.execv(sys.executable, [sys.executable, "-c",
        "import ctypes, sys; l = ctypes.CDLL(sys.argv[1])\\n"
        "for _ in range(int(sys.argv[2])): l.cudaDeviceSynchronize()", *sys.argv[1:]])
os.waitpid(child, 0)
print(os.getpid(), child)
"""

# argv: a library that it maps, and one that the program that it becomes then calls 37 times.
BECOMES_ANOTHER = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1])
print("mapped", flush=True)
sys.stdin.readline()
os.execv(sys.executable, [sys.executable, "-c",
    "import ctypes, sys; l = ctypes.CDLL(sys.argv[1])\\n"
    "for _ in range(37): l.cudaDeviceSynchronize()", sys.argv[2]])
"""


def test_only_listed_processes_are_seen(watching: Watch) -> None:
    with start_cuda_client(calls=101) as listed, start_cuda_client(calls=103) as other:
        watching.observe(listed.pid)
        watching.during(other.finish)
        watching.during(listed.finish)
    assert watching.calls()["cudaLaunchKernel"] == 101
    assert watching.calls(listed.pid)["cudaLaunchKernel"] == 101


def family(watching: Watch, calls: int) -> tuple[int, int]:
    command = [sys.executable, "-c", FAMILY, str(fake_cudart_path()), str(calls)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        watching.source.prepare_file(fake_cudart_path())
        watching.observe(process.pid)
        stdout, _ = watching.during(lambda: process.communicate("go\n"))
    parent, child = map(int, stdout.split())
    return parent, child


def test_children_are_followed_through_fork_and_exec(watching: Watch) -> None:
    parent, child = family(watching, 37)
    assert watching.calls(parent)["cudaDeviceSynchronize"] == 37
    assert watching.calls(child) == {"cudaDeviceSynchronize": 2 * 37}
    assert watching.calls() == {"cudaDeviceSynchronize": 3 * 37}


def test_children_are_left_out_when_asked(watch: Watcher) -> None:
    watching = watch(scope=Scope(follow_children=False))
    parent, _ = family(watching, 37)
    assert watching.calls() == watching.calls(parent)
    assert watching.calls()["cudaDeviceSynchronize"] == 37


def test_of_a_process_that_is_to_become_another_program_only_that_is_looked_at(
    watching: Watch, tmp_path: Path
) -> None:
    mapped = tmp_path / "libcudart.so.12"
    shutil.copyfile(fake_cudart_path(), mapped)
    command = [sys.executable, "-c", BECOMES_ANOTHER, str(mapped), str(fake_cudart_path())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "mapped\n"
        watching.source.observe(process.pid, execs=True)
        watching.source.prepare_file(fake_cudart_path())
        # Others' too, where tests run beside this one.
        probed = {file.path for file in watching.source.probed_files}
        assert str(fake_cudart_path()) in probed
        assert str(mapped) not in probed
        watching.during(lambda: process.communicate("go\n"))
    assert watching.calls() == watching.calls(process.pid) == {"cudaDeviceSynchronize": 37}


def test_a_process_that_ended_leaves_the_scope(watching: Watch) -> None:
    with start_cuda_client(calls=3) as client:
        watching.observe(client.pid)
        watching.during(client.finish)
        scope = watching.source._loaded["process"].map("scope_processes")
        wait_until(lambda: client.pid.to_bytes(4, "little") not in scope.list_keys(), "it is struck off")


def test_workers_of_a_server_are_followed(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    with start_llm_server(
        workers=2, threads=2, prefix=(OTELGPU, "run", f"--export=file:{traces}", "--")
    ) as server:
        pids = set()
        until = time.monotonic() + 20
        while len(pids) < 2 and time.monotonic() < until:
            connection = server.connect()
            connection.request("POST", "/v1/completions", b'{"prompt": "hello", "max_tokens": 1}')
            connection.getresponse().read()
            connection.close()
            pids = {line["pid"] for line in (server.truth(1) if server.truth_path.exists() else ())}
    spans = read_spans(traces)
    seen = {s["resource"]["process.pid"] for s in spans if "gen_ai.response.id" in s["attributes"]}
    assert pids <= seen
    assert len(pids) == 2


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """An empty cgroup v2 directory."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(own_cgroup())
        except RigError as error:
            pytest.skip(str(error))
        yield folder


def test_a_cgroup_s_processes_are_seen_and_no_others(watch: Watcher, cgroup: Path) -> None:
    watching = watch(scope=Scope(cgroups=(cgroup,)))
    watching.source.prepare_file(fake_cudart_path())
    with start_cuda_client(calls=53) as inside, start_cuda_client(calls=59) as outside:
        (cgroup / "cgroup.procs").write_text(str(inside.pid))
        watching.during(outside.finish)
        watching.during(inside.finish)
    assert watching.calls() == watching.calls(inside.pid)
    assert watching.calls()["cudaLaunchKernel"] == 53


def test_of_a_cgroup_s_processes_alone_it_is_found_out_how_their_stacks_are_walked(
    watch: Watcher, cgroup: Path
) -> None:
    """Of others, which may be a whole host's, only once they have moved in and have a sample."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen([*in_cgroup(cgroup), *command]) as inside, subprocess.Popen(command) as outside:
        try:
            wait_until(lambda: min(age_s(inside.pid), age_s(outside.pid)) > 1.5, "both have run for a while")
            watching = watch(
                families=("profile",),
                scope=Scope(cgroups=(cgroup,)),
                profile=ProfileSettings(kinds=frozenset((ProfileKind.CPU,))),
            )
            watching.source.observe_running()
            assert list(watching.source._watchers["profile"]._seen) == [inside.pid]  # type: ignore[attr-defined]
        finally:
            inside.kill()
            outside.kill()


def test_the_agent_finds_a_cgroup_s_late_library(cgroup: Path, tmp_path: Path) -> None:
    traces, health = tmp_path / "traces.jsonl", Health(free_port())
    observe = ["--families=cuda", f"--cgroup={cgroup}", "--detail=all"]
    command = [OTELGPU, "agent", *observe, f"--export=file:{traces}"]
    with ExitStack() as stack:
        agent = stack.enter_context(
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=health.environment())
        )
        stack.callback(agent.kill)
        assert agent.stderr is not None
        assert "observing" in agent.stderr.readline()
        client = stack.enter_context(start_cuda_client(calls=61, late_ms=0, library=fake_cudart_path()))
        other = stack.enter_context(start_cuda_client(calls=67))
        (cgroup / "cgroup.procs").write_text(str(client.pid))
        other.finish()
        # Something in the group maps the library first, so that the window is over when the client does.
        opens = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); sys.stdin.read()"
        command = [*in_cgroup(cgroup), sys.executable, "-c", opens, str(fake_cudart_path())]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as opener:
            wait_until(lambda: health.libraries_of(opener.pid), "its library has probes")
            opener.communicate()
        client.finish()
        agent.terminate()
        agent.communicate(timeout=20)
    assert cuda_calls(read_spans(traces))["cudaLaunchKernel"] == 61


def test_a_folder_that_is_no_cgroup_is_reported_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [OTELGPU, "agent", f"--cgroup={tmp_path}", "--export=file:/dev/null", "--duration=1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert "not a cgroup v2 directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.alone(
    reason="observes every process of the machine: other tests' are slowed, and fill what it counts"
)
def test_the_agent_sees_everybody_but_itself(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    command = [OTELGPU, "agent", f"--export=file:{traces}", "--detail=all"]
    with ExitStack() as stack:
        before = stack.enter_context(start_cuda_client(calls=71, functions=("all",)))
        agent = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        stack.callback(agent.kill)
        assert agent.stderr is not None
        assert "observing" in agent.stderr.readline()
        first = before.finish()
        second = run_cuda_client(calls=73, functions=("all",))
        agent.terminate()
        _, said = agent.communicate(timeout=20)
    assert agent.returncode == 0
    spans = read_spans(traces)
    for result in (first, second):
        mine = [span for span in spans if span["resource"].get("process.pid") == result.pid]
        assert cuda_calls(mine) == probed(dict(result.calls))
    assert agent.pid not in {span["resource"].get("process.pid") for span in spans}
    assert "Traceback" not in said


def test_the_agent_admits_by_executable(tmp_path: Path) -> None:
    traces, health = tmp_path / "traces.jsonl", Health(free_port())
    suffix = own_suffix()
    command = [
        OTELGPU,
        "agent",
        "--families=cuda",
        f"--executable=cuda_client_l*{suffix}",
        f"--export=file:{traces}",
        "--detail=all",
    ]
    with ExitStack() as stack:
        admitted = stack.enter_context(
            start_cuda_client(
                calls=79, late_ms=0, library=fake_cudart_path(), functions=("cudaMalloc",), suffix=suffix
            )
        )
        other = stack.enter_context(start_cuda_client(calls=83, suffix=suffix))
        agent = stack.enter_context(
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=health.environment())
        )
        stack.callback(agent.kill)
        assert agent.stderr is not None
        assert "observing" in agent.stderr.readline()
        other.finish()
        with start_cuda_client(
            late_ms=0, library=fake_cudart_path(), linger_ms=60_000, calls=0, suffix=suffix
        ) as opener:
            opener.begin()
            wait_until(lambda: health.libraries_of(opener.pid), "the library that it maps has probes")
        admitted.finish()
        agent.terminate()
        agent.communicate(timeout=20)
    spans = read_spans(traces)
    assert cuda_calls(spans)["cudaMalloc"] == 79
    assert {s["resource"]["process.executable.name"] for s in spans} == {f"cuda_client_late{suffix}"}
