"""Which container and pod a process is in, by what the kernel says of it. Text in, facts out; reads no process.

In: a ``/proc/PID/cgroup`` and, where that says nothing, a ``/proc/PID/mountinfo``. Out: :class:`ContainerOf`.

Whoever may write a cgroup directory names what is below it as he likes, so that the *outermost* pod counts, and of
containers the outermost in that pod: a tenant makes cgroups only below the container that it was given. For the
same reason no pod is believed under ``user.slice``, whose users make their own. Mounts are believed only where the
cgroup is hidden, for anyone with a user namespace mounts what he likes where he likes.

Example: ``0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope/x``
is container ``<id>`` of pod ``<uid>``; read by a container that has a cgroup namespace, ``0::/../crio-<id>.scope`` is
a container of the reader's own pod.

Sources: cgroups(7), cgroup_namespaces(7), proc_pid_mountinfo(5); the cgroup drivers of kubelet, containerd, CRI-O,
Docker and Podman.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

PlacedBy = Literal["", "cgroup", "same_pod", "mountinfo"]
"""How it is known: by the cgroup's path; by lying beside the reader's own; by mounts, the cgroup being hidden."""

MAX_CGROUP_BYTES: Final = 1 << 16
MAX_MOUNTINFO_BYTES: Final = 1 << 18
_MAX_LINES: Final = 4096
_MAX_LINE: Final = 8192
_MAX_PART: Final = 255  # NAME_MAX
_CGROUP_NAMESPACE: Final = "cgroup:[4026531835]"  # PROC_CGROUP_INIT_INO of include/linux/proc_ns.h

_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
"""A pod's; of a static pod (one that a file on the node describes) the digest of that file, as the annotation
``kubernetes.io/config.hash`` of what the API server shows in its place."""

_POD: Final = re.compile(rf"(?:([a-z0-9_.-]*kubepods)(?:-[a-z]+)?-)?pod({_UID})(?:\.slice)?")
_POD_PARENTS: Final = ("..", "kubepods", "besteffort", "burstable", "guaranteed")
# 64 hex digits, with or without "docker-", "cri-containerd-", "crio-", "libpod-", "nerdctl-" and ".scope"; AWS
# Fargate: 32 and a number. Not the monitor process of a container ("libpod-conmon-…", "crio-conmon-…").
_CONTAINER: Final = re.compile(
    r"(?:(?!.*conmon)[a-z][a-z-]*-)?([0-9a-f]{64}|[0-9a-f]{32}-[0-9]{8,10})(?:\.scope)?"
)
# Cloud Foundry's handles, which mean something under its own directory only.
_GARDEN: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){4}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_USERS: Final = "user.slice"

# What kubelet mounts into each container, by the path on its own file system.
_POD_MOUNT: Final = re.compile(
    rf"/pods/({_UID})/(?:etc-hosts|containers/([a-z0-9](?:[-a-z0-9]{{0,61}}[a-z0-9])?)/[0-9a-f]{{8}})"
)
# Docker, nerdctl and Podman give each container files of its own; containerd's and CRI-O's are the pod's.
_CONTAINER_MOUNT: Final = re.compile(
    r"/(?:overlay-)?containers/(?:[a-z0-9._-]+/)?([0-9a-f]{64})(?:/userdata)?/(?:hostname|hosts|resolv\.conf|\.containerenv)"
)
_NAME_FILES: Final = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/run/.containerenv")


class ContainerOf(Struct, frozen=True, kw_only=True):
    """Where a process is. "" for what is not known, or not so.

    ``unified``: its path in the v2 hierarchy, as the reader sees it. ``container_name``: as its pod calls it.
    ``hidden``: the cgroup says nothing, which mountinfo may. ``beside``: it is in a pod's cgroup with the reader.
    """

    container_id: str = ""
    pod_uid: str = ""
    container_name: str = ""
    unified: str = ""
    beside: bool = False
    hidden: bool = False
    by: PlacedBy = ""


class Reader(Struct, frozen=True, kw_only=True):
    """Where the one who reads is, on which the meaning of the paths depends.

    ``cgroup``: its own ``/proc/self/cgroup``. ``namespaced``: it has a cgroup namespace, so that paths are relative
    to its own cgroup. ``pod_uid`` and ``container_id``: what it runs in, "" outside of one.
    """

    cgroup: str = ""
    namespaced: bool = False
    pod_uid: str = ""
    container_id: str = ""


class Mounts(Struct, frozen=True, kw_only=True):
    """What the mounts of a process say: as much worth as its right to make some."""

    container_id: str = ""
    pod_uid: str = ""
    container_name: str = ""


def read_reader(reported_pod_uid: str = "", *, proc: Path = Path("/proc")) -> Reader:
    """Where this program is. ``reported_pod_uid``: what the downward API says, which wins."""
    folder = proc / "self"
    cgroup = _text(folder / "cgroup", MAX_CGROUP_BYTES)
    try:
        namespaced = os.readlink(folder / "ns" / "cgroup") != _CGROUP_NAMESPACE
    except OSError:  # a kernel without them, or not this system's /proc
        namespaced = False
    mounts = parse_mountinfo(_text(folder / "mountinfo", MAX_MOUNTINFO_BYTES))
    place = parse_cgroup(cgroup)
    return Reader(
        cgroup=cgroup,
        namespaced=namespaced,
        pod_uid=reported_pod_uid or place.pod_uid or mounts.pod_uid,
        container_id=place.container_id or mounts.container_id,
    )


def place_process(read: Callable[[str, int], bytes], reader: Reader) -> ContainerOf:
    """Where a process is. ``read``: a file of its ``/proc/PID``, so much of it; b"" says nothing."""
    cgroup = read("cgroup", MAX_CGROUP_BYTES).decode("utf-8", "replace")
    place = parse_cgroup(cgroup, reader)
    if place.beside:
        place = replace(place, pod_uid=reader.pod_uid, by="same_pod")
    if place.pod_uid or place.hidden:
        mounts = read("mountinfo", MAX_MOUNTINFO_BYTES).decode("utf-8", "replace")
        return with_mounts(place, parse_mountinfo(mounts))
    return place


def with_mounts(place: ContainerOf, mounts: Mounts) -> ContainerOf:
    """Of what mounts say, what does not contradict the cgroup: all where that is hidden, else the container's name."""
    if place.pod_uid:
        return (
            replace(place, container_name=mounts.container_name) if mounts.pod_uid == place.pod_uid else place
        )
    if place.hidden and (mounts.pod_uid or mounts.container_id):
        return replace(
            place,
            container_id=mounts.container_id,
            pod_uid=mounts.pod_uid,
            container_name=mounts.container_name,
            by="mountinfo",
        )
    return place


