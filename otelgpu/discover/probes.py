"""Which files get probes: every wanted library, once per inode, whoever maps it and whenever.

In: processes, executable mappings as they are made, files that a program will load. Out: probes attached,
and a :class:`Placement` for each file that was looked at and wanted. An inode probe serves every process
that maps the file, so a file is never attached to twice.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otelgpu.discover.elf_files import map_elf, paths_of
from otelgpu.discover.libraries import library_stem
from otelgpu.discover.maps import executable_mappings
from otelgpu.kernel.attach import Hook, attach_hooks
from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.features import filesystem_magic
from otelgpu.kernel.libbpf import Link, detach_all
from otelgpu.layout.elf import ElfError

_log = logging.getLogger("otelgpu.discover")

EXAMINED_FILES: Final = 65_536
_OVERLAYFS_MAGIC: Final = 0x794C7630  # include/uapi/linux/magic.h
_OVERLAY: Final = "overlay"  # stands for every device of an overlayfs


@dataclass(slots=True, kw_only=True)
class Placement:
    """One file with probes on it. Times are CLOCK_MONOTONIC ns."""

    path: str
    stem: str
    symbols: tuple[str, ...]
    refused: tuple[str, ...]  # what the kernel said about probes it did not take
    ready_ns: int
    links: list[Link] = field(repr=False)
    blind_ns: int = 0  # longest time that a process had the file mapped before the probes were there


class ProbePlacer:
    """Examines files and attaches what belongs to them."""

    def __init__(self, hooks: Iterable[Hook], *, with_returns: bool) -> None:
        self._hooks: dict[str, list[Hook]] = {}
        for hook in hooks:
            self._hooks.setdefault(hook.stem, []).append(hook)
        self._with_returns = with_returns
        # By inode number, size and time of change; then by device, which overlayfs stands aside of.
        self._examined: dict[tuple[int, int, int], dict[int | str, Placement | None]] = {}
        self._by_inode: dict[tuple[int, int], Placement] = {}
        self.counters: Counter[str] = Counter()

    @property
    def stems(self) -> frozenset[str]:
        """The library stems that some probe is for."""
        return frozenset(self._hooks)

    @property
    def placements(self) -> list[Placement]:
        """Files that have probes, in the order they were found."""
        return [
            placement
            for found in self._examined.values()
            for placement in found.values()
            if placement is not None
        ]

    def examine_process(self, tgid: int) -> bool:
        """Everything that a running process has mapped, program and libraries; whether any carries probes."""
        found = [self.examine_program(tgid)]
        for mapping in executable_mappings(tgid):
            if library_stem(mapping.path) in self._hooks:
                found.append(self.examine_mapping(tgid, mapping.start, mapping.end, mapping.path, 0))
        return any(placement is not None for placement in found)

    def examine_program(self, tgid: int) -> Placement | None:
        """The program of a process, which may have a library linked into it."""
        try:
            path = os.readlink(f"/proc/{tgid}/exe")
        except OSError:
            self.counters["process_vanished"] += 1
            return None
        return self._examine(f"/proc/{tgid}/exe", path, library_stem(path), mapped_ns=0)

    def examine_mapping(
        self,
        tgid: int,
        start: int,
        end: int,
        path: str,
        mapped_ns: int,
        inode: tuple[int, int] | None = None,
    ) -> Placement | None:
        """An executable mapping; ``mapped_ns`` is when it was made, 0 when long ago.

        ``inode``: (device as the kernel writes it, number) if the kernel told it: a file that has its probes
        is then known without being opened. Its probes hold it, so the number cannot pass to another file.
        Opened through ``/proc/PID/map_files``, which reaches into containers and to deleted files; where
        that is forbidden or the mapping has changed, through ``/proc/PID/root``.
        """
        stem = library_stem(path)
        if stem not in self._hooks:
            return None
        if inode is not None and (placement := self._by_inode.get(inode)) is not None:
            return _mapped(placement, mapped_ns)
        exact = f"/proc/{tgid}/map_files/{start:x}-{end:x}"
        candidates = [(exact, _full_path(exact, path))]
        if not os.access(exact, os.F_OK):
            candidates = [
                (str(candidate), mapping.path)
                for mapping in executable_mappings(tgid)
                if mapping.path == path or os.path.basename(mapping.path) == path
                for candidate in paths_of(tgid, mapping)
            ]
        for candidate, full_path in candidates:
            if os.access(candidate, os.R_OK):
                return self._examine(candidate, full_path, stem, mapped_ns=mapped_ns)
        self.counters["mapping_vanished"] += 1
        return None

    def examine_file(self, path: Path) -> Placement | None:
        """A file that a program is about to load."""
        return self._examine(str(path), str(path), library_stem(str(path)), mapped_ns=0)

    def detach(self) -> None:
        """Take every probe off."""
        detach_all(link for placement in self.placements for link in placement.links)
        for placement in self.placements:
            placement.links.clear()

    def _examine(self, open_path: str, path: str, stem: str | None, *, mapped_ns: int) -> Placement | None:
        try:
            descriptor = os.open(open_path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError) as error:
            self.counters["process_vanished" if open_path.startswith("/proc/") else "file_unreadable"] += 1
            _log.debug("cannot open %s (%s): %s", open_path, path, error)
            return None
        except OSError as error:
            self.counters["file_unreadable"] += 1
            _log.debug("cannot open %s (%s): %s", open_path, path, error)
            return None
        try:
            identity, device = _identity(descriptor)
            if identity not in self._examined and len(self._examined) >= EXAMINED_FILES:
                self._forget_plain_files()
            found = self._examined.setdefault(identity, {})
            known = {device, _OVERLAY} & found.keys() or (found.keys() if device == _OVERLAY else ())
            if not known:
                found[device] = self._place(descriptor, path, stem)
                known = {device}
            placement = found[next(iter(known))]
            if placement is not None:
                self._by_inode[_kernel_inode(descriptor)] = placement
        except OSError as error:
            self.counters["file_unreadable"] += 1
            _log.debug("cannot read %s (%s): %s", open_path, path, error)
            return None
        finally:
            os.close(descriptor)
        return None if placement is None else _mapped(placement, mapped_ns)

    def _forget_plain_files(self) -> None:
        for identity in [i for i, found in self._examined.items() if not any(found.values())]:
            del self._examined[identity]

    def _place(self, descriptor: int, path: str, stem: str | None) -> Placement | None:
        """Attach what the file has symbols for; None when it has none."""
        # A program may have any library linked into it; a library is what its name says.
        wanted = self._hooks.get(stem or "") or [hook for listed in self._hooks.values() for hook in listed]
        symbols = {hook.symbol for hook in wanted}
        try:
            image = map_elf(descriptor)
            offsets = image.function_offsets(symbols)
        except ElfError as error:
            self.counters["file_not_elf"] += 1
            _log.debug("not an ELF file that can be probed: %s: %s", path, error)
            return None
        if not offsets:
            return None
        # The descriptor's own path: right in every mount namespace, and for deleted files.
        # Go moves its stacks, return addresses included: a return probe would crash it.
        links, refused = attach_hooks(
            wanted,
            f"/proc/self/fd/{descriptor}",
            offsets,
            with_returns=self._with_returns and not image.is_go,
        )
        self.counters["probes_refused"] += len(refused)
        for refusal in refused:
            _log.warning("%s: %s", path, refusal)
        return Placement(
            path=path,
            stem=stem or "",
            symbols=tuple(sorted(offsets)),
            refused=tuple(refusal.message for refusal in refused),
            ready_ns=monotonic_ns(),
            links=links,
        )


def _mapped(placement: Placement, mapped_ns: int) -> Placement:
    """Note how long a process had the file before its probes were there."""
    if mapped_ns and mapped_ns < placement.ready_ns:
        placement.blind_ns = max(placement.blind_ns, placement.ready_ns - mapped_ns)
    return placement


def _full_path(link: str, path: str) -> str:
    """The whole path behind a ``map_files`` link, of which an event told only the last component."""
    try:
        return os.readlink(link).removesuffix(" (deleted)")
    except OSError:
        return path


def _kernel_inode(descriptor: int) -> tuple[int, int]:
    """(device, inode) as process.bpf.c reads them: MKDEV of include/linux/kdev_t.h."""
    status = os.fstat(descriptor)
    return (os.major(status.st_dev) << 20 | os.minor(status.st_dev), status.st_ino)


def _identity(descriptor: int) -> tuple[tuple[int, int, int], int | str]:
    """What makes two open files the same inode to a uprobe: (inode number, size, time of change) and device.

    On overlayfs the device differs from container to container, and from the file system below, while the
    probe goes to the one file below: there the other three stand for it.
    """
    status = os.fstat(descriptor)
    device = _OVERLAY if filesystem_magic(descriptor) == _OVERLAYFS_MAGIC else status.st_dev
    return (status.st_ino, status.st_size, status.st_mtime_ns), device
