"""What the running kernel's type information (BTF) names, and so what the kernel can do.

A name is looked for in the raw bytes: its strings end with zeros, and parsing megabytes of types takes a second.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Final

VMLINUX_BTF: Final = Path("/sys/kernel/btf/vmlinux")


def has_typed_tracepoint(name: str) -> bool:
    """Whether the running kernel has a tracepoint for ``SEC("tp_btf/<name>")``: its BTF names the type."""
    return not lacking_names([f"btf_trace_{name}"])


def lacking_names(names: Iterable[str]) -> list[str]:
    """Those of ``names`` (types, enumerators, functions) that the running kernel's BTF does not know."""
    try:
        known = content()
    except OSError:
        return list(names)
    return [name for name in names if known.find(b"\0" + name.encode() + b"\0") < 0]


def content() -> mmap.mmap | bytes:
    """Mapped from Linux 6.16 on: to read it takes 1,400 system calls, each of which lets other threads go first."""
    with VMLINUX_BTF.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
        except (OSError, ValueError):
            return file.read()


# What every family needs and a kernel may be too old for: enumerator of linux/bpf.h → what it is.
NEEDED_FEATURES: Final = {
    "BPF_MAP_TYPE_RINGBUF": "ring buffers (Linux 5.8)",
    "BPF_MAP_TYPE_TASK_STORAGE": "per-thread storage (Linux 5.11)",
    "BPF_FUNC_get_attach_cookie": "attach cookies (Linux 5.15)",
    "BPF_FUNC_task_pt_regs": "registers of another thread (Linux 5.15)",
}


def lacking_features() -> list[str]:
    """What the running kernel is too old for."""
    return [NEEDED_FEATURES[name] for name in lacking_names(NEEDED_FEATURES)]
