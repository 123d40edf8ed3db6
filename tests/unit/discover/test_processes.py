"""Facts of processes, and the resources made of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.discover.processes import (
    ProcessFacts,
    descendants,
    describe,
    guess_service_name,
    list_processes,
    parse_cgroup,
    parse_resource_attributes,
    process_resource,
)
from otelgpu.model.resource import Resource
from tests.unit.discover.processes_builders import add_process

ID = "0123456789abcdef" * 4
POD = "1d7c1c64-9c1f-4d3a-8f6e-0a1b2c3d4e5f"
BASE = {"host.name": "node-1", "telemetry.sdk.name": "otelgpu", "telemetry.distro.name": "otelgpu"}


def facts(**changes: object) -> ProcessFacts:
    values: dict[str, object] = {
        **{"tgid": 42, "ns_pids": (42, 1), "ppid": 1, "start_time_ns": 5_000_000_000, "comm": "python3"},
        **{
            "command": ("python3", "/srv/app.py"),
            "executable": "/usr/bin/python3.11",
            "uid": 0,
            "seccomp": 0,
        },
        **{
            "cgroup_path": "/",
            "container_id": "",
            "pod_uid": "",
            "service_name": "",
            "resource_attributes": "",
        },
    }
    return ProcessFacts(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "container", "pod"),
    [
        (f"0::/system.slice/docker-{ID}.scope", ID, ""),
        (f"12:memory:/docker/{ID}", ID, ""),
        (f"0::/docker/{ID}/init.scope", ID, ""),
        (f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{ID}.scope", ID, POD),
        (
            f"0::/kubepods.slice/x/kubepods-burstable-pod{POD.replace('-', '_')}.slice/crio-{ID}.scope",
            ID,
            POD,
        ),
        (f"4:cpu,cpuacct:/kubepods/besteffort/pod{POD}/{ID}", ID, POD),
        (f"0::/../../pod{POD}/{ID}", ID, POD),
        (
            f"1:name=systemd:/system.slice/containerd.service/kubepods-besteffort-pod{POD}.slice:cri-containerd:{ID}",
            ID,
            POD,
        ),
        (f"0::/machine.slice/libpod-{ID}.scope/container", ID, ""),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", ID, ""),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope", "", ""),
        (f"9:perf_event:/ecs/task/{ID}", ID, ""),
        (
            "9:memory:/ecs/a1/0123456789abcdef0123456789abcdef-1234567890",
            "0123456789abcdef0123456789abcdef-1234567890",
            "",
        ),
        ("0::/", "", ""),
        ("0::/user.slice/user-0.slice/session-1.scope", "", ""),
        ("4:memory:/process_api/e7bb6d3b9262eee69afa247d1452b44e", "", ""),
    ],
)
def test_containers_are_known_by_their_cgroup(line: str, container: str, pod: str) -> None:
    assert parse_cgroup(f"3:cpuset:/\n{line}\n")[:2] == (container, pod)


def test_the_v2_path_is_told_beside_v1_ones() -> None:
    assert parse_cgroup(f"4:memory:/docker/{ID}\n0::/app/x\n") == (ID, "", "/app/x")
    assert parse_cgroup("4:memory:/a\n")[2] == ""


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


def test_descendants_are_found_parents_first() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 20
        while len(found := [pid for pid in descendants(os.getpid()) if pid >= child.pid]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert found[0] == child.pid
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
    ],
)
def test_services_are_named_as_people_call_them(
    command: tuple[str, ...], executable: str, service: str
) -> None:
    assert guess_service_name(facts(command=command, executable=executable)) == service


def test_a_resource_follows_the_conventions() -> None:
    found = dict(process_resource(facts(container_id=ID, pod_uid=POD), dict(BASE)).attributes)
    instance = found.pop("service.instance.id")
    assert len(str(instance)) == 36
    assert found == BASE | {
        "service.name": "app",
        "process.pid": 42,
        "process.command": "python3",
        "process.executable.name": "python3.11",
        "process.executable.path": "/usr/bin/python3.11",
        "process.runtime.name": "cpython",
        "container.id": ID,
        "k8s.pod.uid": POD,
    }


def test_what_the_go_toolchain_built_is_known() -> None:
    found = process_resource(facts(executable="/usr/bin/server", is_go=True), BASE)
    assert found.get("process.runtime.name") == "go"


def test_the_instance_id_is_stable_and_distinct() -> None:
    def instance(**changes: object) -> object:
        return process_resource(facts(**changes), dict(BASE)).get("service.instance.id")

    assert instance() == instance(comm="renamed", service_name="x")
    assert len({instance(), instance(tgid=43), instance(start_time_ns=1), instance(container_id=ID)}) == 4
    elsewhere = process_resource(facts(), {"host.name": "node-2"}).get("service.instance.id")
    assert elsewhere != instance()


def test_what_a_process_says_of_itself_wins_but_not_over_what_was_seen() -> None:
    own = (
        "service.name=from-attributes,deployment.environment.name=prod%2C1,process.pid=1,telemetry.sdk.name=x"
    )
    found = process_resource(facts(resource_attributes=own), BASE | {"service.name": "from-agent"})
    assert found.get("service.name") == "from-attributes"
    assert found.get("deployment.environment.name") == "prod,1"
    assert found.get("process.pid") == 42 and found.get("telemetry.sdk.name") == "otelgpu"
    named = process_resource(facts(resource_attributes=own, service_name="chat"), dict(BASE))
    assert named.get("service.name") == "chat"
    assert (
        process_resource(facts(), BASE | {"service.name": "from-agent"}).get("service.name") == "from-agent"
    )


def test_what_a_process_publishes_wins_over_guesses_only() -> None:
    published = {
        "service.name": "checkout",
        "service.instance.id": "i-7",
        "service.version": "1.2",
        "telemetry.sdk.name": "libdatadog",
        "process.pid": 1,
    }

    def made(base: dict[str, str] | None = None, **changes: object) -> Resource:
        return process_resource(facts(**changes), BASE | (base or {}), published)

    assert made().get("service.name") == "checkout"
    assert made().get("service.instance.id") == "i-7"
    assert made().get("service.version") == "1.2"
    assert made().get("telemetry.sdk.name") == "otelgpu" and made().get("process.pid") == 42
    assert made({"service.name": "from-agent"}).get("service.name") == "from-agent"
    assert made(service_name="chat").get("service.name") == "chat"
    assert made(resource_attributes="service.version=2").get("service.version") == "2"


def test_secrets_of_a_process_are_not_exported(tmp_path: Path) -> None:
    secret = "hf_abcdefgh"
    add_process(
        tmp_path,
        5,
        cmdline=f"python3 serve.py --api-key {secret}".encode(),  # a title, as setproctitle writes it
        environ=f"HF_TOKEN={secret}\0OTEL_SERVICE_NAME=chat\0".encode(),
    )
    found = describe(5, proc=tmp_path)
    assert found is not None
    assert secret not in str(process_resource(found, dict(BASE)))
    assert secret not in str(process_resource(facts(command=("python3", "a.py", secret)), dict(BASE)))


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        (" a = b , c=d%20e,", {"a": "b", "c": "d e"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=b,broken", {}),
        ("=b", {}),
        ("a=%ff", {}),
    ],
)
def test_resource_attributes_of_the_environment(text: str, attributes: dict[str, str]) -> None:
    assert parse_resource_attributes(text) == attributes


@given(st.text(max_size=200), st.text(max_size=80), st.lists(st.text(max_size=20), max_size=5))
def test_any_text_makes_a_resource(own: str, cgroup: str, command: list[str]) -> None:
    parse_cgroup(cgroup)
    made = process_resource(facts(resource_attributes=own, command=tuple(command)), {})
    assert made.get("service.name") is not None
