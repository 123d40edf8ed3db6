"""The Job that observes on a pod's node, as a manifest. Pure.

Two containers of one image. ``otelgpu`` has the capabilities of docs/reference/privileges.md that a pod needs and no
others, writes its result into a folder that both have, and ends. ``result`` has no capability at all; it stays so that
``kubectl exec`` has somewhere to fetch from, until no process has had the Job's name among its arguments for a while:
what observes has it, by the names of its results, and so has each command that fetches. Without results there is no
such container.

The Job has no owner among the objects of the cluster: what a pod did before it was deleted is worth reading, and would
be deleted with it. ``activeDeadlineSeconds`` and ``ttlSecondsAfterFinished`` end it when nobody else does.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kubectl_otelgpu import __version__
from kubectl_otelgpu.target import Target

CAPABILITIES: Final = ("BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE")
"""A test compares them with what the agent's table of privileges says, and with deploy/kubernetes/daemonset.yaml."""
FOLDER: Final = "/run/otelgpu"
"""Where results are, in both containers."""
PROGRAM: Final = "/opt/otelgpu/bin/otelgpu"
"""In the image."""
OBSERVER: Final = "otelgpu"
KEEPER: Final = "result"

START_S: Final = 120
"""Image, start of the containers, probes in place."""
FINISH_S: Final = 120
"""Symbols are looked up and files written when the time of observing is over."""
FETCH_S: Final = 60
"""How long a result waits for somebody to fetch it."""
_USER: Final = 10001  # of the image
_RUN: Final = {"name": "run", "mountPath": FOLDER}
_TOLERATED_ANYWAY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

_KEEP: Final = """trap 'exit 0' TERM
left=$2
while [ "$left" -gt 0 ]; do
    if grep -qsa -- "$1" /proc/[0-9]*/cmdline; then left=$3; else left=$((left - 2)); fi
    sleep 2 & wait $!
done"""


_WAIT: Final = """trap 'exit 0' TERM; sleep "$0" & wait $!"""


class Order(NamedTuple):
    """What a Job is to do.

    ``seconds``: how long it observes; ``ttl``: how long it stays when it has finished; ``results``: names of files in
    :data:`FOLDER`, with the Job's name in each; ``waits``: it runs nothing, and is root, so that others' commands can;
    ``variables``: settings that are no options of its command.
    """

    command: str
    arguments: Sequence[str]
    seconds: float
    image: str
    memory_request: str
    memory_limit: str
    ttl: int
    requested_by: str
    results: tuple[str, ...] = ()
    waits: bool = False
    variables: Mapping[str, str] = MappingProxyType({})


def new_name(command: str) -> str:
    """Of a Job that does not exist yet."""
    return f"otelgpu-{command}-{secrets.token_hex(4)}"


def manifest(name: str, namespace: str, target: Target, order: Order) -> dict[str, Any]:
    """The Job, ready for ``kubectl create -f -``."""
    lasting = START_S + int(order.seconds) + FINISH_S
    labels = {
        "app.kubernetes.io/name": "otelgpu",
        "app.kubernetes.io/component": order.command,
        "app.kubernetes.io/managed-by": "kubectl-otelgpu",
    }
    annotations = {
        "otelgpu.io/target": f"{target.namespace}/{target.pod}/{target.container}"
        if target.pod
        else target.node,
        "otelgpu.io/target-uid": target.uid,
        "otelgpu.io/requested-by": order.requested_by,
        "otelgpu.io/plugin-version": __version__,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": lasting + FETCH_S,
            "ttlSecondsAfterFinished": order.ttl,
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _pod(name, target, order),
            },
        },
    }


def _pod(name: str, target: Target, order: Order) -> dict[str, Any]:
    containers = [_observer(order), *([_keeper(name, order)] if order.results else [])]
    user = 0 if order.waits else _USER
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostPID": True,
        "affinity": _on(target.node),
        "tolerations": _tolerations(target),
        "securityContext": {
            "runAsNonRoot": not order.waits,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
            "appArmorProfile": {"type": "Unconfined"},
        },
        "containers": containers,
        "volumes": [
            {"name": "run", "emptyDir": {"sizeLimit": "2Gi"}},
            {"name": "tracing", "hostPath": {"path": "/sys/kernel/tracing", "type": "Directory"}},
        ],
    }


def _observer(order: Order) -> dict[str, Any]:
    tracing = {"name": "tracing", "mountPath": "/sys/kernel/tracing", "readOnly": True}
    return {
        "name": OBSERVER,
        "image": order.image,
        "command": ["/bin/sh", "-c", _WAIT, str(int(order.seconds))] if order.waits else [PROGRAM],
        "args": list(order.arguments),
        "env": [{"name": name, "value": value} for name, value in order.variables.items()],
        "workingDir": FOLDER,
        "resources": _resources("50m", order.memory_request, order.memory_limit),
        "securityContext": _security(CAPABILITIES),
        "volumeMounts": [_RUN, tracing],
    }


def _keeper(name: str, order: Order) -> dict[str, Any]:
    """Its own arguments, and those of the ``grep`` that it runs, do not have the name as it is looked for."""
    pattern = f"[{name[0]}]{name[1:]}"
    return {
        "name": KEEPER,
        "image": order.image,
        "command": ["/bin/sh", "-c", _KEEP, "keep", pattern, str(START_S), str(FETCH_S)],
        "workingDir": FOLDER,
        "resources": _resources("10m", "16Mi", "256Mi"),
        "securityContext": _security(()),
        "volumeMounts": [_RUN],
    }


def _on(node: str) -> dict[str, Any]:
    """As DaemonSets do it: the scheduler still counts what the node has left, which ``nodeName`` would pass over."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _tolerations(target: Target) -> list[Mapping[str, Any]]:
    """What the pod tolerates, a GPU's taint and a node that takes no new pods; not one that is not ready."""
    own = [each for each in target.tolerations if each.get("key") not in _TOLERATED_ANYWAY]
    added: list[Mapping[str, Any]] = [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
    ]
    return own + [each for each in added if each not in own]


def _resources(cpu: str, request: str, limit: str) -> dict[str, Any]:
    """And no limit of CPU: what is throttled loses records."""
    return {"requests": {"cpu": cpu, "memory": request}, "limits": {"memory": limit}}


def _security(capabilities: Sequence[str]) -> dict[str, Any]:
    granted: dict[str, Any] = {"drop": ["ALL"]}
    if capabilities:
        granted["add"] = list(capabilities)
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": granted}
