"""What Kubernetes calls the pods of this node. Pure.

In: Pod objects as the API server writes them (v1, JSON), and the variables that the downward API sets for the
agent. Out: :class:`Pod`, by uid and by container. Of an object only what is told is read and kept; everything is
bounded, for whoever may make a pod writes its labels, annotations and images.

Sources: Kubernetes API reference v1.34 (PodSpec, PodStatus, OwnerReference); kubelet's static pods; OpenTelemetry
semantic conventions 1.44 (k8s, container).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from otelgpu.model.resource import AttributeValue

MAX_PODS: Final = 4096
"""Pods of one node that are kept: a node has 110 by default, and some 500 where it was configured."""

MAX_CONTAINERS: Final = 64  # of one pod
_MAX_NAME: Final = 253  # a DNS subdomain, as names of objects are
_MAX_IMAGE: Final = 512

NAMESPACE: Final = "k8s.namespace.name"
POD_NAME: Final = "k8s.pod.name"
POD_UID: Final = "k8s.pod.uid"
NODE: Final = "k8s.node.name"
CONTAINER: Final = "k8s.container.name"
CONTAINER_ID: Final = "container.id"
IMAGE_NAME: Final = "container.image.name"
IMAGE_TAGS: Final = "container.image.tags"
IMAGE_DIGESTS: Final = "container.image.repo_digests"

_CRON_JOB: Final = re.compile(r"(.+)-[0-9]{8,10}")  # a job's name: the cron job's, and its minute since 1970
_WORKLOADS: Final = {
    "ReplicaSet": "k8s.replicaset.name",
    "StatefulSet": "k8s.statefulset.name",
    "DaemonSet": "k8s.daemonset.name",
    "Job": "k8s.job.name",
    "ReplicationController": "k8s.replicationcontroller.name",
}
_TEMPLATE_HASH: Final = "pod-template-hash"
_CONFIG_HASH: Final = "kubernetes.io/config.hash"
_MIRROR: Final = "kubernetes.io/config.mirror"

_Some = TypeVar("_Some")

OWN_VARIABLES: Final = ("OTELGPU_NODE_NAME", "OTELGPU_POD_NAME", "OTELGPU_POD_NAMESPACE", "OTELGPU_POD_UID")
"""What the downward API is to set for the agent: docs/identity.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPod:
    """What the agent knows of itself by the downward API. "" for what was not set."""

    node: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


