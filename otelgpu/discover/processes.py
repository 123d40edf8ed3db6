"""Who runs on this host: processes, their containers, and the resource that describes each.

In: ``/proc``. Out: :class:`ProcessFacts`, and from those a :class:`~otelgpu.model.resource.Resource`.
Of a process' environment exactly two variables are looked at, OTEL_SERVICE_NAME and
OTEL_RESOURCE_ATTRIBUTES; of its arguments none is exported. Both can hold secrets.

Sources: proc_pid_stat(5), proc_pid_status(5), cgroups(7); OpenTelemetry semantic conventions 1.44
(process, container, service) and the SDK specification "General SDK Configuration".
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from otelgpu.discover.elf_files import open_elf
from otelgpu.layout.elf import ElfError
from otelgpu.model.resource import GO, AttributeValue, Resource, resource

_PROC: Final = Path("/proc")
MAX_ARGUMENTS_BYTES: Final = 4096
_MAX_ENVIRON_BYTES: Final = 4 << 20
_MAX_FILE_BYTES: Final = 1 << 20
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_INSTANCES: Final = uuid.UUID("5b2f6d0c-94a7-4b3e-8a6e-3f1f0c1d7e52")  # namespace of service.instance.id

# Docker, containerd, CRI-O, Podman and Kubernetes, cgroup v1 and v2, cgroupfs and systemd drivers: 64 hex
# digits, with or without "docker-", "cri-containerd-", "crio-", "libpod-" and ".scope". AWS Fargate: 32
# and a number. Not the monitor process of a container ("libpod-conmon-…", "crio-conmon-…").
_CONTAINER: Final = re.compile(
    r"(?:(?!.*conmon)[a-z][a-z-]*[-:]|[^/]*:)?([0-9a-f]{64}|[0-9a-f]{32}-[0-9]{8,10})(?:\.scope)?"
)
_POD: Final = re.compile(r"(?:.*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?")

# (name of the executable, process.runtime.name). Other interpreters run scripts too, but have no runtime name.
_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*(?:t|d|-dbg)?|python3?-config")
_INTERPRETERS: Final = re.compile(r"(?:ba|da|z|k|a)?sh|perl[0-9.]*|ruby[0-9.]*|node|busybox|php[0-9.]*")
# Options of python that take the next word as their value.
_PYTHON_VALUED: Final = {"-W", "-X", "--check-hash-based-pycs"}
_RUNTIME: Final = {"python": "cpython", "pypy": "pypy"}
# What the agent itself knows better than the process' OTEL_RESOURCE_ATTRIBUTES or process context.
_OURS: Final = ("telemetry.", "process.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """A process at one moment. Unreadable parts are empty.

    ``ns_pids``: its process ids from the outermost PID namespace (``tgid``) to its own. ``start_time_ns``:
    CLOCK_BOOTTIME, as coarse as the kernel's ticks (10 ms); with ``tgid`` it names a process for good.
    ``command``: its arguments, at most MAX_ARGUMENTS_BYTES of them; never export more than the first.
    ``seccomp``: 0 none, 1 strict, 2 filter. ``cgroup_path``: in the v2 hierarchy, "" without one.
    ``container_id`` and ``pod_uid`` are "" outside of containers. ``service_name`` and
    ``resource_attributes`` are the two variables of the environment, verbatim. ``is_go``: its program was built by the
    Go toolchain.
    """

    tgid: int
    ns_pids: tuple[int, ...]
    ppid: int
    start_time_ns: int
    comm: str
    command: tuple[str, ...]
    executable: str
    uid: int
    seccomp: int
    cgroup_path: str
    container_id: str
    pod_uid: str
    service_name: str
    resource_attributes: str
    is_go: bool = False


def list_processes(*, proc: Path = _PROC) -> list[int]:
    """The tgids of all processes that this PID namespace shows, ascending."""
    try:
        return sorted(int(entry.name) for entry in os.scandir(proc) if entry.name.isdecimal())
    except OSError:
        return []


def descendants(tgid: int, *, proc: Path = _PROC) -> list[int]:
    """Children, their children and so on, without ``tgid`` itself; parents come before their children.

    What was started by a process that has ended since belongs to its reaper and is not found.
    """
    children: dict[int, list[int]] = {}
    for process in list_processes(proc=proc):
        status = _stat(process, proc)
        if status is not None:
            children.setdefault(status.ppid, []).append(process)
    found: list[int] = []
    seen = {tgid}
    level = [tgid]
    while level:
        level = [child for parent in level for child in children.get(parent, ()) if child not in seen]
        seen.update(level)
        found += level
    return found


def describe(tgid: int, *, proc: Path = _PROC) -> ProcessFacts | None:
    """What ``/proc`` tells of a process, or None when it is gone. Never raises for what it may not read."""
    before = _stat(tgid, proc)
    if before is None:
        return None
    folder = proc / str(tgid)
    status = _status_fields(_read(folder / "status"))
    container_id, pod_uid, cgroup_path = parse_cgroup(_text(_read(folder / "cgroup")))
    command = _read(folder / "cmdline", MAX_ARGUMENTS_BYTES)
    environ = _environ(_read(folder / "environ", _MAX_ENVIRON_BYTES))
    try:
        executable = str((folder / "exe").readlink()).removesuffix(" (deleted)")
    except OSError:  # a kernel thread, a zombie, or another user's
        executable = ""
    after = _stat(tgid, proc)
    if after is None or after.start_ticks != before.start_ticks:
        return None  # ended, and perhaps its id was given to another while it was read
    return ProcessFacts(
        tgid=tgid,
        ns_pids=_numbers(status.get("NSpid", "")) or (tgid,),
        ppid=before.ppid,
        start_time_ns=before.start_ticks * _TICK_NS,
        comm=before.comm,
        command=tuple(_text(part) for part in command.removesuffix(b"\0").split(b"\0")) if command else (),
        executable=executable,
        uid=next(iter(_numbers(status.get("Uid", ""))), -1),
        seccomp=next(iter(_numbers(status.get("Seccomp", ""))), 0),
        cgroup_path=cgroup_path,
        container_id=container_id,
        pod_uid=pod_uid,
        service_name=environ.get("OTEL_SERVICE_NAME", ""),
        resource_attributes=environ.get("OTEL_RESOURCE_ATTRIBUTES", ""),
        is_go=_is_go(folder / "exe"),
    )


def _is_go(program: Path) -> bool:
    try:
        with open_elf(program) as file:
            return file.image.is_go
    except (OSError, ElfError):
        return False


def process_resource(
    facts: ProcessFacts,
    base: Mapping[str, AttributeValue],
    published: Mapping[str, AttributeValue] = MappingProxyType({}),
) -> Resource:
    """The resource of a process' telemetry.

    ``base`` holds what is the same for all: ``host.name``, ``telemetry.*`` and what the user set for the
    agent. ``published`` is what the process has said of itself in its process context (process_context.py).
    In rising precedence: the guessed ``service.name``; ``published``; ``base``; the process' environment, in
    OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME; ``process.*`` as observed, and ``telemetry.*`` of base.

    ``service.instance.id`` is the same for as long as the process lives, whichever agent looks at it on
    this boot of this host, given that ``base`` has a ``host.id`` or ``host.name``; but a process that
    publishes one has that, as its own telemetry does.
    """
    observed: dict[str, AttributeValue] = {"process.pid": facts.tgid}
    if facts.executable:
        observed["process.executable.path"] = facts.executable
    name = _executable_name(facts)
    observed["process.executable.name"] = name
    if command := _program_word(facts):
        observed["process.command"] = command
    if found := _PYTHON.fullmatch(name):
        observed["process.runtime.name"] = _RUNTIME.get(found.group(1), "cpython")
    elif facts.is_go:
        observed["process.runtime.name"] = GO

    host = str(base.get("host.id") or base.get("host.name") or "")
    identity = f"{host}/{facts.tgid}/{facts.start_time_ns}/{facts.container_id}"
    attributes: dict[str, AttributeValue] = {
        "service.name": guess_service_name(facts),
        "service.instance.id": str(uuid.uuid5(_INSTANCES, identity)),
    }
    if facts.container_id:
        attributes["container.id"] = facts.container_id
    if facts.pod_uid:
        attributes["k8s.pod.uid"] = facts.pod_uid
    attributes |= {key: value for key, value in published.items() if not key.startswith(_OURS)}
    attributes |= base
    own = parse_resource_attributes(facts.resource_attributes)
    attributes |= {key: value for key, value in own.items() if not key.startswith(_OURS)}
    if facts.service_name:
        attributes["service.name"] = facts.service_name
    return resource(attributes | observed)


def guess_service_name(facts: ProcessFacts) -> str:
    """What people call this program: the script or module that an interpreter runs, else the executable.

    ``python -m vllm.entrypoints.openai.api_server`` → ``vllm``; ``python /srv/app.py`` → ``app``;
    ``/usr/bin/python3 /usr/local/bin/gunicorn app:app`` → ``gunicorn``.
    """
    executable = _executable_name(facts)
    is_python = _PYTHON.fullmatch(executable) is not None
    if not is_python and not _INTERPRETERS.fullmatch(executable):
        return executable
    command = facts.command
    if not command:
        return executable
    invoked = command[0].rpartition("/")[2].removeprefix("-")
    if invoked != executable and not _PYTHON.fullmatch(invoked) and not _INTERPRETERS.fullmatch(invoked):
        # A title that the program gave itself ("gunicorn: master [app:app]"), or argv[0] of its own.
        return invoked.split()[0].partition(":")[0] if invoked.split() else executable
    words = iter(command[1:])
    for word in words:
        if is_python and word == "-m":
            return next(words, "").partition(".")[0] or executable
        if is_python and word.startswith("-m") and len(word) > 2:
            return word[2:].partition(".")[0]
        if word in ("-c", "-e", "-", "--command"):
            return executable
        if is_python and word in _PYTHON_VALUED:
            next(words, None)
        elif not word.startswith("-") and word:
            return _script_name(word) or executable
    return executable


def _script_name(path: str) -> str:
    """``/srv/app.py`` → ``app``; the folder's name for ``__main__.py``."""
    folder, _, name = path.rstrip("/").rpartition("/")
    stem = re.sub(r"\.(?:py[cw]?|pex|pyz|sh|pl|rb|[cm]?js|php)$", "", name)
    return folder.rpartition("/")[2] or stem if stem == "__main__" else stem


