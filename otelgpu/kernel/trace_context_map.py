"""``traces_ctx_v1``: the map in which OpenTelemetry eBPF Instrumentation (OBI) says which span a thread works for.

OBI pins it at ``/sys/fs/bpf/otel/traces_ctx_v1``: an LRU hash from thread (``bpf_get_current_pid_tgid()``, in
the initial PID namespace) to 16 bytes of trace id and 8 of span id. Profilers read it, and so do our programs
(``bpf/lib/context.h``); :class:`TraceContextMap` writes it, where OBI does not run.

Source: opentelemetry-ebpf-instrumentation, ``devdocs/trace-profile-correlation.md``.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from otelgpu.kernel.features import pid_namespace
from otelgpu.kernel.libbpf import BpfError, load_libbpf

PINNED_AT: Final = Path("/sys/fs/bpf/otel/traces_ctx_v1")
MAX_THREADS: Final = 1 << 14
_KEY: Final = struct.Struct("<Q")
_VALUE: Final = struct.Struct("16s8s")
_BPF_MAP_TYPE_LRU_HASH: Final = 9  # include/uapi/linux/bpf.h


def open_trace_contexts(path: Path = PINNED_AT) -> int | None:
    """The descriptor of the map that is pinned at ``path``, to be closed by the caller; None when there is none.

    Raises :class:`BpfError` when what is there is no such map, or may not be opened.
    """
    library = load_libbpf()
    descriptor = int(library.bpf_obj_get(os.fsencode(path)))
    if descriptor in (-errno.ENOENT, -errno.ENOTDIR):
        return None
    if descriptor < 0:
        raise library.error(f"cannot open {path}", descriptor)
    found = _shape(descriptor)
    if found != (_BPF_MAP_TYPE_LRU_HASH, _KEY.size, _VALUE.size):
        os.close(descriptor)
        raise BpfError(f"{path} is not a map of trace contexts: (type, key bytes, value bytes) are {found}")
    return descriptor


def _shape(descriptor: int) -> tuple[int, int, int]:
    """(type, key bytes, value bytes) of a map; zeroes for what is none."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    kind, key, value = (int(fields.get(name, "0")) for name in ("map_type", "key_size", "value_size"))
    return kind, key, value


class TraceContextMap:
    """What threads work for, told to whoever reads the map; the one that is pinned, else one of our own.

    What was put is taken out again by :meth:`close`, which also unpins a map that this object made.
    """

    def __init__(self, path: Path = PINNED_AT) -> None:
        """Raises :class:`BpfError`: there is no BPF file system, or the agent does not see the threads' ids."""
        if pid_namespace():
            raise BpfError(
                "trace contexts are kept by the ids of the initial PID namespace, which are not visible here",
                hint="run in the host's PID namespace (docker: --pid=host)",
            )
        self._library = load_libbpf()
        self._path = path
        self._told: OrderedDict[bytes, None] = OrderedDict()  # keys that are ours
        opened = open_trace_contexts(path)
        self._is_own = opened is None
        self._descriptor = self._create() if opened is None else opened

    def _create(self) -> int:
        sizes = (_KEY.size, _VALUE.size, MAX_THREADS)
        made = int(self._library.bpf_map_create(_BPF_MAP_TYPE_LRU_HASH, b"traces_ctx_v1", *sizes, None))
        if made < 0:
            raise self._library.error("cannot create the map of trace contexts", made)
        try:
            self._path.parent.mkdir(mode=0o755, exist_ok=True)
            if code := self._library.bpf_obj_pin(made, os.fsencode(self._path)):
                raise self._library.error(f"cannot pin a map at {self._path}", code)
        except OSError as error:
            os.close(made)
            raise BpfError(
                f"cannot make {self._path.parent}: {error.strerror}",
                errno=error.errno or 0,
                hint="mount the BPF file system: mount -t bpf bpf /sys/fs/bpf",
            ) from error
        except BpfError:
            os.close(made)
            raise
        return made

    def put(self, tgid: int, tid: int, trace_id: bytes, span_id: bytes) -> bool:
        """A thread works for a span from now on; False when the kernel did not take it."""
        key = _KEY.pack(tgid << 32 | tid)
        self._told[key] = None
        self._told.move_to_end(key)
        if len(self._told) > MAX_THREADS:
            self._take_out(next(iter(self._told)))
        return not self._library.bpf_map_update_elem(self._descriptor, key, _VALUE.pack(trace_id, span_id), 0)

    def show(self, contexts: Mapping[tuple[int, int], tuple[bytes, bytes]]) -> None:
        """Put what threads work for, by (tgid, tid) as (trace id, span id), and take out all that is not in it."""
        shown = {_KEY.pack(tgid << 32 | tid) for tgid, tid in contexts}
        for key in [key for key in self._told if key not in shown]:
            self._take_out(key)
        for (tgid, tid), (trace_id, span_id) in contexts.items():
            self.put(tgid, tid, trace_id, span_id)

    def delete(self, tgid: int, tid: int) -> None:
        """It does no longer; nothing happens if it was never put here."""
        key = _KEY.pack(tgid << 32 | tid)
        if key in self._told:
            self._take_out(key)

    def _take_out(self, key: bytes) -> None:
        del self._told[key]
        self._library.bpf_map_delete_elem(self._descriptor, key)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor < 0:
            return
        while self._told:
            self._take_out(next(iter(self._told)))
        os.close(self._descriptor)
        self._descriptor = -1
        if self._is_own:
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