def own_pod(environ: Mapping[str, str]) -> OwnPod:
    """From :data:`OWN_VARIABLES`."""
    node, name, namespace, uid = (environ.get(variable, "").strip()[:_MAX_NAME] for variable in OWN_VARIABLES)
    return OwnPod(node=node, name=name, namespace=namespace, uid=uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a container was made of: ``registry/path``, and which one of those."""

    name: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()

    def attributes(self) -> dict[str, AttributeValue]:
        """As the conventions name them."""
        found: dict[str, AttributeValue] = {IMAGE_NAME: self.name} if self.name else {}
        if self.tags:
            found[IMAGE_TAGS] = self.tags
        if self.digests:
            found[IMAGE_DIGESTS] = self.digests
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod. ``attributes``: of all its processes. ``containers``: by id, their names; ``images``: by name.

    ``alias``: what the cgroups of a static pod have for its uid, else "".
    """

    uid: str
    attributes: Mapping[str, AttributeValue]
    containers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    images: Mapping[str, Image] = field(default_factory=lambda: MappingProxyType({}))
    alias: str = ""


# -- Objects of the API ----------------------------------------------------------------------------------


class _Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""
    controller: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Container(msgspec.Struct):
    name: str = ""
    image: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    ephemeral_containers: list[_Container] | None = None


class _ContainerStatus(msgspec.Struct, rename={"container_id": "containerID", "image_id": "imageID"}):
    name: str = ""
    container_id: str = ""
    image_id: str = ""


class _Status(msgspec.Struct, rename="camel"):
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    ephemeral_container_statuses: list[_ContainerStatus] | None = None


class PodObject(msgspec.Struct):
    """What is read of a Pod."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _ListMetadata(msgspec.Struct, rename={"resource_version": "resourceVersion", "go_on": "continue"}):
    resource_version: str = ""
    go_on: str = ""


class PodList(msgspec.Struct):
    """A page of a list. ``metadata.go_on`` asks for the next one; "" at the end."""

    metadata: _ListMetadata
    items: list[PodObject] | None = None


class WatchEvent(msgspec.Struct):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, whose object is a Status."""

    type: str
    object: msgspec.Raw


class ApiStatus(msgspec.Struct):
    """What the API server says when it refuses."""

    code: int = 0
    reason: str = ""
    message: str = ""


def read_pod(given: PodObject) -> Pod | None:
    """What is told of it; None for one without a uid, which no API server sends."""
    metadata = given.metadata
    if not metadata.uid:
        return None
    attributes: dict[str, AttributeValue] = {
        key: value[:_MAX_NAME]
        for key, value in (
            (POD_NAME, metadata.name),
            (NAMESPACE, metadata.namespace),
            (NODE, given.spec.node_name),
            *_workload(metadata).items(),
        )
        if value
    }
    status = given.status
    statuses = _first(
        status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses
    )
    asked = _first(given.spec.containers, given.spec.init_containers, given.spec.ephemeral_containers)
    image_ids = {each.name[:_MAX_NAME]: each.image_id for each in statuses}
    annotations = metadata.annotations or {}
    return Pod(
        uid=metadata.uid[:_MAX_NAME],
        attributes=attributes,
        containers={
            identity: each.name[:_MAX_NAME]
            for each in statuses
            if (identity := each.container_id.rpartition("://")[2][:_MAX_NAME])
        },
        images={
            name: parse_image(each.image, image_ids.get(name, ""))
            for each in asked
            if (name := each.name[:_MAX_NAME])
        },
        alias=annotations.get(_CONFIG_HASH, "")[:_MAX_NAME] if _MIRROR in annotations else "",
    )


def _first(*lists: list[_Some] | None) -> list[_Some]:
    return [each for some in lists for each in some or ()][:MAX_CONTAINERS]


def _workload(metadata: _Metadata) -> dict[str, str]:
    """What the pod was made by: the ReplicaSet of a Deployment has the Deployment's name and the template's digest."""
    owner = next((each for each in metadata.owner_references or () if each.controller), None)
    if owner is None or owner.kind not in _WORKLOADS or not owner.name:
        return {}
    found = {_WORKLOADS[owner.kind]: owner.name}
    digest = (metadata.labels or {}).get(_TEMPLATE_HASH, "")
    if owner.kind == "ReplicaSet" and digest and owner.name.endswith(f"-{digest}"):
        found["k8s.deployment.name"] = owner.name.removesuffix(f"-{digest}")
    if owner.kind == "Job" and (job := _CRON_JOB.fullmatch(owner.name)):
        found["k8s.cronjob.name"] = job[1]
    return found


def parse_image(reference: str, image_id: str = "") -> Image:
    """``registry:5000/team/app:1.2@sha256:…`` → name, tags, digests. ``image_id``: what the status says was taken.

    A status' ``imageID`` may be a digest alone, or begin with ``docker-pullable://``: only what names a repository
    is one of its digests.
    """
    name, _, digest = reference[:_MAX_IMAGE].partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    name = folder + slash + last
    pulled = image_id[:_MAX_IMAGE].rpartition("://")[2]
    digests = {pulled} if "@" in pulled else {f"{name}@{digest}"} if digest else set()
    return Image(name=name, tags=(tag,) if tag else (), digests=tuple(digests))


# -- The table -------------------------------------------------------------------------------------------


class PodTable:
    """The pods that are there, and what changed since somebody asked. Not for several threads at once."""

    def __init__(self, *, limit: int = MAX_PODS) -> None:
        self.counters: Counter[str] = Counter()
        self._limit = limit
        self._pods: dict[str, Pod] = {}
        self._aliases: dict[str, str] = {}  # a static pod's digest → uid
        self._containers: dict[str, str] = {}  # container id → uid
        self._changed: set[str] = set()

    def __len__(self) -> int:
        return len(self._pods)

    def find(self, pod_uid: str, container_id: str) -> Pod | None:
        """The pod of a process: by what its cgroup says, its uid, else its container."""
        if pod_uid:
            return self._pods.get(pod_uid) or self._pods.get(self._aliases.get(pod_uid, ""))
        return self._pods.get(self._containers.get(container_id, ""))

    def put(self, pod: Pod) -> None:
        """A pod is there, or is described anew. What has no room is counted."""
        before = self._pods.get(pod.uid)
        if before == pod:
            return
        if before is None and len(self._pods) >= self._limit:
            self.counters["pods_full"] += 1
            return
        if before is not None:
            self._forget(before)
        self._pods[pod.uid] = pod
        if pod.alias:
            self._aliases.setdefault(pod.alias, pod.uid)
        for container_id in pod.containers:
            self._containers.setdefault(container_id, pod.uid)
        self._changed.add(pod.uid)

    def remove(self, uid: str) -> None:
        """A pod is no more. Its processes keep the names that they have."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._forget(pod)

    def replace(self, pods: Iterable[Pod]) -> None:
        """These are all."""
        present = {pod.uid: pod for pod in pods}
        for uid in self._pods.keys() - present.keys():
            self.remove(uid)
        for pod in present.values():
            self.put(pod)

    def take_changed(self) -> bool:
        """Whether there is something new since the last call."""
        changed, self._changed = self._changed, set()
        return bool(changed)

    def _forget(self, pod: Pod) -> None:
        if self._aliases.get(pod.alias) == pod.uid:
            del self._aliases[pod.alias]
        for container_id in pod.containers:
            if self._containers.get(container_id) == pod.uid:
                del self._containers[container_id]
