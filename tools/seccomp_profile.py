"""Make and check ``deploy/seccomp.json``: ``python -m tools.seccomp_profile``.

The file is in the format of container runtimes (Docker, containerd, CRI-O): what is not listed fails with EPERM. JSON
has no comments, so the list and its reasons are here. It began with what ``--record`` saw on x86-64 of `agent`,
`record`, `check` and `top` with every source, destination and setting that opens something; beside that it has what
other versions of glibc call for the same thing. To redo it, or to look at a new feature:

    python -m tools.seccomp_profile --record -- .venv/bin/otelgpu agent --duration 20     # needs strace
    python -m tools.seccomp_profile                                                       # writes the file

``--record`` prints what the session called that the profile does not allow, and ends with 1 if there is any. The
programs that `run` starts are under the same filter: it is for agents.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import click

PROFILE: Final = Path(__file__).resolve().parents[1] / "deploy" / "seccomp.json"
_CALL: Final = re.compile(r"^\d+ +([a-z_]\w*)\(", re.MULTILINE)
_EPERM, _ENOSYS = 1, 38
_NAMESPACES: Final = 0x7E020000  # CLONE_NEW*, include/uapi/linux/sched.h
_FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}

ALLOWED: Final[dict[str, str]] = {
    "what is observed": """bpf perf_event_open ioctl epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
        eventfd2 pidfd_open pidfd_send_signal""",
    "processes that are held; giving up privileges": "kill tgkill prctl capget capset seccomp",
    "files": """open openat openat2 close close_range read pread64 readv preadv write writev pwrite64 pwritev lseek
        stat lstat fstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat getdents64
        getcwd chdir mkdir mkdirat unlink unlinkat rmdir rename renameat renameat2 chmod fchmod fchmodat chown fchown
        fchownat ftruncate fsync fdatasync fcntl flock umask dup dup2 dup3 pipe pipe2 memfd_create fadvise64 utimensat
        inotify_init1 inotify_add_watch inotify_rm_watch""",
    "sockets: destinations, health, RDMA netlink, source inject": """socketpair connect bind listen accept accept4
        getsockname getpeername getsockopt setsockopt sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg shutdown poll
        ppoll select pselect6""",
    "memory": "brk mmap mremap munmap mprotect madvise mincore mbind set_mempolicy get_mempolicy membarrier",
    "threads and children": """exit exit_group futex futex_waitv set_robust_list get_robust_list set_tid_address rseq
        fork vfork wait4 waitid setsid getpgrp getpgid sched_yield sched_getaffinity sched_setaffinity
        sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min arch_prctl""",
    "signals": """rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait sigaltstack restart_syscall
        pause""",
    "time": "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getitimer setitimer",
    "facts": """getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups uname sysinfo
        getrusage getrlimit setrlimit prlimit64 getpriority setpriority getrandom""",
    "a container's runtime: the program itself, under its user": "execve setuid setgid setgroups setresuid setresgid",
    "return probes, which are system calls of the kernel's own": "uretprobe uprobe",
}
"""Why → names. ``socket``, ``clone`` and ``clone3`` are allowed in part: see :func:`profile`."""


def profile() -> dict[str, Any]:
    """The document."""
    names = sorted({name for listed in ALLOWED.values() for name in listed.split()})
    clone = {"index": 0, "value": _NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    families = [
        {
            "names": ["socket"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": n, "op": "SCMP_CMP_EQ"}],
        }
        for n in _FAMILIES.values()
    ]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _EPERM,
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [
            {"names": names, "action": "SCMP_ACT_ALLOW"},
            *families,
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [clone]},
            # Its arguments are in memory, where no filter can look: glibc takes clone instead.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        ],
    }


def text() -> str:
    """As it stands in the file."""
    return json.dumps(profile(), indent=1) + "\n"


def known(document: dict[str, Any]) -> set[str]:
    """Every system call that a profile has something to say of."""
    return {name for rule in document["syscalls"] for name in rule["names"]}


def calls_of(command: tuple[str, ...]) -> set[str]:
    """The system calls of a command, its threads and its children, by strace."""
    strace = shutil.which("strace")
    if strace is None:
        raise click.ClickException("strace is missing (Debian: apt-get install strace)")
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as log:
        subprocess.run([strace, "-f", "-qq", "-o", log.name, *command], check=False)
        return set(_CALL.findall(log.read()))


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--record", is_flag=True, help="Run a command and say what it calls that is not allowed.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if the file is stale.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(record: bool, check: bool, command: tuple[str, ...]) -> None:
    """Make deploy/seccomp.json, or look at a command through it."""
    if record:
        missing = {name for name in calls_of(command) - known(profile()) if not name.startswith("syscall_")}
        click.echo(
            f"not allowed: {', '.join(sorted(missing))}" if missing else "all that it called is allowed"
        )
        sys.exit(bool(missing))
    if check:
        sys.exit(PROFILE.read_text() != text())
    PROFILE.write_text(text())


if __name__ == "__main__":
    main()
