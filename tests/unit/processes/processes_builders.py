"""Made-up processes: in a /proc, and as facts."""

from __future__ import annotations

from pathlib import Path

from otelgpu.processes.listing import ProcessFacts

CONTAINER = "0123456789abcdef" * 4
POD = "1d7c1c64-9c1f-4d3a-8f6e-0a1b2c3d4e5f"


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
    mountinfo: str = "",
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
    (folder / "mountinfo").write_text(mountinfo)
    if exe:
        (folder / "exe").symlink_to(exe)


def facts(**changes: object) -> ProcessFacts:
    values: dict[str, object] = {
        **{"tgid": 42, "ns_pids": (42, 1), "ppid": 1, "start_time_ns": 5_000_000_000, "comm": "python3"},
        **{
            "command": ("python3", "/srv/app.py"),
            "executable": "/usr/bin/python3.11",
            "uid": 0,
            "seccomp": 0,
        },
        **{
            "cgroup_path": "/",
            "container_id": "",
            "pod_uid": "",
            "service_name": "",
            "resource_attributes": "",
        },
    }
    return ProcessFacts(**(values | changes))  # type: ignore[arg-type]
