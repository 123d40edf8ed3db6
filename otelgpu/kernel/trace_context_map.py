"""``traces_ctx_v1``: the map in which OpenTelemetry eBPF Instrumentation (OBI) says which span a thread works for.

OBI pins it at ``/sys/fs/bpf/otel/traces_ctx_v1``: an LRU hash from thread (``bpf_get_current_pid_tgid()``, in
the initial PID namespace) to 16 bytes of trace id and 8 of span id. Profilers read it, and so do our programs
(``bpf/lib/context.h``); :class:`TraceContextMap` writes it, where OBI does not run.

Source: opentelemetry-ebpf-instrumentation, ``devdocs/trace-profile-correlation.md``.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

from otelgpu.kernel.features import pid_namespace
from otelgpu.kernel.libbpf import BpfError, load_libbpf
from otelgpu.kernel.privileges.capabilities import LOADING
from otelgpu.kernel.privileges.guard import Guard
from otelgpu.model.losses import Reasons

REASONS: Final = Reasons(
    "live",
    {
        "trace_contexts_unusable": "OBI's map of trace contexts is of another shape, or may not be opened",
    },
)
"""What one count of (``live``, reason) means."""

_log = logging.getLogger("otelgpu.kernel")

PINNED_AT: Final = Path("/sys/fs/bpf/otel/traces_ctx_v1")
MAX_THREADS: Final = 1 << 14
_KEY: Final = struct.Struct("<Q")
_VALUE: Final = struct.Struct("16s8s")
_MAP_LINK: Final = "anon_inode:bpf-map"
_RETRY_S: Final = 30.0  # each try to pin forks
_BPF_MAP_TYPE_LRU_HASH: Final = 9  # include/uapi/linux/bpf.h


def open_trace_contexts(path: Path = PINNED_AT) -> int | None:
    """The descriptor of the map that is pinned at ``path``, to be closed by the caller; None when there is none.

    Raises :class:`BpfError` when what is there is no such map, or may not be opened.
    """
    library = load_libbpf()
    if stranger := _stranger(path):
        raise BpfError(
            f"{stranger} is of another user, who could say whose work is whose",
            hint=f"rm -r {path.parent}: everybody may make it in a BPF file system that was mounted with mode 1777",
        )
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


def shared_trace_contexts(path: Path | None, counters: Counter[str]) -> int | None:
    """The same, for programs to read; what hinders is said and counted, and they do without."""
    if path is None:
        return None
    try:
        return open_trace_contexts(path)
    except BpfError as error:
        counters["trace_contexts_unusable"] += 1
        _log.warning("%s", error)
        return None


def _stranger(path: Path) -> Path | None:
    """The map or its folder, if someone else than root and this user made it or may write there."""
    for place in (path.parent, path):
        with suppress(OSError):
            status = os.lstat(place)
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                return place
    return None


def _shape(descriptor: int) -> tuple[int, int, int]:
    """(type, key bytes, value bytes) of a map; zeroes for what is none."""
    fields = _fields(f"/proc/self/fdinfo/{descriptor}")
    kind, key, value = (int(fields.get(name, "0")) for name in ("map_type", "key_size", "value_size"))
    return kind, key, value


def _fields(path: str) -> dict[str, str]:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:  # closed meanwhile
        return {}
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _inode(path: Path) -> tuple[int, int] | None:
    """Of a pin: another one has another."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _number(descriptor: int) -> str:
    """Of a map, among all that the kernel has had."""
    return _fields(f"/proc/self/fdinfo/{descriptor}").get("map_id", "")


def _is_held_by_others(descriptor: int) -> bool:
    """Whether another process has a map open, who puts contexts there or reads them."""
    number = _number(descriptor)
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with suppress(OSError):
                for entry in os.scandir(process / "fd"):
                    info = f"{process}/fdinfo/{entry.name}"
                    if os.readlink(entry.path) == _MAP_LINK and _fields(info).get("map_id", "") == number:
                        return True
    return False


