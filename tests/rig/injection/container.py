"""A container of the least kind: other files, other process numbers, nothing that can be written, none of our files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.rig.fakes import build_fakes

_ENTER: Final = """
set -e
root=$1 program=$2 fakes=$3; shift 3
mount -t tmpfs -o mode=755 none "$root"
cd "$root"
mkdir -p proc usr old app ".$fakes"
mount --rbind -o ro /usr usr
ln -s usr/lib lib
ln -s usr/lib64 lib64
mount -t proc none proc
mount --bind "$fakes" ".$fakes"
touch app/busy
mount --bind "$program" app/busy
mount -o remount,ro,noexec none .
pivot_root . old
umount -l old
exec "$@"
"""


def container(
    folder: Path, program: Path, *, user: int = 0, own_users: bool = False
) -> tuple[str | Path, ...]:
    """The beginning of a command that runs ``program`` in one, whose files are mounted on the empty ``folder``.

    ``user``: who it runs as; ``own_users``: as root in a user namespace, where nobody else is known.
    """
    as_user = (
        () if not user else ("/usr/bin/setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--")
    )
    command = ("sh", "-c", _ENTER, "sh", folder, program, build_fakes())
    users = ("--user", "--map-root-user") if own_users else ()
    return ("unshare", *users, "--mount", "--pid", "--fork", "--", *command, *as_user, "/app/busy")


def innermost_child(pid: int) -> int:
    """Of a process that has one child, which may have one: the last of them."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def missing_namespaces(*, own_users: bool = False) -> str:
    """Why there can be none here; "" where there can."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return "needs unshare and setpriv (util-linux)"
    users = ("--user", "--map-root-user") if own_users else ()
    command = ("unshare", *users, "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt")
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=30)
    return f"needs namespaces of mounts, PIDs and users: {done.stderr.strip()}" if done.returncode else ""
