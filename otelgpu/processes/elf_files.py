"""Opens ELF files that others name, by path or as a process has them mapped.

In: paths, mappings. Out: :class:`ElfFile`, an image over an mmap together with the identity of its file.
Must not block on a FIFO, start a device, or trust that a path still names the file that was mapped.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.kernel.cut_files import survive_cut_files
from otelgpu.kernel.statx import cached_status
from otelgpu.processes.maps import Mapping
from otelgpu.processes.mounts import UntrustedMount
from otelgpu.processes.reader.door import NotRegular, open_below, open_link

Identity = tuple[int, int]
"""(st_dev, st_ino): one file on this host, for as long as something holds it open."""

NOT_KNOWN: Identity = (0, 0)
"""No file's."""

_BUILD_ID = re.compile(r"(?:[0-9a-f]{2}){8,64}")
_IN_ROOT = re.compile(r"(.*?/\d+/root)(/.+)", re.DOTALL)
"""A path as a process sees it: where its root folder is, and what is below."""


class ElfFile(Struct, frozen=True, kw_only=True):
    """An open ELF file: one file descriptor until :meth:`close`, one mapping for as long as ``image`` lives."""

    image: ElfImage
    identity: Identity
    descriptor: int
    size_bytes: int
    modified_ns: int

    def unchanged(self) -> bool:
        """Whether the file is still what was opened: the same size and time of last change.

        Ask before each look-up in ``image``: behind the end of a file that was cut off in place are zeros.
        """
        status = os.fstat(self.descriptor)
        return (status.st_size, status.st_mtime_ns) == (self.size_bytes, self.modified_ns)

    def forget_pages(self) -> None:
        """Give back the memory of what was read; it is read again when it is wanted again."""
        mapped = self.image.buffer.obj
        if isinstance(mapped, mmap.mmap):
            mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Let the descriptor go; call once."""
        os.close(self.descriptor)

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_elf(path: Path | str, *, symbols_only: bool = False) -> ElfFile:
    """Open and map the ELF file at ``path``; with ``symbols_only`` one of debugging symbols.

    Raises OSError when it cannot be opened, :class:`ElfError` when it is no regular file or no ELF image
    that this program reads.
    """
    try:
        descriptor = open_regular(path)
    except NotRegular as error:
        raise ElfError(f"{path} is not a regular file") from error
    try:
        status = os.fstat(descriptor)
        if not status.st_size:
            raise ElfError(f"{path} is empty")
        return ElfFile(
            image=map_elf(descriptor, symbols_only=symbols_only),
            identity=(status.st_dev, status.st_ino),
            descriptor=descriptor,
            size_bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
        )
    except BaseException:
        os.close(descriptor)
        raise


def open_regular(path: Path | str) -> int:
    """A descriptor for reading of a regular file that others name. Nothing else is opened, not for a moment.

    What lies below a process's root folder (``/proc/7/root/lib/x.so``) is looked up as the process would: no link leads
    out of there. Raises OSError: :class:`~otelgpu.processes.reader.door.NotRegular` for what is no regular file,
    :class:`~otelgpu.processes.mounts.UntrustedMount` for what its process may serve itself.
    """
    inside = _IN_ROOT.fullmatch(str(path))
    return open_below(inside[1], inside[2]) if inside else open_link(str(path))


def map_elf(descriptor: int, *, symbols_only: bool = False) -> ElfImage:
    """The image of an open regular file; the mapping lives as long as the image, the descriptor need not.

    Not closed by a ``with`` on purpose: arrays over a mapping that is closed under them raise BufferError.
    Raises OSError when it cannot be mapped, :class:`ElfError` when it is empty or no image.
    """
    survive_cut_files()
    try:
        mapped = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    except ValueError as error:  # an empty file
        raise ElfError("not an ELF file: it is empty") from error
    return ElfImage(mapped, symbols_only=symbols_only)


def find_symbols(build_id: str, roots: Iterable[Path]) -> ElfImage | None:
    """The debugging symbols of the file with that build id, if a distribution's package brought them.

    Looked for below each of ``roots``, as gdb does (its manual, "Debugging Information in Separate Files").
    What is there but is of another build, or no image, does not count.
    """
    if not _BUILD_ID.fullmatch(build_id):
        return None
    for root in roots:
        path = f"{root}/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        try:
            with open_elf(path, symbols_only=True) as file:
                if file.image.build_id == build_id:
                    return file.image
        except (OSError, ElfError):
            continue
    return None


def paths_of(pid: int, mapping: Mapping, *, proc: Path = Path("/proc")) -> list[Path]:
    """Where the file behind ``mapping`` can be opened from outside the process, best first.

    ``map_files`` names the very file, also a deleted or over-mounted one, but wants CAP_SYS_ADMIN or
    CAP_CHECKPOINT_RESTORE (Linux 5.9). The path below ``root`` goes through the process' mount namespace;
    the plain path is what is left when the process has ended.
    """
    paths = [proc / str(pid) / "map_files" / f"{mapping.start:x}-{mapping.end:x}"]
    if not mapping.deleted:
        paths += [Path(f"{proc}/{pid}/root{mapping.path}"), Path(mapping.path)]
    return paths


def identity_of(pid: int, mapping: Mapping, *, proc: Path = Path("/proc")) -> Identity:
    """Of the very file that a living process has mapped; NOT_KNOWN when it cannot be reported without opening it."""
    try:
        status = cached_status(f"{proc}/{pid}/map_files/{mapping.start:x}-{mapping.end:x}")
    except OSError:
        return NOT_KNOWN
    return (status.device, status.inode)


def open_mapping(pid: int, mapping: Mapping, *, proc: Path = Path("/proc")) -> ElfFile:
    """Open the file that process ``pid`` has mapped, or had when ``mapping`` was read.

    Raises OSError (ESTALE: another file has taken its path) or :class:`ElfError`, of the last way tried.
    """
    exact, *others = paths_of(pid, mapping, proc=proc)
    try:
        return open_elf(exact)
    except UntrustedMount:
        raise
    except OSError as error:
        failure = error
    for path in others:
        try:
            file = open_elf(path)
        except OSError as error:
            failure = error
            continue
        if file.identity[1] == mapping.inode:
            return file
        file.close()
        failure = OSError(errno.ESTALE, "another file has taken the path of the mapped one", str(path))
    raise failure
