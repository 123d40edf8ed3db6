"""A user's own BPF program in C, compiled on this host by bcc, writing the records of family ``probe``.

bcc (https://github.com/iovisor/bcc) is the system's, with its LLVM, and wants the running kernel's headers: it is
imported only for this. What the program may use is in :func:`prelude`; docs/how-to/probes.md has an example.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.ring import Ring
from otelgpu.model.inputs import Batch, Records
from otelgpu.model.user_probes import MOST_ARGUMENTS

PACKAGES: Final = Path("/usr/lib/python3/dist-packages")
"""Where Debian's bcc lies, which a virtual environment does not look at."""
RING_PAGES: Final = 256
_HINT: Final = (
    "--probe-program needs bcc and the headers of the running kernel "
    "(Debian: apt-get install python3-bpfcc linux-headers-$(uname -r); Fedora: python3-bcc kernel-devel)"
)
_C_TYPES: Final = {f"<{kind}{size}": f"__{kind}{8 * size}" for kind in "u" for size in (2, 4, 8)} | {
    "|u1": "__u8",
    "<i4": "__s32",
    "<i8": "__s64",
}


class BccProgram:
    """One file of C. Raises :class:`BpfError` where bcc is missing or refuses it; its words are on standard error.

    ``layout`` is the dtype of ``struct probe_hit``, ``kind`` its kind, ``numbers`` the probes by name.
    """

    def __init__(
        self, text: str, origin: str, layout: np.dtype[np.void], kind: int, numbers: Mapping[str, int]
    ) -> None:
        bcc = _bcc()
        self._origin, self._layout = origin, layout
        try:
            whole = prelude(layout, kind, numbers) + f'#line 1 "{_quoted(origin)}"\n' + text
            self._program = bcc.BPF(text=whole.encode())
            self._kind = bcc.BPF.KPROBE
            descriptor = self._program[b"otelgpu_hits"].map_fd
        except Exception as error:  # bcc raises nothing more special
            raise BpfError(f"{origin} cannot be compiled: {error}", hint=_HINT) from error
        self._ring = Ring(descriptor, RING_PAGES * 4096, longest=layout.itemsize)

    def load(self, function: str) -> None:
        """Have the kernel verify a function. Raises :class:`BpfError`."""
        try:
            self._program.load_func(function.encode(), self._kind)
        except Exception as error:
            raise BpfError(f"{self._origin}: {function} cannot be loaded: {error}") from error

    def attach(self, function: str, tgid: int, path: str, symbol: str) -> None:
        """Run a function at the entry of ``symbol`` of a file, in one process. Raises :class:`BpfError`."""
        try:
            self._program.attach_uprobe(
                name=os.fsencode(path), sym=symbol.encode(), fn_name=function.encode(), pid=tgid
            )
        except Exception as error:
            raise BpfError(f"{self._origin}: {function} cannot be attached to {symbol}: {error}") from error

    def detach(self, tgid: int, path: str, symbol: str) -> None:
        """Take it off a process, which may have ended."""
        with suppress(Exception):  # bcc knows it by the file's address, and the file may be gone
            self._program.detach_uprobe(name=os.fsencode(path), sym=symbol.encode(), pid=tgid)

    def lost(self) -> int:
        """Hits that found no room in the ring, so far."""
        return int(sum(self._program[b"otelgpu_lost"].values()[0]))

    def drain(self) -> Iterator[Batch]:
        """The hits so far; records of another size are passed over."""
        for run in self._ring.drain():
            if run.shape[1] == self._layout.itemsize:
                records: Records = run.view(self._layout)[:, 0]
                yield Batch(family="probe", kind="probe_hit", records=records)

    def close(self) -> None:
        """Detach and free; idempotent."""
        self._ring.close()
        if self._program is not None:
            self._program.cleanup()
            self._program = None


def prelude(layout: np.dtype[np.void], kind: int, numbers: Mapping[str, int]) -> str:
    """What stands before a user's program: the record, the ring, ``PROBE_<name>`` and ``otelgpu_hit()``."""
    arguments = ", ".join(f"__u64 value{n}" for n in range(MOST_ARGUMENTS))
    stores = "\n".join(f"\thit.values[{n}] = value{n};" for n in range(MOST_ARGUMENTS))
    names = "\n".join(f"#define PROBE_{_identifier(name)} {number}" for name, number in numbers.items())
    head = layout["head"]
    return f"""
#include <uapi/linux/ptrace.h>
{_struct("record_head", head)}
{_struct("probe_hit", layout)}
{names}
BPF_RINGBUF_OUTPUT(otelgpu_hits, {RING_PAGES});
BPF_PERCPU_ARRAY(otelgpu_lost, u64, 1);
static inline void otelgpu_hit(struct pt_regs *ctx, __u16 number, {arguments})
{{
	__u64 who = bpf_get_current_pid_tgid();
	struct probe_hit hit = {{}};

	hit.head.time_ns = bpf_ktime_get_ns();
	hit.head.tgid = who >> 32;
	hit.head.tid = (__u32)who;
	hit.head.cgroup_id = bpf_get_current_cgroup_id();
	hit.head.kind = {kind};
	hit.number = number;
	hit.read = {(1 << MOST_ARGUMENTS) - 1};
{stores}
	if (otelgpu_hits.ringbuf_output(&hit, sizeof(hit), 0))
		otelgpu_lost.increment(0);
}}
"""


def _struct(name: str, layout: np.dtype[np.void]) -> str:
    """The C of a record, whose fields have no holes between them."""
    lines = []
    for field in layout.names or ():
        kind = layout[field]
        base, shape = kind.subdtype or (kind, ())
        c_type = "struct record_head" if base.names else _C_TYPES[base.str]
        lines.append(f"\t{c_type} {field}{''.join(f'[{length}]' for length in shape)};")
    return f"struct {name} {{\n" + "\n".join(lines) + "\n};"


def _identifier(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name)


def _quoted(origin: str) -> str:
    return origin.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _bcc() -> Any:
    try:
        return importlib.import_module("bcc")
    except ImportError:
        pass
    sys.path.append(str(PACKAGES))
    try:
        return importlib.import_module("bcc")
    except (ImportError, OSError) as error:
        raise BpfError(f"bcc cannot be used: {error}", hint=_HINT) from error
    finally:
        sys.path.remove(str(PACKAGES))