def _executable_name(facts: ProcessFacts) -> str:
    return facts.executable.rpartition("/")[2] or facts.comm or "unknown_service"


def _program_word(facts: ProcessFacts) -> str:
    """``process.command``: argv[0], without what a program may have written behind it as its title."""
    first = facts.command[0] if facts.command else ""
    if first == facts.executable:
        return first
    return first.split(maxsplit=1)[0].removesuffix(":")[:255] if first.strip() else ""


def parse_resource_attributes(text: str) -> dict[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES: ``key=value,…``, percent-encoded. A text with any error counts as empty.

    Source: OpenTelemetry specification, "Resource SDK", section "Specifying resource information via an
    environment variable".
    """
    attributes = {}
    for item in text.split(","):
        if not item.strip():
            continue
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            return {}
        try:
            attributes[key.strip()] = unquote(value.strip(), errors="strict")
        except UnicodeDecodeError:
            return {}
    return attributes


def parse_cgroup(text: str) -> tuple[str, str, str]:
    """(container id, pod uid, path in the v2 hierarchy) from a ``/proc/PID/cgroup``; "" for what is not there.

    The innermost container counts. Inside a cgroup namespace the path is relative to the reader's.
    """
    container_id = pod_uid = unified = ""
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        path = rest.partition(":")[2]
        if hierarchy == "0":
            unified = path
        for part in reversed(path.split("/")):
            if not container_id and (found := _CONTAINER.fullmatch(part)):
                container_id = found.group(1)
            # containerd's v1 path under systemd: "kubepods-besteffort-pod<uid>.slice:cri-containerd:<id>"
            elif not pod_uid and (found := _POD.fullmatch(part.partition(":")[0])):
                pod_uid = found.group(1).replace("_", "-")
            if not pod_uid and ":" in part and (found := _POD.fullmatch(part.partition(":")[0])):
                pod_uid = found.group(1).replace("_", "-")
    return container_id, pod_uid, unified


@dataclass(frozen=True, slots=True)
class _Stat:
    comm: str
    ppid: int
    start_ticks: int


def _stat(tgid: int, proc: Path) -> _Stat | None:
    """The name may hold spaces and brackets: the fields begin behind the last one."""
    head, _, tail = _read(proc / str(tgid) / "stat", 4096).rpartition(b")")
    fields = tail.split()
    try:
        return _Stat(_text(head.partition(b"(")[2]), int(fields[1]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def _status_fields(data: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(data).splitlines())
    return {key: value.strip() for key, _, value in pairs}


def _environ(data: bytes) -> dict[str, str]:
    """The two variables that may be read, of an environment; the first of each, as getenv finds it."""
    found: dict[str, str] = {}
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        match = re.search(rb"(?:\A|\0)" + name.encode() + rb"=([^\0]*)", data)
        if match:
            found[name] = _text(match.group(1))[:MAX_ARGUMENTS_BYTES]
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split() if word.isdecimal())


def _read(path: Path, limit: int = _MAX_FILE_BYTES) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
