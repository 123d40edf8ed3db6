"""A /proc of made-up processes, in one line each."""

from __future__ import annotations

from pathlib import Path


def add_process(
    proc: Path,
    tgid: int,
    *,
    ppid: int = 1,
    comm: str = "python3",
    start_ticks: int = 500,
    cmdline: bytes = b"python3\0/srv/app.py\0",
    exe: str = "/usr/bin/python3.11",
    cgroup: str = "0::/\n",
    environ: bytes = b"",
    nspid: str = "",
    seccomp: int = 0,
) -> None:
    folder = proc / str(tgid)
    folder.mkdir(parents=True)
    fields = ["S", str(ppid), *["0"] * 17, str(start_ticks), *["0"] * 30]
    (folder / "stat").write_text(f"{tgid} ({comm}) {' '.join(fields)}\n")
    (folder / "status").write_text(
        f"Name:\t{comm}\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t{nspid or tgid}\nSeccomp:\t{seccomp}\n"
    )
    (folder / "cmdline").write_bytes(cmdline)
    (folder / "environ").write_bytes(environ)
    (folder / "cgroup").write_text(cgroup)
    if exe:
        (folder / "exe").symlink_to(exe)
