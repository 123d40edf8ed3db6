"""The agent as deploy/ runs it: few system calls, nothing executed, nothing to write to but its own folder."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.kernel.observing import OTELGPU, cuda_calls, read_spans, said_at_start
from tests.kernel.privileged import limited
from tests.kernel.test_capabilities import KEPT
from tests.rig import ROOT, build_fakes, own_suffix, start_cuda_client
from tests.rig.seccomp import LIBRARY
from tools.seccomp_profile import PROFILE

pytestmark = [pytest.mark.usefixtures("kernel"), pytest.mark.long]

CALLS = 23
UNDER_PROFILE = (sys.executable, "-m", "tests.rig.seccomp", str(PROFILE))
NEW = {"uretprobe", "uprobe", "futex_waitv", "epoll_pwait2"}  # later than the oldest libseccomp in use


@pytest.fixture(autouse=True)
def libseccomp() -> None:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        pytest.skip(f"{error} (Debian: apt-get install libseccomp2)")


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="otelgpu-test-") as folder:
        yield Path(folder)


def observed_by(
    prefix: Sequence[str], place: Path, *, command: str = OTELGPU, options: Sequence[str] = ()
) -> tuple[dict[str, int], str]:
    """What an agent behind ``prefix`` saw of a client, and what it said."""
    traces = place / "traces.jsonl"
    arguments = ["agent", f"--executable=cuda_client{own_suffix()}", f"--export=file:{traces}", *options]
    with start_cuda_client(calls=CALLS, suffix=own_suffix()) as client:
        agent = subprocess.Popen(
            [*prefix, *command.split(), *arguments], stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        said = said_at_start(agent)
        if "observing" in said:
            client.finish()
            agent.terminate()
        said += agent.communicate(timeout=60)[1]
    assert agent.returncode == 0, (agent.returncode, said)
    return cuda_calls(read_spans(traces)), said


# -- System calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extra", [(), ("--hold-on-load", "--export=otlp:http://127.0.0.1:9")], ids=["", "all"]
)
def test_an_agent_under_the_profile_observes_as_ever(extra: tuple[str, ...], place: Path) -> None:
    calls, said = observed_by([*limited(KEPT), *UNDER_PROFILE], place, options=extra)
    assert calls["cudaLaunchKernel"] == CALLS
    assert "Operation not permitted" not in said and "internal error" not in said, said


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_it_sends_under_the_profile(protocol: str, place: Path) -> None:
    """There is nobody to take it: a connection is refused, and not by the filter."""
    environment = ["env", f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}", "OTELGPU_HEALTH_ADDRESS=127.0.0.1:0"]
    _, said = observed_by(
        [*environment, *UNDER_PROFILE], place, options=("--export=otlp:http://127.0.0.1:9",)
    )
    assert "not delivered" in said and "not permitted" not in said, said


@pytest.mark.parametrize(
    ("attempt", "errno"),
    [
        ("libc.mount(b'none', b'/mnt', b'tmpfs', 0, None)", 1),
        ("libc.unshare(0x20000)", 1),
        ("libc.ptrace(16, 1, 0, 0)", 1),
        ("libc.process_vm_readv(1, None, 0, None, 0, 0)", 1),
        ("libc.syscall(175, 0, 0, 0)", 1),  # init_module
        ("libc.syscall(250, 0, 0)", 1),  # keyctl
        ("libc.syscall(425, 8, 0)", 1),  # io_uring_setup
        ("libc.socket(17, 3, 0)", 1),  # AF_PACKET
        ("libc.syscall(56, 0x10000000, 0, 0, 0, 0)", 1),  # clone(CLONE_NEWUSER)
        ("libc.syscall(435, 0, 0)", 38),  # clone3
    ],
)
def test_what_the_profile_leaves_out_is_refused(attempt: str, errno: int) -> None:
    program = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print({attempt}, ctypes.get_errno())"
    command = [*UNDER_PROFILE, sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert done.stdout == f"-1 {errno}\n", done


def test_libseccomp_knows_what_the_profile_names() -> None:
    program = (
        "import json; from tests.rig.seccomp import load_filter; from tools.seccomp_profile import profile\n"
        "print(json.dumps(load_filter(profile())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert set(json.loads(done.stdout)) <= NEW


# -- Programs --------------------------------------------------------------------------------------------


def test_a_session_executes_nothing(place: Path) -> None:
    """An attempt would kill it, also one that nobody would have missed."""
    deadly = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["execve", "execveat"], "action": "SCMP_ACT_KILL_PROCESS"}],
    }
    program = place / "program.py"
    program.write_text(
        "import sys; from tests.rig.seccomp import load_filter\n"
        f"load_filter({deadly!r}, no_new_privileges=False)\n"
        "from otelgpu.cli.main import main; main()\n"
    )
    command = f"env PYTHONPATH={ROOT} {sys.executable} {program}"
    exports = ("--export=console", "--export=otlp:http://127.0.0.1:9")
    calls, said = observed_by([], place, command=command, options=exports)
    assert calls["cudaLaunchKernel"] == CALLS, said
    checked = subprocess.run(
        [*command.split(), "check", "--json"], capture_output=True, check=False, timeout=60
    )
    assert checked.returncode == 0, checked


def test_an_execution_would_be_noticed(place: Path) -> None:
    program = (
        "import os; from tests.rig.seccomp import load_filter\n"
        "load_filter({'defaultAction': 'SCMP_ACT_ALLOW', 'syscalls': [{'names': ['execve'], "
        "'action': 'SCMP_ACT_KILL_PROCESS'}]})\nos.execv('/bin/true', ['true'])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT, timeout=60)
    assert done.returncode == -31  # SIGSYS


# -- Files -----------------------------------------------------------------------------------------------

READ_ONLY = r"""
mount --make-rprivate /
awk '{print $2}' /proc/self/mounts | sort -ru | while read -r place; do
    mount -o remount,bind,ro "$(printf '%b' "$place")" 2>/dev/null
done
mount -t tmpfs none OUT
for place in / /tmp /run /var /dev/shm /etc /sys/fs/bpf "$HOME" .; do
    if touch "$place/otelgpu-was-here" 2>/dev/null; then echo "can write to $place" >&2; exit 97; fi
done
exec "$@"
"""


@pytest.mark.parametrize("source", ["uprobe", "inject"])
def test_it_runs_where_nothing_can_be_written_but_its_own_folder(source: str, place: Path) -> None:
    out = place / "run"
    out.mkdir()
    script = READ_ONLY.replace("OUT", str(out))
    session = (
        f"{OTELGPU} attach -p $PPID --export=file:{out}/traces.jsonl --duration 1 >&2 && "
        f"{OTELGPU} run --source={source} --export=file:{out}/traces.jsonl -- "
        f"{build_fakes()}/cuda_client --calls={CALLS} --functions=cudaLaunchKernel >&2 && cat {out}/traces.jsonl"
    )
    done = subprocess.run(
        [
            "env",
            f"TMPDIR={out}",
            "HOME=/root",
            "unshare",
            "-m",
            "sh",
            "-c",
            script,
            "sh",
            "sh",
            "-c",
            session,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "Read-only" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    (place / "traces.jsonl").write_text(done.stdout)
    assert cuda_calls(read_spans(place / "traces.jsonl"))["cudaLaunchKernel"] == CALLS
