"""What the kernel says of a program that was loaded: struct bpf_prog_info of include/uapi/linux/bpf.h."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint32, c_uint64
from typing import Final

from otelgpu.kernel.libbpf import Program

_NR_BPF: Final = 321  # arch/x86/entry/syscalls/syscall_64.tbl
_BPF_OBJ_GET_INFO_BY_FD: Final = 15


class _Info(ctypes.Structure):
    """Its beginning, up to verified_insns (Linux 5.16); what is not read here is called by its place."""

    _fields_ = [
        ("type", c_uint32),
        ("id", c_uint32),
        ("tag", ctypes.c_ubyte * 8),
        ("jited_prog_len", c_uint32),
        ("xlated_prog_len", c_uint32),
        ("jited_prog_insns", c_uint64),
        ("at_32", ctypes.c_ubyte * 176),
        ("recursion_misses", c_uint64),
        ("verified_insns", c_uint32),
        ("at_220", c_uint32),
    ]


class _Request(ctypes.Structure):
    """union bpf_attr, info."""

    _fields_ = [("bpf_fd", c_uint32), ("info_len", c_uint32), ("info", c_uint64)]


def _ask(program: Program, info: _Info) -> _Info:
    request = _Request(bpf_fd=program.fd, info_len=ctypes.sizeof(info), info=ctypes.addressof(info))
    ask = ctypes.CDLL(None, use_errno=True).syscall
    assert ask(_NR_BPF, _BPF_OBJ_GET_INFO_BY_FD, byref(request), ctypes.sizeof(request)) == 0
    return info


def verified_instructions(program: Program) -> int:
    """How many the verifier went through until it was content; it goes through a million at most."""
    return int(_ask(program, _Info()).verified_insns)


def machine_code(program: Program) -> bytes:
    """What the kernel made of it, with its functions."""
    info = _ask(program, _Info())
    code = ctypes.create_string_buffer(info.jited_prog_len)
    _ask(program, _Info(jited_prog_len=info.jited_prog_len, jited_prog_insns=ctypes.addressof(code)))
    return code.raw


def tag(program: Program) -> bytes:
    """Of its instructions as they were given, without the numbers of its maps."""
    return bytes(_ask(program, _Info()).tag)
