"""What ``/proc`` says of a process that has connected, against which its own word is held."""

from __future__ import annotations

import os
from pathlib import Path


def _status(path: str) -> dict[str, str]:
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return {}
    return dict(line.partition(":\t")[::2] for line in text.splitlines())


def is_namespaced(tgid: int) -> bool:
    """Whether the process calls itself by other numbers than we do."""
    return len(_status(f"/proc/{tgid}/status").get("NSpid", "").split()) > 1


def own_thread(tgid: int, tid: int) -> int:
    """``tid``, unless it is a thread of another process; it may have ended since."""
    owner = _status(f"/proc/{tid}/status").get("Tgid")
    return tid if owner in (None, str(tgid)) else 0


def namespaced_thread(tgid: int, said: int) -> int:
    """Our number of the thread that calls itself ``said``; 0 when it has ended."""
    try:
        threads = os.listdir(f"/proc/{tgid}/task")
    except OSError:
        return 0
    for thread in threads:
        if _status(f"/proc/{tgid}/task/{thread}/status").get("NSpid", "").split()[-1:] == [str(said)]:
            return int(thread)
    return 0


def cgroup_id(tgid: int) -> int:
    """As the kernel numbers cgroups (v2): the inode of the directory. 0 when it cannot be reported."""
    try:
        lines = Path(f"/proc/{tgid}/cgroup").read_text().splitlines()
        path = next((line[3:] for line in lines if line.startswith("0::")), None)
        return os.stat(f"/sys/fs/cgroup{path}").st_ino if path is not None else 0
    except OSError:
        return 0
