"""Whose file systems are asked: those that somebody with privileges here mounted, and such as nobody serves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.kernel.statx import Status, cached_status
from otelgpu.processes import mounts
from otelgpu.processes.mounts import UntrustedMount, kind_in, may_be_asked, open_root
from otelgpu.processes.reader.door import open_below, open_link

#: A process with a user and mount namespace of its own: a tmpfs, below it an overlayfs, of which it holds files open.
SCRIPT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
user, group = os.getuid(), os.getgid()
def must(failed):
    if failed:
        raise OSError(ctypes.get_errno(), "no namespaces")
must(libc.unshare(0x10020000))
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {user} 1")
open("/proc/self/gid_map", "w").write(f"0 {group} 1")
must(libc.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, b""))
for name in ("below", "empty", "above"):
    os.mkdir("/mnt/" + name)
open("/mnt/below/file", "w").write("of nobody's")
must(libc.mount(b"overlay", b"/mnt/above", b"overlay", 0, b"lowerdir=/mnt/below:/mnt/empty"))
of_memory = os.memfd_create("it")
print(os.open("/mnt/below/file", os.O_RDONLY), os.open("/mnt/above/file", os.O_RDONLY), of_memory, flush=True)
sys.stdin.read()
"""
MOUNTS = b"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,noatime shared:1 master:2 - ext4 /dev/root rw
127 27 0:44 / /mnt/a\\040-\\040b rw - overlay overlay rw,lowerdir=/a
"""


@pytest.fixture
def tenant() -> Iterator[tuple[int, list[int]]]:
    """The number of such a process, and of the files that it has open: on tmpfs, on overlayfs, in memory."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline()
        if not said:
            pytest.skip(f"no user namespaces: {process.stderr.read()[-200:]}")
        yield process.pid, [int(each) for each in said.split()]
        process.communicate()


def test_what_is_known_of_a_file_is_what_stat_says(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"it")
    for path in (tmp_path / "file", Path("/proc/self/exe"), Path("/dev/shm")):
        said = path.stat()
        known = cached_status(str(path))
        assert (known.mode, known.inode, known.size_bytes, known.device) == (
            *(said.st_mode, said.st_ino, said.st_size, said.st_dev),
        )
        assert (known.changed_ns, known.modified_ns) == (said.st_ctime_ns, said.st_mtime_ns)
    with (tmp_path / "file").open() as file:
        numbered = re.search(r"mnt_id:\s*(\d+)", Path(f"/proc/self/fdinfo/{file.fileno()}").read_text())
        assert numbered is not None
        assert cached_status(file.fileno()).mount == int(numbered[1])
    with pytest.raises(FileNotFoundError):
        cached_status(str(tmp_path / "none"))


@pytest.mark.parametrize(("mount", "kind"), [(22, "proc"), (27, "ext4"), (127, "overlay"), (2, ""), (0, "")])
def test_mounts_are_found_by_their_numbers(mount: int, kind: str) -> None:
    assert kind_in(MOUNTS.splitlines(keepends=True), mount) == kind


def test_no_more_than_some_mebibytes_of_mounts_are_read() -> None:
    assert kind_in([MOUNTS] * (1 << 16) + [b"7 1 0:1 / / rw - tmpfs tmpfs rw\n"], 7) == ""


def test_what_a_process_mounted_itself_is_not_asked_unless_nobody_serves_it(
    tenant: tuple[int, list[int]],
) -> None:
    pid, (of_nobody, of_somebody, of_memory) = tenant
    for descriptor, asked in ((of_nobody, True), (of_memory, True), (of_somebody, False)):
        link = f"/proc/{pid}/fd/{descriptor}"
        status = cached_status(link)
        assert status.major == 0
        assert may_be_asked(status, pid) == asked
        if asked:
            os.close(open_link(link))
        else:
            with pytest.raises(UntrustedMount):
                open_link(link)


def test_nor_is_a_path_below_its_root(tenant: tuple[int, list[int]]) -> None:
    pid, _ = tenant
    with pytest.raises(UntrustedMount):
        open_root(pid)
    for path in ("/mnt/above/file", "/etc/passwd", "/mnt/none"):
        with pytest.raises(UntrustedMount):
            open_below(f"/proc/{pid}/root", path)


def test_a_child_that_has_it_from_such_a_process_is_no_better(tenant: tuple[int, list[int]]) -> None:
    """It is in our namespaces, and the file is not."""
    pid, (_, of_somebody, _) = tenant
    theirs = os.open(f"/proc/{pid}/fd/{of_somebody}", os.O_PATH)
    try:
        with pytest.raises(UntrustedMount):
            open_link(f"/proc/{os.getpid()}/fd/{theirs}")
    finally:
        os.close(theirs)


def test_of_our_own_namespaces_everything_is(tmp_path: Path) -> None:
    os.close(open_root(os.getpid()))
    for path in ("/dev/shm", "/proc/self/exe", str(tmp_path)):
        assert may_be_asked(cached_status(path), os.getpid())
    unknown = Status(0o100644, 1, 1, 0, 0, 0, 1 << 19, 1 << 30)
    assert not may_be_asked(unknown, os.getpid())
    assert may_be_asked(unknown, 0)


def test_who_trusts_them_asks_all(tenant: tuple[int, list[int]]) -> None:
    pid, (_, of_somebody, _) = tenant
    mounts.trust_all(True)
    try:
        os.close(open_link(f"/proc/{pid}/fd/{of_somebody}"))
        os.close(open_root(pid))
    finally:
        mounts.trust_all(False)
    with pytest.raises(UntrustedMount):
        open_link(f"/proc/{pid}/fd/{of_somebody}")


def test_a_process_that_is_gone_is_an_error() -> None:
    with pytest.raises(OSError):
        open_root(1 << 30)