# -- Cgroups ---------------------------------------------------------------------------------------------


NOWHERE: Final = Reader()
"""A reader of which nothing is known."""


def parse_cgroup(text: str, reader: Reader = NOWHERE) -> ContainerOf:
    """What a ``/proc/PID/cgroup`` says. Of several hierarchies the unified one is asked first, named ones last."""
    lines = [line.split(":", 2) for line in text.splitlines()[:_MAX_LINES] if line.count(":") >= 2]
    lines.sort(key=lambda line: (line[0] != "0", line[1].startswith("name=")))
    paths = [path[:_MAX_LINE] for _, _, path in lines]
    unified = next((path for number, _, path in lines if number == "0"), "")
    container_id = pod_uid = ""
    for path in paths:
        found_container, found_pod = _read_path(path)
        if not pod_uid and found_pod:
            container_id, pod_uid = found_container, found_pod
        if not pod_uid:
            container_id = container_id or found_container
    beside = bool(reader.pod_uid) and not pod_uid and _is_beside(text, paths, reader)
    return ContainerOf(
        container_id=container_id,
        pod_uid=pod_uid,
        unified=unified,
        beside=beside,
        hidden=not any(path.strip("/") for path in paths),
        by="cgroup" if container_id or pod_uid else "",
    )


def _read_path(path: str) -> tuple[str, str]:
    """(container id, pod uid): the outermost pod and the container in it, else the outermost container.

    A pod below a container is that of a node which is itself a container (kind, k3d, minikube).
    """
    container_id = pod_uid = ""
    before: list[str] = []
    parts = _parts(path)
    for place, part in enumerate(parts):
        if not pod_uid and (found := _POD.fullmatch(part)) and _is_pods_place(found, before):
            pod_uid, container_id = found[2].replace("_", "-"), ""
        elif not container_id and (identity := _container(part, before, parts[place + 1 :])):
            container_id = identity
        before.append(part)
    return container_id, pod_uid


