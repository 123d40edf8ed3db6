"""Links of uprobes, by the system call itself: many probes at once is what libbpf knows only from version 1.3 on.

In: descriptors of programs that are loaded. Out: descriptors of links, or the negative errno.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_uint64
from enum import IntEnum
from functools import cache
from typing import Final

_NR_BPF: Final = 321  # arch/x86/entry/syscalls/syscall_64.tbl
_BPF_PROG_LOAD: Final = 5
_BPF_LINK_CREATE: Final = 28
PROGRAM_TYPE: Final = 2  # BPF_PROG_TYPE_KPROBE
_BPF_TRACE_UPROBE_MULTI: Final = 48
_BPF_TRACE_UPROBE_SESSION: Final = 57
_BPF_F_UPROBE_MULTI_RETURN: Final = 1
ATTACH_TYPES: Final = {
    "uprobe": _BPF_TRACE_UPROBE_MULTI,
    "uretprobe": _BPF_TRACE_UPROBE_MULTI,
    "usession": _BPF_TRACE_UPROBE_SESSION,
}
"""First part of ``SEC()`` → enum bpf_attach_type."""

_syscall: Final = ctypes.CDLL(None, use_errno=True).syscall


class _UprobeMulti(ctypes.Structure):
    """union bpf_attr, link_create with uprobe_multi: include/uapi/linux/bpf.h of Linux 6.6."""

    _fields_ = [
        ("prog_fd", c_uint32),
        ("target_fd", c_uint32),
        ("attach_type", c_uint32),
        ("flags", c_uint32),
        ("path", c_uint64),
        ("offsets", c_uint64),
        ("ref_ctr_offsets", c_uint64),
        ("cookies", c_uint64),
        ("cnt", c_uint32),
        ("multi_flags", c_uint32),
        ("pid", c_uint32),
        ("padding", c_uint32),
    ]


class _ProgramLoad(ctypes.Structure):
    """union bpf_attr, prog_load: include/uapi/linux/bpf.h."""

    _fields_ = [
        ("prog_type", c_uint32),
        ("insn_cnt", c_uint32),
        ("insns", c_uint64),
        ("license", c_uint64),
        ("log_level", c_uint32),
        ("log_size", c_uint32),
        ("log_buf", c_uint64),
        ("kern_version", c_uint32),
        ("prog_flags", c_uint32),
        ("prog_name", ctypes.c_char * 16),
        ("prog_ifindex", c_uint32),
        ("expected_attach_type", c_uint32),
    ]


class UprobeLinks(IntEnum):
    """How this kernel attaches uprobes; each can what the ones before it can."""

    SINGLE = 0  # through perf events, one at a time; taken off one at a time too, 0.1 s each
    MULTI = 1  # many offsets of a file in one BPF link (Linux 6.6); any number taken off at once
    SESSION = 2  # one program for entry and return, which declines the return (6.13)


@cache
def uprobe_links() -> UprobeLinks:
    """The best this kernel has, found by trying."""
    for kind, attach_type in (
        (UprobeLinks.SESSION, _BPF_TRACE_UPROBE_SESSION),
        (UprobeLinks.MULTI, _BPF_TRACE_UPROBE_MULTI),
    ):
        if _has_link(attach_type):
            return kind
    return UprobeLinks.SINGLE


def _has_link(attach_type: int) -> bool:
    """Whether an attempt to link a program to ``/`` fails only because that is no regular file (EBADF)."""
    code = ctypes.create_string_buffer(struct.pack("<QQ", 0xB7, 0x95))  # r0 = 0; exit
    licence, path = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(b"/")
    load = _ProgramLoad(
        prog_type=PROGRAM_TYPE,
        insn_cnt=2,
        insns=ctypes.addressof(code),
        license=ctypes.addressof(licence),
        expected_attach_type=attach_type,
    )
    program = _syscall(_NR_BPF, _BPF_PROG_LOAD, byref(load), ctypes.sizeof(load))
    if program < 0:
        return False
    try:
        offsets = (c_uint64 * 1)(0)
        link = _UprobeMulti(
            prog_fd=program,
            attach_type=attach_type,
            path=ctypes.addressof(path),
            offsets=ctypes.addressof(offsets),
            cnt=1,
        )
        attached = _syscall(_NR_BPF, _BPF_LINK_CREATE, byref(link), ctypes.sizeof(link))
        if attached >= 0:
            os.close(attached)
        return attached >= 0 or ctypes.get_errno() == errno.EBADF
    finally:
        os.close(program)


def link_uprobes(
    program: int,
    probes: str,
    path: str,
    offsets: Sequence[int],
    cookies: Sequence[int],
    tgid: int,
    semaphores: Sequence[int] = (),
) -> int:
    """Attach to file ``offsets`` with a cookie each, in process ``tgid`` (at most 0: in every one): all or none.

    ``semaphores``: for each the file offset of a 16-bit counter that is raised while it is probed (USDT); 0: of none.
    """
    name = ctypes.create_string_buffer(path.encode())
    places, values = (c_uint64 * len(offsets))(*offsets), (c_uint64 * len(offsets))(*cookies)
    counters = (c_uint64 * len(offsets))(*semaphores)
    request = _UprobeMulti(
        prog_fd=program,
        attach_type=ATTACH_TYPES[probes],
        path=ctypes.addressof(name),
        offsets=ctypes.addressof(places),
        ref_ctr_offsets=ctypes.addressof(counters) if any(semaphores) else 0,
        cookies=ctypes.addressof(values),
        cnt=len(offsets),
        multi_flags=_BPF_F_UPROBE_MULTI_RETURN if probes == "uretprobe" else 0,
        pid=max(tgid, 0),
    )
    descriptor = int(_syscall(_NR_BPF, _BPF_LINK_CREATE, byref(request), ctypes.sizeof(request)))
    return descriptor if descriptor >= 0 else -ctypes.get_errno()
