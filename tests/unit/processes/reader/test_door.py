"""The door: what is opened is a regular file, and the one that was meant."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from otelgpu.processes.maps import executable_mappings
from otelgpu.processes.reader.door import FileName, file_at, mapped_file, opened, program_of


def content(name: FileName) -> bytes:
    with opened(name) as (descriptor, _):
        return os.read(descriptor, 100)


def test_a_file_is_opened_by_any_of_its_ways(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"it")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    inode = (tmp_path / "file").stat().st_ino
    assert content(file_at(str(tmp_path / "file"))) == b"it"
    assert content(FileName(links=(str(link),))) == b"it"
    assert content(FileName(links=(str(tmp_path / "none"),), root=str(tmp_path), path="/file")) == b"it"
    assert content(FileName(root="/none", path=str(tmp_path / "file"), inode=inode)) == b"it"


def test_what_is_mapped_and_what_runs_is_opened() -> None:
    mapping = next(each for each in executable_mappings(os.getpid()) if each.is_file)
    with opened(mapped_file(os.getpid(), mapping)) as (_, identity):
        assert identity.inode == mapping.inode
    with opened(program_of(os.getpid())) as (_, identity):
        assert identity.inode == os.stat("/proc/self/exe").st_ino


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "device"])
def test_nothing_else_is_opened_nor_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "socket":
            import socket

            bound = socket.socket(socket.AF_UNIX)
            bound.bind(str(path))
    with pytest.raises(OSError, match="not a regular file"):
        content(file_at(str(path)))


def test_links_of_a_container_lead_nowhere_else(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").write_bytes(b"its own")
    (root / "library").symlink_to("/etc/passwd")
    (root / "above").symlink_to("../../../../../../../../../../etc/passwd")
    for path in ("/library", "/above"):
        assert content(FileName(root=str(root), path=path)) == b"its own"


def test_magic_links_of_a_container_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "library").symlink_to("proc/self/exe")
    (tmp_path / "proc").symlink_to("/proc")
    with pytest.raises(OSError):
        content(FileName(root=str(tmp_path), path="/library"))


def test_another_file_at_the_path_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    inode = path.stat().st_ino
    (tmp_path / "other").write_bytes(b"other")
    os.replace(tmp_path / "other", path)
    with pytest.raises(OSError, match="another file"):
        content(FileName(root="/", path=str(path), inode=inode))


def test_an_identity_changes_with_its_file_and_cannot_be_set(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    with opened(file_at(str(path))) as (_, before):
        pass
    path.write_bytes(b"two")
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns))
    with opened(file_at(str(path))) as (_, after):
        pass
    assert (before.inode, before.size_bytes) == (after.inode, after.size_bytes)
    assert before.changed_ns != after.changed_ns


def test_a_path_that_changes_kind_all_the_time_never_opens_a_pipe(tmp_path: Path) -> None:
    """stat() and open() of a path are two looks; the door has one."""
    path, fifo, file = tmp_path / "path", tmp_path / "fifo", tmp_path / "file"
    os.mkfifo(fifo)
    file.write_bytes(b"it")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for target in (fifo, file):
                os.symlink(target, tmp_path / "next")
                os.replace(tmp_path / "next", path)

    path.symlink_to(file)
    swapping = threading.Thread(target=swap)
    swapping.start()
    read, refused = [], 0
    try:
        for _ in range(3000):
            try:
                read.append(content(file_at(str(path))))
            except OSError:
                refused += 1
    finally:
        stop.set()
        swapping.join()
    assert refused > 0 and set(read) == {b"it"}  # of an opened pipe it would be nothing