def _parts(path: str) -> list[str]:
    """The names in a path. containerd's under systemd in v1 is ``…pod<uid>.slice:cri-containerd:<id>``, two in one."""
    found = []
    for part in path.split("/"):
        if 0 < len(part) <= _MAX_PART:
            names = part.split(":")
            found += names if len(names) > 1 and _POD.fullmatch(names[0]) else names[-1:]
    return found


def _is_pods_place(found: re.Match[str], before: Sequence[str]) -> bool:
    if _USERS in before:
        return False
    return bool(found[1]) or not before or before[-1] in _POD_PARENTS


def _container(part: str, before: Sequence[str], after: Sequence[str]) -> str:
    found = _CONTAINER.fullmatch(part)
    if found is not None:
        # Podman's pods have ids of their own, above those of their containers.
        is_podman_pod = bool(before) and before[-1] == "libpod_parent" and after[:1] != [] and "-" in after[0]
        return "" if is_podman_pod else found[1]
    return part if before and before[-1] == "garden" and _GARDEN.fullmatch(part) else ""


def _is_beside(text: str, paths: Sequence[str], reader: Reader) -> bool:
    """Whether the reader, which is in a pod, has that pod's cgroup around the process too.

    It is so in the reader's own cgroup; below it, where paths are relative to it; and where such a path climbs
    straight to another container: what is beside a pod's container is in the pod, and what lies further off begins
    with the name of another pod, of a class of pods or of a service.
    """
    if text and text == reader.cgroup:
        return True
    if not reader.namespaced:
        return False
    # A hierarchy in which nobody has a cgroup of his own says "/" of everyone.
    said = {_climbs_to_a_container(path) for path in paths if path.strip("/")}
    return said == {True}


def _climbs_to_a_container(path: str) -> bool:
    names = [name for name in path.split("/") if name]
    below = [name for name in names if name != ".."]
    return names[0] != ".." or (bool(below) and _CONTAINER.fullmatch(below[0]) is not None)


# -- Mounts ----------------------------------------------------------------------------------------------


def parse_mountinfo(text: str) -> Mounts:
    """What a ``/proc/PID/mountinfo`` says of the container whose file system it shows."""
    pod_uid = container_name = container_id = ""
    for root, target in _mounts(text):
        if target in _NAME_FILES and (found := _CONTAINER_MOUNT.search(root)) and found.end() == len(root):
            container_id = container_id or found[1]
        found = _POD_MOUNT.search(root, max(root.find("/pods/"), 0))
        if found is None or found.end() != len(root) or found.start() != root.find("/pods/"):
            continue
        if found[1] == (pod_uid or found[1]):
            pod_uid, container_name = found[1], container_name or found[2] or ""
    # In a pod these files are those of its sandbox, which is a container of its own.
    return Mounts(
        container_id="" if pod_uid else container_id, pod_uid=pod_uid, container_name=container_name
    )


def _mounts(text: str) -> Iterator[tuple[str, str]]:
    """(root in its file system, mount point). Blanks in them are written in octal, and of no interest here."""
    for line in text.split("\n", _MAX_LINES)[:_MAX_LINES]:
        fields = line[:_MAX_LINE].split(" ", 5)
        if len(fields) == 6:
            yield fields[3], fields[4]


def _text(path: Path, limit: int) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""
