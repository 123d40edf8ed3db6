"""The door: what is opened is a regular file, and the one that was meant."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from otelgpu.processes.reader.door import open_below, open_link


def content(path: str | Path, *, root: str | Path = "") -> bytes:
    descriptor = open_below(str(root), str(path)) if root else open_link(str(path))
    with open(descriptor, "rb") as file:
        return file.read(100)


def test_what_runs_and_what_lies_below_its_root_is_opened() -> None:
    program = os.path.realpath("/proc/self/exe")
    assert content("/proc/self/exe") == content(program)
    assert content(program, root=f"/proc/{os.getpid()}/root") == content(program)


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
        content(path)


def test_links_of_a_container_lead_nowhere_else(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").write_bytes(b"its own")
    (root / "library").symlink_to("/etc/passwd")
    (root / "above").symlink_to("../../../../../../../../../../etc/passwd")
    for path in ("/library", "/above"):
        assert content(path, root=root) == b"its own"


def test_magic_links_of_a_container_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "library").symlink_to("proc/self/exe")
    (tmp_path / "proc").symlink_to("/proc")
    with pytest.raises(OSError):
        content("/library", root=tmp_path)


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
                read.append(content(path))
            except OSError:
                refused += 1
    finally:
        stop.set()
        swapping.join()
    assert refused > 0 and set(read) == {b"it"}  # of an opened pipe it would be nothing