class TraceContextMap:
    """What threads work for, reported to whoever reads the map; the one that is pinned, else one of our own.

    What was put is taken out again by :meth:`close`, which also unpins a map that this object pinned. If this program
    is killed before, that map is unpinned by a guard; one that was left all the same, and that nobody has open, is
    replaced, for what it says is of another time. Who shared it pins it again (:meth:`show`), or goes on with the one
    that somebody else has pinned there by then.
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
        self._reported: OrderedDict[bytes, None] = OrderedDict()  # keys that are ours
        self._guard: Guard | None = None
        self._checked: tuple[int, int] | None = None  # the pin that was found to be our map's
        self._check_at = 0.0
        opened = self._share()
        if opened is None:
            try:
                opened = self._create()
            except BpfError as error:
                opened = self._share() if error.errno == errno.EEXIST else None
                if opened is None:
                    raise
        self._descriptor = opened

    def _share(self) -> int | None:
        """The map of somebody who is still there."""
        opened = open_trace_contexts(self._path)
        if opened is None or _is_held_by_others(opened):
            return opened
        _log.warning("%s is of a program that was killed: it is made anew", self._path)
        self._path.unlink(missing_ok=True)
        os.close(opened)
        return None

    def _create(self) -> int:
        sizes = (_KEY.size, _VALUE.size, MAX_THREADS)
        made = int(self._library.bpf_map_create(_BPF_MAP_TYPE_LRU_HASH, b"traces_ctx_v1", *sizes, None))
        if made < 0:
            raise self._library.error("cannot create the map of trace contexts", made)
        try:
            self._pin(made)
        except BpfError:
            os.close(made)
            raise
        return made

    def _pin(self, made: int) -> None:
        """From here on this program is the one that unpins it."""
        guard = self._guard or Guard(partial(self._unpin, made), needs=(LOADING,), descriptors=(made,))
        try:
            self._path.parent.mkdir(mode=0o755, exist_ok=True)
            if code := self._library.bpf_obj_pin(made, os.fsencode(self._path)):
                raise self._library.error(f"cannot pin a map at {self._path}", code)
            self._path.chmod(0o600)  # as OBI's: whatever the umask says, root's other programs may read it
        except (OSError, BpfError) as error:
            guard.dismiss()
            self._guard = None
            if isinstance(error, BpfError):
                raise
            raise BpfError(
                f"cannot make {self._path.parent}: {error.strerror}",
                errno=error.errno or 0,
                hint="mount the BPF file system: mount -t bpf bpf /sys/fs/bpf",
            ) from error
        self._guard = guard

    def _unpin(self, made: int) -> None:
        """Unless what is pinned there by now is another's."""
        pinned = int(self._library.bpf_obj_get(os.fsencode(self._path)))
        if pinned >= 0:
            if _number(pinned) == _number(made):
                self._path.unlink(missing_ok=True)
            os.close(pinned)

    def put(self, tgid: int, tid: int, trace_id: bytes, span_id: bytes) -> bool:
        """A thread works for a span from now on; False when the kernel did not take it."""
        key = _KEY.pack(tgid << 32 | tid)
        self._reported[key] = None
        self._reported.move_to_end(key)
        if len(self._reported) > MAX_THREADS:
            self._take_out(next(iter(self._reported)))
        return not self._library.bpf_map_update_elem(self._descriptor, key, _VALUE.pack(trace_id, span_id), 0)

    def show(self, contexts: Mapping[tuple[int, int], tuple[bytes, bytes]]) -> None:
        """Put what threads work for, by (tgid, tid) as (trace id, span id), and take out all that is not in it.

        Before that, see to it that it is put where others look for it.
        """
        self._check_pin()
        shown = {_KEY.pack(tgid << 32 | tid) for tgid, tid in contexts}
        for key in [key for key in self._reported if key not in shown]:
            self._take_out(key)
        for (tgid, tid), (trace_id, span_id) in contexts.items():
            self.put(tgid, tid, trace_id, span_id)

    def _check_pin(self) -> None:
        """One system call, as long as nothing has changed."""
        found = _inode(self._path)
        if (found is not None and found == self._checked) or time.monotonic() < self._check_at:
            return
        try:
            if found is None:
                self._pin(self._descriptor)
                _log.info("%s was of a program that has ended: pinned again", self._path)
            elif self._follow():
                self._checked, self._check_at = found, 0.0
        except BpfError as error:
            if error.errno == errno.EEXIST:
                return  # somebody was faster
            if not self._check_at:
                _log.warning("what threads work for is published where nobody finds it: %s", error)
            self._check_at = time.monotonic() + _RETRY_S

    def _follow(self) -> bool:
        """Go on with the map that is pinned; False when there is none any more."""
        opened = open_trace_contexts(self._path)
        if opened is None:
            return False
        if _number(opened) == _number(self._descriptor):
            os.close(opened)
            return True
        _log.info("%s was made anew by another program", self._path)
        self._leave()
        self._descriptor = opened
        return True

    def delete(self, tgid: int, tid: int) -> None:
        """It does no longer; nothing happens if it was never put here."""
        key = _KEY.pack(tgid << 32 | tid)
        if key in self._reported:
            self._take_out(key)

    def _take_out(self, key: bytes) -> None:
        del self._reported[key]
        self._library.bpf_map_delete_elem(self._descriptor, key)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            self._leave()
            self._descriptor = -1

    def _leave(self) -> None:
        while self._reported:
            self._take_out(next(iter(self._reported)))
        if self._guard is not None:
            self._unpin(self._descriptor)
            self._guard.dismiss()
            self._guard = None
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
