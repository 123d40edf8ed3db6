"""Pods as the API server writes them, and the table of those of a node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.discover.kubernetes import (
    MAX_CONTAINERS,
    Image,
    OwnPod,
    Pod,
    PodObject,
    PodTable,
    own_pod,
    parse_image,
    read_pod,
)
from tests.rig.kubernetes import pod_object
from tests.unit.discover.processes_builders import CONTAINER, POD

OTHER = "22222222-3333-4444-8555-666666666666"
HASH = "0123456789abcdef0123456789abcdef"


def read(given: dict[str, Any]) -> Pod:
    found = read_pod(msgspec.json.decode(msgspec.json.encode(given), type=PodObject))
    assert found is not None
    return found


def owned(kind: str, name: str, *, controller: bool = True, **labels: str) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": OTHER, "controller": controller}
    return {"ownerReferences": [owner], "labels": labels}


def test_a_pod_is_read() -> None:
    pod = read(pod_object("worker-0", POD, container_id=CONTAINER))
    assert pod.uid == POD
    assert pod.attributes == {
        "k8s.pod.name": "worker-0",
        "k8s.namespace.name": "training",
        "k8s.node.name": "node-1",
    }
    assert pod.containers == {CONTAINER: "app"}
    assert pod.images["app"].attributes() == {
        "container.image.name": "registry:5000/team/llm",
        "container.image.tags": ("1.2",),
        "container.image.repo_digests": (f"registry:5000/team/llm@sha256:{'ab' * 32}",),
    }


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (
            owned("ReplicaSet", "web-5d4f8c7b9", **{"pod-template-hash": "5d4f8c7b9"}),
            {"k8s.replicaset.name": "web-5d4f8c7b9", "k8s.deployment.name": "web"},
        ),
        (
            owned("ReplicaSet", "a-b-c-5d4f8c7b9", **{"pod-template-hash": "5d4f8c7b9"}),
            {"k8s.replicaset.name": "a-b-c-5d4f8c7b9", "k8s.deployment.name": "a-b-c"},
        ),
        (owned("ReplicaSet", "alone"), {"k8s.replicaset.name": "alone"}),
        (owned("ReplicaSet", "alone-1", **{"pod-template-hash": "2"}), {"k8s.replicaset.name": "alone-1"}),
        (owned("StatefulSet", "llm"), {"k8s.statefulset.name": "llm"}),
        (owned("DaemonSet", "agent"), {"k8s.daemonset.name": "agent"}),
        (owned("Job", "train"), {"k8s.job.name": "train"}),
        (
            owned("Job", "nightly-29012345"),
            {"k8s.job.name": "nightly-29012345", "k8s.cronjob.name": "nightly"},
        ),
        (owned("Node", "node-1"), {}),
        (owned("ReplicaSet", "web-1", controller=False), {}),
        ({}, {}),
    ],
)
def test_a_pod_belongs_to_what_made_it(metadata: dict[str, Any], expected: dict[str, str]) -> None:
    found = read(pod_object("p", POD, **metadata)).attributes
    names = ("k8s.pod.name", "k8s.namespace.name", "k8s.node.name")
    assert {key: value for key, value in found.items() if key not in names} == expected


@pytest.mark.parametrize(
    ("reference", "image_id", "expected"),
    [
        ("nginx", "", Image(name="nginx")),
        ("nginx:1.27", "sha256:abc", Image(name="nginx", tags=("1.27",))),
        ("host:5000/a/b", "", Image(name="host:5000/a/b")),
        ("host:5000/a/b:v1", "", Image(name="host:5000/a/b", tags=("v1",))),
        ("a/b@sha256:0f", "", Image(name="a/b", digests=("a/b@sha256:0f",))),
        ("a/b:v1@sha256:0f", "", Image(name="a/b", tags=("v1",), digests=("a/b@sha256:0f",))),
        (
            "b:v1",
            "docker-pullable://docker.io/a/b@sha256:0f",
            Image(name="b", tags=("v1",), digests=("docker.io/a/b@sha256:0f",)),
        ),
        ("", "", Image(name="")),
    ],
)
def test_images_have_a_name_tags_and_digests(reference: str, image_id: str, expected: Image) -> None:
    assert parse_image(reference, image_id) == expected


def test_a_pod_that_is_not_scheduled_yet_and_one_with_too_much_are_read() -> None:
    bare = {"metadata": {"name": "p", "uid": POD}, "spec": {"containers": None}, "status": {}}
    assert read(bare).attributes == {"k8s.pod.name": "p"}
    large = pod_object("p" * 9999, POD, container_id=CONTAINER)
    large["status"]["containerStatuses"] = [
        {"name": "c", "containerID": f"containerd://{number:064x}"} for number in range(1000)
    ]
    found = read(large)
    assert len(found.containers) == MAX_CONTAINERS and len(str(found.attributes["k8s.pod.name"])) == 253
    assert read_pod(PodObject()) is None


def test_a_static_pod_is_found_by_what_its_cgroup_is_called() -> None:
    annotations = {"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH}
    table = PodTable()
    table.put(read(pod_object("etcd-node-1", POD, annotations=annotations)))
    found = table.find(HASH, "")
    assert found is not None and found.uid == POD
    only = read(pod_object("liar", OTHER, annotations={"kubernetes.io/config.hash": HASH}))
    assert only.alias == ""  # a label of one's own makes no static pod
    table.remove(POD)
    assert table.find(HASH, "") is None


def test_a_pod_is_found_by_its_uid_else_by_its_container() -> None:
    table = PodTable()
    table.put(read(pod_object("a", POD, container_id=CONTAINER)))
    assert table.find(POD, "") is table.find("", CONTAINER) is not None
    assert table.find(OTHER, CONTAINER) is None  # the kernel says another pod: it wins
    assert table.find("", "") is None
    table.put(read(pod_object("thief", OTHER, container_id=CONTAINER)))
    found = table.find("", CONTAINER)
    assert found is not None and found.uid == POD  # a container has one pod


def test_only_what_is_new_is_a_change() -> None:
    table = PodTable()
    pod = pod_object("a", POD)
    for told, changed in ((pod, True), (pod, False), (pod_object("a", POD, container_id=CONTAINER), True)):
        table.put(read(told))
        assert table.take_changed() is changed
    table.put(read(pod_object("a", POD, container_id="f" * 64)))
    assert table.find("", CONTAINER) is None and table.find("", "f" * 64) is not None


def test_the_table_is_bounded_and_says_so() -> None:
    table = PodTable(limit=3)
    pods = [read(pod_object(f"p{n}", f"{POD[:-1]}{n}", container_id=f"{n:064x}")) for n in range(5)]
    for pod in pods:
        table.put(pod)
    assert (len(table), table.counters["pods_full"]) == (3, 2)
    table.replace(pods[4:])
    assert len(table) == 1 and table.find("", pods[0].uid) is None
    assert table.find(pods[4].uid, "") == pods[4]


def test_the_downward_api_is_read_from_the_environment() -> None:
    variables = {
        "OTELGPU_NODE_NAME": "node-1",
        "OTELGPU_POD_NAME": " a ",
        "OTELGPU_POD_NAMESPACE": "n",
        "OTELGPU_POD_UID": POD,
    }
    assert own_pod(variables) == OwnPod(node="node-1", name="a", namespace="n", uid=POD)
    assert own_pod({}) == OwnPod()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


@given(
    st.dictionaries(
        st.sampled_from(["metadata", "spec", "status"]),
        st.dictionaries(
            st.sampled_from(["uid", "name", "labels", "ownerReferences", "containers", "containerStatuses"]),
            _JSON,
        ),
    )
)
def test_any_object_is_a_pod_or_is_refused(given: dict[str, Any]) -> None:
    try:
        read_pod(msgspec.json.decode(msgspec.json.encode(given), type=PodObject))
    except msgspec.MsgspecError:
        pass
