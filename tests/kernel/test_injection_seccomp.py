"""A library into processes with a seccomp filter: where that lets them do what it takes, and nowhere else."""

from __future__ import annotations

import ctypes
import errno
import json
import struct
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from otelgpu.families.profiles.syscall_names import syscall_name
from otelgpu.processes.live_injection import needed_calls, refusals, seccomp
from otelgpu.processes.live_injection.refusals import InjectionRefused
from tests.kernel.observing import OTELGPU
from tests.rig import missing_compiler
from tests.rig.injection.container import container, missing_namespaces
from tests.rig.injection.repeated import Busy, await_dormant, build_busy, inject_once, running
from tests.rig.seccomp import LIBRARY

OF_PROGRAMS = (
    *("execve", "arch_prctl", "set_tid_address", "prlimit64", "getrandom", "access", "pread64", "newfstatat"),
    *("write", "rt_sigaction", "exit_group", "clock_nanosleep", "pipe2", "rseq", "epoll_create1", "ioctl"),
)
"""What programs do when they start and end, and the busy one."""
NO_SUCH_CALL = {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}
CLONE3 = 435
NEEDED = {name for name, _, _ in needed_calls.NEEDED}


@pytest.fixture(scope="module")
def busy_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing := missing_compiler():
        pytest.skip(missing)
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        pytest.skip(f"{error} (Debian: apt-get install libseccomp2)")
    return build_busy(tmp_path_factory.mktemp("busy"))


def filtered(folder: Path, command: tuple[str | Path, ...], **document: Any) -> tuple[str | Path, ...]:
    """A command that is run under such a filter."""
    profile = folder / "seccomp.json"
    profile.write_text(json.dumps(document))
    return (sys.executable, "-m", "tests.rig.seccomp", profile, *command)


def allowing(names: Collection[str], rest: str = "SCMP_ACT_ERRNO") -> dict[str, Any]:
    """Those calls, and no others; as container runtimes have it."""
    allowed = {"names": sorted({*names, *OF_PROGRAMS}), "action": "SCMP_ACT_ALLOW"}
    return {"defaultAction": rest, "defaultErrnoRet": 1, "syscalls": [allowed, NO_SUCH_CALL]}


INSTALL = """
import ctypes, os, struct, sys
code = bytes.fromhex(sys.argv[1])
buffer = ctypes.create_string_buffer(code, len(code))
libc = ctypes.CDLL(None)
assert not libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
program = struct.pack("@HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
assert not libc.prctl(22, 2, program, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
os.execv(sys.argv[2], sys.argv[2:])
"""


def ending_for_others(program: Path) -> tuple[str | Path, ...]:
    """``program`` under a filter that ends it for all calls but those needed, by their numbers, and -1.

    libseccomp has no rule for that number.
    """
    numbers = {number: seccomp.ALLOW for _, number, _ in needed_calls.NEEDED}
    numbers |= {number: seccomp.ALLOW for number in range(470) if syscall_name(number) in OF_PROGRAMS}
    numbers |= {0xFFFF_FFFF: seccomp.ALLOW, CLONE3: seccomp.ERRNO | errno.ENOSYS}
    code = struct.pack("<HBBI", 0x20, 0, 0, 0)
    for number, result in numbers.items():
        code += struct.pack("<HBBIHBBI", 0x15, 0, 1, number, 0x06, 0, 0, result)
    code += struct.pack("<HBBI", 0x06, 0, 0, seccomp.KILL_PROCESS)
    return (sys.executable, "-c", INSTALL, code.hex(), program)


def is_unharmed(busy: Busy) -> bool:
    """Nothing of ours is left in it, and it ends as it should."""
    dormant = await_dormant(busy)
    busy.end()
    return dormant and busy.code == 0


@pytest.mark.parametrize("mode", ["threads", "numbers"])
def test_the_calls_that_are_said_to_be_needed_are_all_that_it_takes(
    busy_program: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "why_not_allowed", lambda filters: None)
    with running(busy_program, mode, ending_for_others(busy_program)) as busy:
        busy.before = busy.counts
        assert inject_once(busy.tgid).answer == 1
        assert is_unharmed(busy), busy.said


def test_a_filter_that_allows_them_is_no_hindrance(busy_program: Path, tmp_path: Path) -> None:
    with running(busy_program, "threads", filtered(tmp_path, (busy_program,), **allowing(NEEDED))) as busy:
        busy.before = busy.counts
        for _ in range(2):
            assert inject_once(busy.tgid).answer == 1
            assert await_dormant(busy)
        assert is_unharmed(busy), busy.said


def test_nor_is_it_in_a_container(busy_program: Path, tmp_path: Path) -> None:
    if missing := missing_namespaces():
        pytest.skip(missing)
    # Everything but one call, for it is there while the container is made.
    other = {"names": ["kexec_load"], "action": "SCMP_ACT_KILL_PROCESS"}
    document = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [other]}
    root = tmp_path / "root"
    root.mkdir()
    command = filtered(tmp_path, container(root, busy_program, user=65534), **document)
    with running(busy_program, "numbers", command) as busy:
        busy.before = busy.counts
        assert inject_once(busy.tgid).answer == 1
        assert is_unharmed(busy), busy.said


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (allowing(NEEDED - {"socketpair"}), "system call socketpair is refused to it"),
        (allowing(NEEDED, "SCMP_ACT_KILL_PROCESS"), "would end it"),
    ],
)
def test_a_call_that_it_may_not_make_is_named_and_nothing_is_done(
    busy_program: Path, tmp_path: Path, document: dict[str, Any], why: str
) -> None:
    with running(busy_program, "numbers", filtered(tmp_path, (busy_program,), **document)) as busy:
        busy.before = busy.counts
        with pytest.raises(InjectionRefused, match=why):
            inject_once(busy.tgid)
        assert is_unharmed(busy), busy.said


def test_without_the_right_to_read_the_filter_the_command_says_so(busy_program: Path, tmp_path: Path) -> None:
    with running(busy_program, "numbers", filtered(tmp_path, (busy_program,), **allowing(NEEDED))) as busy:
        busy.before = busy.counts
        without = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
        command = (
            *without,
            OTELGPU,
            "attach",
            "--source=inject",
            "--export=file:/dev/null",
            "-p",
            str(busy.tgid),
        )
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert (
            "a seccomp filter decides which system calls it may make, and we may not read that" in done.stderr
        )
        assert "CAP_SYS_ADMIN" in done.stderr
        assert is_unharmed(busy), busy.said
