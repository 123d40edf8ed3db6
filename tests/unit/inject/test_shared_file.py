"""A descriptor that a container is given of our file: it can be read, and never be written by."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otelgpu.kernel.shared_file import open_unwritable

WRITES = """
import ctypes, os, sys
number = int(sys.argv[1])
assert os.pread(number, 7, 0) == b"library"
tried = {
    "open": lambda: os.open(f"/proc/self/fd/{number}", os.O_WRONLY),
    "truncate": lambda: os.truncate(f"/proc/self/fd/{number}", 0),
    "chmod": lambda: os.fchmod(number, 0o777),
    "link": lambda: os.link(f"/proc/self/fd/{number}", sys.argv[2] + ".new", follow_symlinks=True),
    "mount_setattr": lambda: clear_read_only(),
}
def clear_read_only():
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
    if libc.syscall(442, number, b"", 0x1000, attributes, 32) < 0:
        raise OSError(ctypes.get_errno(), "mount_setattr")
for name, attempt in tried.items():
    try:
        attempt()
        print(name)
    except OSError:
        pass
"""


def test_root_with_the_descriptor_cannot_write_the_file(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"library")
    try:
        descriptor = open_unwritable(library)
    except PermissionError:
        pytest.skip("needs CAP_SYS_ADMIN")
    command = (sys.executable, "-c", WRITES, str(descriptor), str(library))
    done = subprocess.run(command, pass_fds=(descriptor,), stdout=subprocess.PIPE, text=True, check=True)
    os.close(descriptor)
    assert done.stdout == ""
    assert library.read_bytes() == b"library" and library.stat().st_nlink == 1
    library.write_bytes(b"another")  # we can, by its own path


def test_without_the_right_to_mount_there_is_none(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"library")
    opening = (
        "import sys\nfrom pathlib import Path\nfrom otelgpu.kernel.shared_file import open_unwritable\n"
        "try:\n    open_unwritable(Path(sys.argv[1]))\nexcept OSError as error:\n    print(error.errno)"
    )
    without = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin") if not os.geteuid() else ()
    command = (*without, sys.executable, "-c", opening, str(library))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == str(errno.EPERM)
