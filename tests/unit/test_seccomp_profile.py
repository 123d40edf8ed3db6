"""The profile in deploy/ is what tools/seccomp_profile.py says, and leaves out what an agent never needs."""

from __future__ import annotations

import json

import pytest

from tools.seccomp_profile import ALLOWED, PROFILE, known, profile, text

NEVER = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"),
    *("mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_by_handle_at"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "reboot", "swapon"),
    *("keyctl", "add_key", "request_key", "userfaultfd", "io_uring_setup", "personality", "execveat"),
)


def test_the_file_is_what_the_tool_writes() -> None:
    assert PROFILE.read_text() == text(), "run: python -m tools.seccomp_profile"


def test_what_is_not_listed_fails_and_is_not_fatal() -> None:
    document = json.loads(PROFILE.read_text())
    assert (document["defaultAction"], document["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 1)


@pytest.mark.parametrize("name", NEVER)
def test_what_an_agent_never_needs_is_not_allowed(name: str) -> None:
    assert name not in known(profile())


def test_no_call_is_listed_twice() -> None:
    names = [name for listed in ALLOWED.values() for name in listed.split()]
    assert len(names) == len(set(names))
    assert not {"socket", "clone", "clone3"} & set(names)
