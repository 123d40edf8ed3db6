"""Containers and pods, by what the kernel says: every form in the field, and what a tenant may write himself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.processes.containers import (
    Mounts,
    Reader,
    parse_cgroup,
    parse_mountinfo,
    place_process,
    read_reader,
)
from otelgpu.processes.listing import describe
from tests.unit.processes.processes_builders import CONTAINER as ID
from tests.unit.processes.processes_builders import POD, add_process

OTHER = "fedcba9876543210" * 4
VICTIM = "99999999-8888-4777-8666-555555555555"
SLICE = POD.replace("-", "_")
HASH = "0123456789abcdef0123456789abcdef"
FARGATE = "0123456789abcdef0123456789abcdef-1234567890"
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice"
KIND = f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort-pod{SLICE}.slice"

FORMS = {
    "docker, systemd": (f"0::/system.slice/docker-{ID}.scope", ID, ""),
    "docker, cgroupfs, v1": (f"12:memory:/docker/{ID}", ID, ""),
    "docker with systemd inside": (f"0::/docker/{ID}/init.scope", ID, ""),
    "nerdctl": (f"0::/system.slice/nerdctl-{ID}.scope", ID, ""),
    "containerd's ctr": (f"0::/default/{ID}", ID, ""),
    "podman": (f"0::/machine.slice/libpod-{ID}.scope/container", ID, ""),
    "podman without root": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
        ID,
        "",
    ),
    "podman, cgroupfs": (f"0::/libpod_parent/libpod-{ID}", ID, ""),
    "podman's pod": (f"0::/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope/container", ID, ""),
    "podman's pod, cgroupfs": (f"0::/libpod_parent/{OTHER}/libpod-{ID}", ID, ""),
    "podman's monitor": (f"0::/machine.slice/libpod-conmon-{ID}.scope", "", ""),
    "ecs": (f"9:perf_event:/ecs/task/{ID}", ID, ""),
    "ecs with a cluster": (f"0::/ecs/my-cluster/0123456789abcdef/{ID}", ID, ""),
    "fargate": (f"9:memory:/ecs/{HASH}/{FARGATE}", FARGATE, ""),
    "garden": (
        "3:cpu:/system.slice/garden.service/garden/6f265890-5165-7fab-6b52-18d1",
        "6f265890-5165-7fab-6b52-18d1",
        "",
    ),
    "garden's uid": (
        "3:cpu:/garden/6f265890-5165-7fab-6b52-18d1aabbccdd",
        "6f265890-5165-7fab-6b52-18d1aabbccdd",
        "",
    ),
    "containerd, systemd, guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        ID,
        POD,
    ),
    "containerd, systemd, burstable": (f"0::{BURSTABLE}/cri-containerd-{ID}.scope", ID, POD),
    "containerd, cgroupfs": (f"4:cpu,cpuacct:/kubepods/besteffort/pod{POD}/{ID}", ID, POD),
    "containerd, cgroupfs, guaranteed": (f"0::/kubepods/pod{POD}/{ID}", ID, POD),
    "containerd v1 under systemd": (
        f"1:name=systemd:/system.slice/containerd.service/kubepods-besteffort-pod{SLICE}.slice:cri-containerd:{ID}",
        ID,
        POD,
    ),
    "cri-dockerd": (f"0::{BURSTABLE}/docker-{ID}.scope", ID, POD),
    "cri-o, systemd": (f"0::{BURSTABLE}/crio-{ID}.scope", ID, POD),
    "cri-o with crun": (f"0::{BURSTABLE}/crio-{ID}.scope/container", ID, POD),
    "cri-o, cgroupfs": (f"0::/kubepods/burstable/pod{POD}/crio-{ID}", ID, POD),
    "cri-o's monitor": (f"0::{BURSTABLE}/crio-conmon-{ID}.scope", "", POD),
    "a pod's own cgroup": (f"0::{BURSTABLE}", "", POD),
    "a static pod": (f"0::/kubepods.slice/kubepods-burstable-pod{HASH}.slice/crio-{ID}.scope", ID, HASH),
    "a root of one's own": (f"0::/machines/kubepods/burstable/pod{POD}/{ID}", ID, POD),
    "relative, another pod": (f"0::/../../kubepods-besteffort-pod{SLICE}.slice/cri-containerd-{ID}.scope", ID, POD),
    "relative, another pod, cgroupfs": (f"0::/../../pod{POD}/{ID}", ID, POD),
    "relative, another class": (f"0::/../../../burstable/pod{POD}/{ID}", ID, POD),
    "kind, inside": (f"0::{KIND}/cri-containerd-{ID}.scope", ID, POD),
    "kind, from outside": (f"0::/system.slice/docker-{OTHER}.scope{KIND}/cri-containerd-{ID}.scope", ID, POD),
    "kind, cgroupfs, from outside": (f"0::/docker/{OTHER}/kubelet/kubepods/pod{POD}/{ID}", ID, POD),
    "docker in docker": (f"0::/docker/{ID}/docker/{OTHER}", ID, ""),
    "docker in a pod": (f"0::/kubepods/pod{POD}/{ID}/docker/{OTHER}", ID, POD),
    "kind in a pod": (f"0::/kubepods/pod{POD}/{ID}/docker/{OTHER}/kubelet/kubepods/pod{VICTIM}/{OTHER}", ID, POD),
    "the host": ("0::/user.slice/user-0.slice/session-1.scope", "", ""),
    "the root": ("0::/", "", ""),
    "no id of a container": ("4:memory:/process_api/e7bb6d3b9262eee69afa247d1452b44e", "", ""),
}  # fmt: skip


@pytest.mark.parametrize(("line", "container", "pod"), FORMS.values(), ids=FORMS)
def test_containers_are_known_by_their_cgroup(line: str, container: str, pod: str) -> None:
    found = parse_cgroup(f"3:cpuset:/\n{line}\n")
    assert (found.container_id, found.pod_uid) == (container, pod)
    assert found.by == ("cgroup" if container or pod else "")


def test_the_v2_path_is_reported_beside_v1_ones_and_asked_first() -> None:
    found = parse_cgroup(f"4:memory:/docker/{ID}\n0::/app/x\n")
    assert (found.container_id, found.unified) == (ID, "/app/x")
    assert parse_cgroup("4:memory:/a\n").unified == ""
    assert parse_cgroup(f"1:name=systemd:/docker/{OTHER}\n4:memory:/docker/{ID}\n").container_id == ID
    assert parse_cgroup(f"4:memory:/docker/{OTHER}\n0::/docker/{ID}\n").container_id == ID
    assert parse_cgroup(f"4:memory:/docker/{OTHER}\n0::/kubepods/pod{POD}/{ID}\n").container_id == ID


@pytest.mark.parametrize(
    ("path", "container", "pod"),
    [
        # Whoever may write his own cgroup names what is below it.
        (f"{BURSTABLE}/cri-containerd-{ID}.scope/kubepods/pod{VICTIM}/{OTHER}", ID, POD),
        (f"{BURSTABLE}/cri-containerd-{ID}.scope/cri-containerd-{OTHER}.scope", ID, POD),
        (f"/docker/{ID}/docker-{OTHER}.scope", ID, ""),
        # A user of the host has cgroups of his own, and containers in them, but no pods.
        (f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{VICTIM}/{OTHER}", OTHER, ""),
        (
            f"/user.slice/user-1000.slice/user@1000.service/kubepods-pod{VICTIM.replace('-', '_')}.slice",
            "",
            "",
        ),
        (f"/srv/pod{VICTIM}/{ID}", ID, ""),
    ],
)
def test_what_a_tenant_makes_below_his_own_cgroup_is_not_believed(
    path: str, container: str, pod: str
) -> None:
    found = parse_cgroup(f"0::{path}\n")
    assert (found.container_id, found.pod_uid) == (container, pod)


# -- Read from a container ------------------------------------------------------------------------------

SIDECAR = Reader(cgroup="0::/\n", namespaced=True, pod_uid=POD)


@pytest.mark.parametrize(
    ("line", "beside"),
    [
        ("0::/", True),  # the reader's own container
        (f"4:memory:/\n0::/../{ID}", True),
        ("4:memory:/batch\n0::/../../../system.slice/kubelet.service", False),
        ("0::/workers", True),
        (f"0::/../cri-containerd-{ID}.scope", True),
        (f"0::/../../crio-{ID}.scope/container", True),
        (f"0::/../{ID}", True),
        (f"0::/../../kubepods-burstable-pod{VICTIM.replace('-', '_')}.slice/cri-containerd-{ID}.scope", False),
        (f"0::/../../pod{VICTIM}/{ID}", False),
        (f"0::/../../../besteffort/pod{VICTIM}/{ID}", False),
        (f"0::/../../../../system.slice/docker-{ID}.scope", False),
        ("0::/../../../../system.slice/kubelet.service", False),
        ("0::/../../..", False),
    ],
)  # fmt: skip
def test_what_lies_beside_the_reader_is_in_its_pod(line: str, beside: bool) -> None:
    assert parse_cgroup(f"{line}\n", SIDECAR).beside is beside
    assert not parse_cgroup(f"{line}\n", Reader(cgroup="0::/\n", namespaced=True)).beside


def test_on_the_host_nothing_is_beside_but_what_is_in_the_same_cgroup() -> None:
    reader = Reader(cgroup="0::/system.slice/x.service\n", pod_uid=POD)
    assert parse_cgroup("0::/system.slice/x.service\n", reader).beside
    assert not parse_cgroup(f"0::/../{ID}\n", reader).beside
    assert not parse_cgroup("0::/workers\n", reader).beside


# -- Mounts ---------------------------------------------------------------------------------------------

KUBELET = "/var/lib/kubelet/pods"


def mount(root: str, target: str) -> str:
    return f"2021 1996 254:1 {root} {target} rw,relatime - ext4 /dev/vda1 rw\n"


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        (mount(f"/var/lib/docker/containers/{ID}/hostname", "/etc/hostname"), Mounts(container_id=ID)),
        (
            mount(
                f"/var/lib/containers/storage/overlay-containers/{ID}/userdata/.containerenv",
                "/run/.containerenv",
            ),
            Mounts(container_id=ID),
        ),
        (
            mount(f"/var/lib/nerdctl/1935db59/containers/default/{ID}/resolv.conf", "/etc/resolv.conf"),
            Mounts(container_id=ID),
        ),
        # These are the pod's sandbox, a container of its own.
        (
            mount(
                f"/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{OTHER}/hostname", "/etc/hostname"
            ),
            Mounts(),
        ),
        (
            mount(f"/var/lib/docker/containers/{OTHER}/hostname", "/etc/hostname")
            + mount(f"{KUBELET}/{POD}/etc-hosts", "/etc/hosts"),
            Mounts(pod_uid=POD),
        ),
        (
            mount(f"{KUBELET}/{POD}/containers/app/0a1b2c3d", "/dev/termination-log"),
            Mounts(pod_uid=POD, container_name="app"),
        ),
        (
            mount(f"/pods/{POD}/containers/app/0a1b2c3d", "/tmp/end"),
            Mounts(pod_uid=POD, container_name="app"),
        ),
        # What a tenant can bind: a folder in a volume of his that is called like the real thing.
        (
            mount(f"{KUBELET}/{POD}/volumes/kubernetes.io~empty-dir/v/pods/{VICTIM}/etc-hosts", "/etc/hosts"),
            Mounts(),
        ),
        (mount(f"/data/containers/{ID}/hostname", "/srv/hostname"), Mounts()),
        (mount(f"/var/lib/docker/containers/{ID}/hostname/more", "/etc/hostname"), Mounts()),
        ("36 35 98:0 / / rw - ext4\nnonsense\n\n", Mounts()),
    ],
)
def test_mounts_name_the_container_and_the_pod(mounts: str, expected: Mounts) -> None:
    assert parse_mountinfo(mounts) == expected


def placed(tmp_path: Path, reader: Reader, cgroup: str, mounts: str) -> tuple[str, str, str, str]:
    add_process(tmp_path, 7, cgroup=cgroup, mountinfo=mounts)
    found = place_process(lambda name, limit: (tmp_path / "7" / name).read_bytes()[:limit], reader)
    return found.container_id, found.pod_uid, found.container_name, found.by


def test_mounts_are_asked_where_the_cgroup_is_hidden(tmp_path: Path) -> None:
    mounts = mount(f"{KUBELET}/{POD}/containers/app/0a1b2c3d", "/dev/termination-log")
    assert placed(tmp_path, Reader(), "0::/\n", mounts) == ("", POD, "app", "mountinfo")
    docker = mount(f"/var/lib/docker/containers/{ID}/hostname", "/etc/hostname")
    assert placed(tmp_path / "docker", Reader(), "0::/\n", docker) == (ID, "", "", "mountinfo")
    assert placed(tmp_path / "no cgroups", Reader(), "", docker) == (ID, "", "", "mountinfo")


def test_mounts_are_not_believed_against_the_cgroup(tmp_path: Path) -> None:
    """Anyone with a user namespace mounts what he likes."""
    lie = mount(f"{KUBELET}/{VICTIM}/containers/victim/0a1b2c3d", "/dev/termination-log")
    pod = f"0::/kubepods/pod{POD}/{ID}\n"
    assert placed(tmp_path, Reader(), pod, lie) == (ID, POD, "", "cgroup")
    assert placed(tmp_path / "host", Reader(), "0::/user.slice/a\n", lie) == ("", "", "", "")
    beside = placed(tmp_path / "beside", SIDECAR, f"0::/../cri-containerd-{ID}.scope\n", lie)
    assert beside == (ID, POD, "", "same_pod")


def test_the_container_is_called_as_its_pod_calls_it(tmp_path: Path) -> None:
    mounts = mount(f"{KUBELET}/{POD}/containers/app/0a1b2c3d", "/dev/termination-log")
    pod = f"0::/kubepods/pod{POD}/{ID}\n"
    assert placed(tmp_path, Reader(), pod, mounts) == (ID, POD, "app", "cgroup")
    beside = placed(tmp_path / "beside", SIDECAR, f"0::/../cri-containerd-{ID}.scope\n", mounts)
    assert beside == (ID, POD, "app", "same_pod")


def test_the_reader_finds_itself(tmp_path: Path) -> None:
    mounts = mount(f"{KUBELET}/{POD}/etc-hosts", "/etc/hosts")
    add_process(tmp_path, 7, cgroup="0::/\n", mountinfo=mounts)
    (tmp_path / "self").symlink_to("7")
    assert read_reader(proc=tmp_path) == Reader(cgroup="0::/\n", pod_uid=POD)
    assert read_reader(VICTIM, proc=tmp_path).pod_uid == VICTIM
    (tmp_path / "7" / "ns").mkdir()
    (tmp_path / "7" / "ns" / "cgroup").symlink_to("cgroup:[4026532500]")
    assert read_reader(proc=tmp_path).namespaced
    assert read_reader(proc=tmp_path / "none") == Reader()


def test_a_process_is_with_the_agent_by_pod_or_container(tmp_path: Path) -> None:
    add_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{POD}/{ID}\n")

    def with_agent(reader: Reader) -> bool:
        found = describe(7, proc=tmp_path, reader=reader)
        assert found is not None
        return found.with_agent

    assert with_agent(Reader(pod_uid=POD)) and with_agent(Reader(container_id=ID))
    assert not with_agent(Reader(pod_uid=VICTIM, container_id=OTHER)) and not with_agent(Reader())


# -- Anything ---------------------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        *("/", "..", ":", "\n", "0::", "a", "kubepods", "user.slice", "libpod_parent", "conmon-"),
        *(ID, f"pod{POD}", f"pod{VICTIM}.slice", f"crio-{OTHER}.scope"),
    ]
)
_HOSTILE = st.lists(st.one_of(_PIECES, st.text(max_size=20)), max_size=30).map("".join)


@given(_HOSTILE, st.booleans())
def test_any_cgroup_is_read(text: str, namespaced: bool) -> None:
    found = parse_cgroup(text, Reader(cgroup=text[:5], namespaced=namespaced, pod_uid=POD))
    assert len(found.container_id) <= 64 and len(found.pod_uid) <= 36
    assert set(found.pod_uid) <= set("0123456789abcdef-")


@given(_HOSTILE)
def test_nothing_below_a_container_of_a_pod_changes_where_it_is(tail: str) -> None:
    below = tail.replace("\n", "")
    found = parse_cgroup(f"0::{BURSTABLE}/cri-containerd-{ID}.scope/{below}\n")
    assert (found.container_id, found.pod_uid) == (ID, POD)


@given(_HOSTILE, st.text(max_size=300))
def test_any_mounts_are_read(root: str, rest: str) -> None:
    parse_mountinfo(rest)
    found = parse_mountinfo(f"1 2 3:4 {root} /etc/hostname {rest}")
    assert len(found.container_id) <= 64 and len(found.pod_uid) <= 36 and len(found.container_name) <= 63


@pytest.mark.parametrize("piece", ["-pod", "a-", f"{ID}:", "kubepods-pod", "/pods/", "/containers/a/"])
def test_what_is_endless_is_read_to_a_bound(tmp_path: Path, piece: str) -> None:
    long = piece * 200_000
    add_process(
        tmp_path,
        7,
        cgroup=f"0::/{long}\n" * 2,
        mountinfo=f"1 2 3:4 {long} /etc/hosts rw - a b c\n" * 2,
    )
    place_process(lambda name, limit: (tmp_path / "7" / name).read_bytes()[:limit], SIDECAR)
    parse_cgroup(f"0::/{long}")
    parse_mountinfo(f"1 2 3:4 {long} /etc/hosts rw - a b c")
