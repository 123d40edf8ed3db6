"""Programs on uprobes may be preempted, so none keeps its variables on a stack that is its CPU's: bpf/lib/own_stack.h.

Kernels from 6.13 on give such a stack, and say so in the code that they made.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint32, c_uint64
from typing import Final

import pytest

from otelgpu.families.registry import families
from otelgpu.kernel.attach import functions_of
from otelgpu.kernel.libbpf import Program
from otelgpu.kernel.loader import load_family, read_image
from otelgpu.kernel.uprobe_links import ATTACH_TYPES, UprobeLinks, uprobe_links

_NR_BPF: Final = 321  # arch/x86/entry/syscalls/syscall_64.tbl
_BPF_OBJ_GET_INFO_BY_FD: Final = 15

# add r9, gs:[...]: the last instruction of emit_priv_frame_ptr(), arch/x86/net/bpf_jit_comp.c of Linux 6.13. No
# register of BPF is r9.
PRIVATE_STACK: Final = bytes.fromhex("654c030c25")


class _Info(ctypes.Structure):
    """struct bpf_prog_info, its beginning: include/uapi/linux/bpf.h."""

    _fields_ = [
        ("type", c_uint32),
        ("id", c_uint32),
        ("tag", ctypes.c_ubyte * 8),
        ("jited_prog_len", c_uint32),
        ("xlated_prog_len", c_uint32),
        ("jited_prog_insns", c_uint64),
    ]


class _Request(ctypes.Structure):
    """union bpf_attr, info."""

    _fields_ = [("bpf_fd", c_uint32), ("info_len", c_uint32), ("info", c_uint64)]


def machine_code(program: Program) -> bytes:
    """What the kernel made of a loaded program, with its functions."""
    info = _Info()
    request = _Request(bpf_fd=program.fd, info_len=ctypes.sizeof(info), info=ctypes.addressof(info))
    ask = ctypes.CDLL(None, use_errno=True).syscall
    assert ask(_NR_BPF, _BPF_OBJ_GET_INFO_BY_FD, byref(request), ctypes.sizeof(request)) == 0
    code = ctypes.create_string_buffer(info.jited_prog_len)
    info.jited_prog_insns, info.xlated_prog_len = ctypes.addressof(code), 0
    assert ask(_NR_BPF, _BPF_OBJ_GET_INFO_BY_FD, byref(request), ctypes.sizeof(request)) == 0
    return code.raw


@pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "pairs"])
@pytest.mark.parametrize("family", [name for name in families() if functions_of(read_image(name))])
def test_no_program_on_a_uprobe_has_the_stack_of_its_cpu(family: str, sessions: bool) -> None:
    if sessions and uprobe_links() < UprobeLinks.SESSION:
        pytest.skip("this kernel has no uprobe sessions")
    loaded = load_family(read_image(family), knobs={}, ring_bytes=4096, sessions=sessions)
    try:
        code = {each.name: machine_code(each) for each in loaded.programs if each.probes in ATTACH_TYPES}
        assert code and all(code.values()), "the kernel shows its code to root"
        assert [name for name, made in code.items() if PRIVATE_STACK in made] == []
    finally:
        loaded.close()
