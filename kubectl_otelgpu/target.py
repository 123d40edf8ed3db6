"""Which container of a pod is meant, and whether it is still the same one later. Pure.

In: a pod as the API server describes it (``core/v1`` Pod). Out: :class:`Target`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kubectl_otelgpu.faults import Fault

_DEFAULT: Final = "kubectl.kubernetes.io/default-container"


class Target(NamedTuple):
    """A container that runs. ``container_id``: without the runtime's name before it."""

    pod: str
    uid: str
    namespace: str
    node: str
    container: str
    container_id: str
    restarts: int
    tolerations: tuple[Mapping[str, Any], ...]
    note: str = ""


def names_of(pod: Mapping[str, Any]) -> list[str]:
    """Its containers that may be observed: native sidecars too."""
    spec = pod["spec"]
    sidecars = [each for each in spec.get("initContainers", ()) if each.get("restartPolicy") == "Always"]
    return [each["name"] for each in (*spec["containers"], *sidecars)]


def choose(pod: Mapping[str, Any]) -> tuple[str, str]:
    """The container that is meant where none was named, and a line that says so, "" where there is only one."""
    containers = pod["spec"]["containers"]
    named = pod["metadata"].get("annotations", {}).get(_DEFAULT)
    devices = [each["name"] for each in containers if asks_for_device(each)]
    name = named or (devices or [containers[0]["name"]])[0]
    others = [each for each in names_of(pod) if each != name]
    return name, f"container {name}; -c chooses another: {', '.join(others)}" if others else ""


def asks_for_device(container: Mapping[str, Any]) -> bool:
    """Whether a container was given a GPU, or a part of one."""
    limits = container.get("resources", {}).get("limits", {})
    return any(name.endswith(("/gpu", ".com/gpu.shared")) or "/mig-" in name for name in limits)


def status_of(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """What the kubelet says of a container; empty where it says nothing."""
    status = pod.get("status", {})
    every = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    return next((each for each in every if each["name"] == container), {})


def target_of(pod: Mapping[str, Any], container: str | None) -> Target:
    """The container to observe. Raises :class:`Fault` where there is none, or it does not run."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    names, note = names_of(pod), ""
    if container is None:
        container, note = choose(pod)
    if container not in names:
        raise Fault(f"pod {name} has no container {container}", f"it has: {', '.join(names)}")
    if pod["metadata"].get("deletionTimestamp"):
        raise Fault(f"pod {name} is being deleted")
    node = pod["spec"].get("nodeName", "")
    if not node:
        raise Fault(f"pod {name} runs on no node yet", f"kubectl -n {namespace} describe pod {name}")
    if pod.get("status", {}).get("reason") == "NodeLost":
        raise Fault(f"node {node} of pod {name} is not ready", f"kubectl describe node {node}")
    status = status_of(pod, container)
    state = status.get("state", {})
    if "running" not in state:
        kind = next(iter(state), "waiting")
        why = state.get(kind, {}).get("reason", "") or pod.get("status", {}).get("phase", "")
        raise Fault(
            f"container {container} of pod {name} does not run: {kind}{f' ({why})' if why else ''}",
            f"kubectl -n {namespace} describe pod {name}",
        )
    return Target(
        pod=name,
        uid=pod["metadata"]["uid"],
        namespace=namespace,
        node=node,
        container=container,
        container_id=status["containerID"].partition("://")[2],
        restarts=status.get("restartCount", 0),
        tolerations=tuple(pod["spec"].get("tolerations", ())),
        note=note,
    )


def target_on(node: str, namespace: str) -> Target:
    """A node, and none of its pods."""
    return Target(
        pod="",
        uid="",
        namespace=namespace,
        node=node,
        container="",
        container_id="",
        restarts=0,
        tolerations=(),
    )


def changed(target: Target, now: Mapping[str, Any] | None) -> str:
    """What became of the container meanwhile, in a line; "" while it is the same. ``now``: its pod, None when gone."""
    if now is None or now["metadata"]["uid"] != target.uid:
        return f"pod {target.pod} was deleted in the middle: the result ends there"
    status = status_of(now, target.container)
    if status.get("containerID", "").partition("://")[2] == target.container_id and "running" in status.get(
        "state", {}
    ):
        return ""
    last = status.get("lastState", {}).get("terminated") or status.get("state", {}).get("terminated") or {}
    why = f" ({last.get('reason', '')}, exit code {last.get('exitCode')})" if last else ""
    verb = "restarted" if status.get("restartCount", 0) > target.restarts else "ended"
    return f"container {target.container} {verb} in the middle{why}: the result ends there"
