"""Who is not given a library: by what /proc says, before anything is done."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from otelgpu.processes.live_injection import amd64, loading
from otelgpu.processes.live_injection.refusals import (
    InjectionRefused,
    NoCuda,
    no_access,
    refuse_unsuitable,
    unknown_filter,
)
from otelgpu.processes.live_injection.target import Target

PID = 4_000_000
ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00"
STATUS = {
    "Tgid": str(PID),
    "State": "S (sleeping)",
    "TracerPid": "0",
    "Seccomp": "0",
    "x86_Thread_features": "",
}
MAPS = (
    "7f0000000000-7f0000001000 r-xp 00000000 08:01 11 /usr/lib/ld-linux-x86-64.so.2\n"
    "7f0000010000-7f0000011000 r-xp 00000000 08:01 12 /usr/lib/libcudart.so.12\n"
)


def proc_of(
    folder: Path,
    status: Mapping[str, str] | None = None,
    *,
    program: bytes = ELF,
    maps: str = MAPS,
    flags: int = 0,
) -> Path:
    """A /proc with one process that may be given a library, but for what is said otherwise."""
    own = folder / str(PID)
    own.mkdir(parents=True)
    (own / "root").symlink_to("/")
    (own / "exe").write_bytes(program)
    (own / "maps").write_text(maps)
    (own / "stat").write_text(f"{PID} (a) name) S 1 1 1 0 -1 {flags} 0")
    (own / "status").write_text(
        "".join(f"{key}:\t{value}\n" for key, value in {**STATUS, **(status or {})}.items())
    )
    return folder


def test_a_suitable_process_is_not_refused(tmp_path: Path) -> None:
    refuse_unsuitable(PID, proc=proc_of(tmp_path), machine="x86_64")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"Tgid": "17"}, "it is a thread of process 17"),
        ({"State": "Z (zombie)"}, "it has ended"),
        ({"State": "T (stopped)"}, "it is stopped"),
        ({"TracerPid": "99"}, "process 99 traces it already"),
        ({"Seccomp": "1"}, "strict mode"),
        ({"x86_Thread_features": "shstk"}, "a shadow stack"),
    ],
)
def test_what_stands_in_the_way_is_said(tmp_path: Path, status: Mapping[str, str], why: str) -> None:
    with pytest.raises(InjectionRefused, match=why):
        refuse_unsuitable(PID, proc=proc_of(tmp_path, status), machine="x86_64")


def test_a_filter_of_system_calls_is_looked_at_later_and_one_that_cannot_be_read_is_said(
    tmp_path: Path,
) -> None:
    refuse_unsuitable(PID, proc=proc_of(tmp_path, {"Seccomp": "2"}), machine="x86_64")
    forbidden = unknown_filter(PID, PermissionError(errno.EACCES, "Permission denied"))
    assert "we may not read that" in str(forbidden) and "CAP_SYS_ADMIN" in (forbidden.hint or "")
    assert "CONFIG_CHECKPOINT_RESTORE" in str(unknown_filter(PID, OSError(errno.EIO, "no")))


def test_a_thread_of_the_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InjectionRefused, match="thread of the kernel"):
        refuse_unsuitable(PID, proc=proc_of(tmp_path, flags=0x200000), machine="x86_64")


def test_another_architecture_is_refused_ours_and_the_program_s(tmp_path: Path) -> None:
    with pytest.raises(InjectionRefused, match="aarch64"):
        refuse_unsuitable(PID, proc=tmp_path, machine="aarch64")
    thirty_two = ELF[:4] + b"\x01" + ELF[5:]
    with pytest.raises(InjectionRefused, match="not for x86-64"):
        refuse_unsuitable(PID, proc=proc_of(tmp_path, program=thirty_two), machine="x86_64")


def test_other_files_are_no_hindrance_but_a_root_without_proc_is(tmp_path: Path) -> None:
    proc, root = proc_of(tmp_path / "proc"), tmp_path / "container"
    (proc / str(PID) / "root").unlink()
    (proc / str(PID) / "root").symlink_to(root)
    (root / "proc").mkdir(parents=True)
    with pytest.raises(InjectionRefused, match="it has no /proc"):
        refuse_unsuitable(PID, proc=proc, machine="x86_64")
    (root / "proc" / "thread-self").symlink_to("1/task/1")  # of another PID namespace: it leads nowhere here
    refuse_unsuitable(PID, proc=proc, machine="x86_64")


def test_static_programs_and_such_without_cuda_are_refused(tmp_path: Path) -> None:
    linker, cuda = MAPS.splitlines(keepends=True)
    with pytest.raises(InjectionRefused, match="linked statically"):
        refuse_unsuitable(PID, proc=proc_of(tmp_path / "a", maps=cuda), machine="x86_64")
    with pytest.raises(NoCuda, match="makes no CUDA calls"):
        refuse_unsuitable(PID, proc=proc_of(tmp_path / "b", maps=linker), machine="x86_64")


@pytest.mark.parametrize("pid", [PID, 0, -1])
def test_a_process_that_is_not_there_is_refused(tmp_path: Path, pid: int) -> None:
    with pytest.raises(InjectionRefused, match="no such process"):
        refuse_unsuitable(pid, proc=tmp_path, machine="x86_64")
    with pytest.raises(InjectionRefused, match="otelgpu's own"):
        refuse_unsuitable(os.getpid(), machine="x86_64")


@pytest.mark.parametrize(
    ("uid", "scope", "why", "hint"),
    [
        ("0", "1", "it is user 0's, and we are user 1000", "as that user, or as root"),
        ("1000", "1", "ptrace_scope is 1: only processes that it descends from", "sysctl"),
        ("1000", "2", "ptrace_scope is 2: only root", "CAP_SYS_PTRACE"),
        ("1000", "3", "ptrace_scope is 3: nobody", "otelgpu run --source inject"),
        ("1000", "0", "it has more rights than we, or is not dumpable", "as root"),
        ("1000", "", "it has more rights than we, or is not dumpable", "as root"),
        ("1000", "what", "it has more rights than we, or is not dumpable", "as root"),
        ("who", "1", "it has more rights than we, or is not dumpable", "as root"),
    ],
)
def test_who_may_not_be_traced_is_said_with_the_reason(
    tmp_path: Path, uid: str, scope: str, why: str, hint: str
) -> None:
    proc = proc_of(tmp_path, {"Uid": f"{uid} {uid} {uid} {uid}"})
    if scope:
        yama = proc / "sys/kernel/yama"
        yama.mkdir(parents=True)
        (yama / "ptrace_scope").write_text(f"{scope}\n")
    refused = no_access(PID, proc=proc, uid=1000)
    assert why in str(refused) and refused.hint is not None and hint in refused.hint


@pytest.mark.parametrize(
    ("result", "why"),
    [(-errno.EMFILE, "Too many open files"), (0, "nothing came"), (-(2**31), "nothing came")],
)
def test_why_the_library_did_not_reach_it_is_said_whatever_the_process_has_written(
    result: int, why: str
) -> None:
    block = bytearray(amd64.BLOCK_BYTES)
    struct.pack_into("<i", block, amd64.RESULT_AT, result)
    memory = SimpleNamespace(read=lambda address, count: bytes(block[address : address + count]))
    answer, said = loading._read_answer(cast("Target", memory), 0)
    assert (answer, said) == (0, f"it was not given it ({why})")


def test_a_process_that_may_be_looked_at_and_not_traced_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(pid: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(loading, "refuse_unsuitable", lambda pid: None)
    monkeypatch.setattr(loading, "check_may_take", forbidden)
    with pytest.raises(InjectionRefused, match=r"more rights than we|ptrace_scope"):
        loading.load_library(os.getpid(), Path("/nowhere.so"), "function", b"", socket.socket.close)
