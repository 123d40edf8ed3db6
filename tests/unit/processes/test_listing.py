"""Facts of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otelgpu.processes.listing import (
    age_s,
    descendants,
    describe,
    guess_service_name,
    is_child,
    is_copy_of_this,
    list_members,
    list_processes,
)
from otelgpu.processes.resources import process_resource
from tests.unit.processes.processes_builders import CONTAINER as ID
from tests.unit.processes.processes_builders import add_process, facts


def test_facts_of_a_process(tmp_path: Path) -> None:
    add_process(
        tmp_path,
        77,
        comm="odd ) name(",
        start_ticks=1234,
        nspid="77 8 1",
        seccomp=2,
        cgroup=f"0::/docker/{ID}\n",
        environ=b"AWS_SECRET=x\0OTEL_SERVICE_NAME=chat\0NOT_OTEL_SERVICE_NAME=no\0OTEL_RESOURCE_ATTRIBUTES=a=b\0",
        exe="/opt/app (deleted)",
    )
    found = describe(77, proc=tmp_path)
    assert found is not None
    assert (found.comm, found.ns_pids, found.ppid, found.uid) == ("odd ) name(", (77, 8, 1), 1, 1000)
    assert found.start_time_ns == 1234 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert (found.seccomp, found.container_id, found.cgroup_path) == (2, ID, f"/docker/{ID}")
    assert found.command == ("python3", "/srv/app.py") and found.executable == "/opt/app"
    assert (found.service_name, found.resource_attributes) == ("chat", "a=b")
    assert "x" not in (found.service_name, found.resource_attributes)


def test_a_rank_of_a_job_is_one_in_its_resource(tmp_path: Path) -> None:
    environ = b"RANK=5\0WORLD_SIZE=8\0LOCAL_RANK=1\0SLURM_JOB_ID=17\0SLURM_PROCID=0\0SLURM_NTASKS=2\0"
    add_process(tmp_path, 78, environ=environ)
    found = describe(78, proc=tmp_path)
    assert found is not None
    said = {key: value for key, value in process_resource(found, {}).attributes if "job" in key}
    assert said == {
        "otelgpu.job.rank": 5,
        "otelgpu.job.world_size": 8,
        "otelgpu.job.local_rank": 1,
        "otelgpu.job.id": "17",
    }


@pytest.mark.parametrize(("between", "job"), [(0, "node-3:35267/0"), (7, "node-3:35267/0"), (8, None)])
def test_a_rank_of_hydra_has_the_job_of_its_launcher(tmp_path: Path, between: int, job: str | None) -> None:
    proxy = b"/usr/bin/hydra_pmi_proxy\0--control-port\0node-3:35267\0--token\0secret\0--pgid\0" + b"0\0"
    add_process(tmp_path, 100, cmdline=proxy)
    for shell in range(101, 101 + between):
        add_process(tmp_path, shell, ppid=shell - 1, cmdline=b"sh\0-c\0./a\0")
    add_process(tmp_path, 200, ppid=100 + between, environ=b"PMI_RANK=1\0PMI_SIZE=2\0")
    found = describe(200, proc=tmp_path)
    assert found is not None
    assert dict(found.job).get("otelgpu.job.id") == job
    assert "secret" not in str(found)


def test_ancestors_in_a_circle_end(tmp_path: Path) -> None:
    add_process(tmp_path, 100, ppid=100)
    add_process(tmp_path, 200, ppid=100, environ=b"PMI_RANK=1\0PMI_SIZE=2\0")
    found = describe(200, proc=tmp_path)
    assert found is not None
    assert dict(found.job) == {"otelgpu.job.rank": 1, "otelgpu.job.world_size": 2}


def test_a_process_that_is_gone_has_no_facts(tmp_path: Path) -> None:
    assert describe(1 << 30) is None
    assert describe(5, proc=tmp_path) is None
    assert list_processes(proc=tmp_path / "none") == []


def test_unreadable_parts_are_empty(tmp_path: Path) -> None:
    add_process(tmp_path, 9, exe="", cmdline=b"")
    for name in ("environ", "cgroup", "status"):
        (tmp_path / "9" / name).unlink()
    found = describe(9, proc=tmp_path)
    assert found is not None
    assert (found.executable, found.command, found.ns_pids, found.uid) == ("", (), (9,), -1)


def test_this_process_is_described() -> None:
    found = describe(os.getpid())
    assert found is not None
    assert found.ppid == os.getppid() and found.uid == os.getuid() and found.ns_pids[0] == os.getpid()
    assert Path(found.executable) == Path(sys.executable).resolve()
    boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert 0 < found.start_time_ns < boot_ns


def test_members_of_a_cgroup_are_those_at_any_depth(tmp_path: Path) -> None:
    inner = tmp_path / "pod" / "container"
    inner.mkdir(parents=True)
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "pod" / "cgroup.procs").write_text("0\n12\n")  # 0: of another PID namespace
    (inner / "cgroup.procs").write_text("34\n5678\n")
    assert sorted(list_members(tmp_path)) == [12, 34, 5678]
    assert list_members(tmp_path / "gone") == []


def test_descendants_are_found_parents_first() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 20
        while not (below := descendants(child.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        found = descendants(os.getpid())
        assert found.index(child.pid) < found.index(below[0])
    finally:
        child.communicate(b"\n", timeout=20)


def test_a_family_of_processes(tmp_path: Path) -> None:
    for tgid, ppid in ((10, 1), (11, 10), (12, 11), (13, 10), (20, 1), (10_000, 12)):
        add_process(tmp_path, tgid, ppid=ppid)
    assert descendants(10, proc=tmp_path) == [11, 13, 12, 10_000]
    assert descendants(20, proc=tmp_path) == []


@pytest.mark.parametrize(
    ("command", "executable", "service"),
    [
        (("python3", "/srv/app.py"), "/usr/bin/python3.11", "app"),
        (
            ("python", "-u", "-X", "dev", "-W", "ignore", "serve.py", "--key", "s3cret"),
            "/usr/bin/python3.11",
            "serve",
        ),
        (
            ("python", "-m", "vllm.entrypoints.openai.api_server", "--api-key", "s"),
            "/v/bin/python3.12",
            "vllm",
        ),
        (("python", "-mhttp.server"), "/usr/bin/python3", "http"),
        (("/v/bin/python", "/v/bin/gunicorn", "app:app"), "/usr/bin/python3.11", "gunicorn"),
        (("gunicorn: worker [app:app]",), "/usr/bin/python3.11", "gunicorn"),
        (("VLLM::EngineCore",), "/usr/bin/python3.11", "VLLM"),
        (("python", "-c", "print(1)"), "/usr/bin/python3.11", "python3.11"),
        (("python", "/srv/pkg/__main__.py"), "/usr/bin/python3.11", "pkg"),
        (("python",), "/usr/bin/python3.11", "python3.11"),
        (("-bash",), "/usr/bin/bash", "bash"),
        (("/bin/sh", "/opt/start.sh"), "/usr/bin/dash", "start"),
        (("node", "server.mjs"), "/usr/bin/node", "server"),
        (("./trainer", "--token", "s"), "/opt/trainer", "trainer"),
        (("anything",), "/opt/llama-server", "llama-server"),
        ((), "", "python3"),
        ((":",), "/usr/bin/python3", "python3"),
        (("python3", "-m.x"), "/usr/bin/python3", "python3"),
    ],
)
def test_services_are_named_as_people_call_them(
    command: tuple[str, ...], executable: str, service: str
) -> None:
    assert guess_service_name(facts(command=command, executable=executable)) == service


def test_a_child_that_has_yet_to_begin_its_program_is_a_copy_of_this_one() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    other = subprocess.Popen(["sleep", "60"])
    try:
        time.sleep(0.1)
        assert is_copy_of_this(child)
        assert is_child(other.pid) and not is_copy_of_this(other.pid)
        assert not is_copy_of_this(os.getpid())
        assert not is_copy_of_this(1 << 30)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        other.kill()
        other.wait()


def test_how_long_a_process_has_run() -> None:
    began = time.monotonic()
    child = subprocess.Popen(["sleep", "60"])
    try:
        time.sleep(0.2)
        assert 0 <= age_s(child.pid) <= time.monotonic() - began + 0.02
        assert age_s(os.getpid()) > age_s(child.pid)
    finally:
        child.kill()
        child.wait()
    assert age_s(child.pid) == 0
