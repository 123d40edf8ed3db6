"""What can go wrong in a cluster, in words that say what to do. Pure.

In: what ``kubectl`` prints when it fails, a pod as the API server describes it, events of a Job. Out: :class:`Fault`.
Sources of the shapes: messages of apiserver's ``errors.NewForbidden`` and of the admission plug-in PodSecurity;
``kubelet/images/types.go`` and ``kubelet/kuberuntime`` for the reasons of containers that wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

ROLE_FILE: Final = "deploy/kubernetes/kubectl-role.yaml"
"""What a user needs to be granted; README of the role: docs/how-to/kubectl.md."""

_FORBIDDEN: Final = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"'
    r'(?: in API group "[^"]*")?(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_SECURITY: Final = re.compile(r'violates PodSecurity "(?P<level>[^":]*)(?::[^"]*)?": (?P<what>.*)', re.DOTALL)
_NOT_FOUND: Final = re.compile(r'\(NotFound\): (?P<kind>[\w.]+) "(?P<name>[^"]*)" not found')
_NO_SERVER: Final = (
    "Unable to connect to the server",
    "was refused",
    "no such host",
    "i/o timeout",
    "TLS handshake",
)
_NO_LOGIN: Final = ("You must be logged in", "(Unauthorized)", "getting credentials")
_NO_IMAGE: Final = frozenset(
    ("ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ImageInspectError")
)
_NO_CONTAINER: Final = frozenset(("CreateContainerConfigError", "CreateContainerError", "RunContainerError"))


class Fault(Exception):
    """Why it does not go on, and what to do about it; ``transient``: trying again may help."""

    def __init__(self, message: str, hint: str = "", *, transient: bool = False) -> None:
        super().__init__(message)
        self.message, self.hint, self.transient = message, hint, transient


class Interrupted(Fault):
    """A signal came."""

    def __init__(self) -> None:
        super().__init__("interrupted: the Job is deleted")


def of_kubectl(said: str, doing: str) -> Fault:
    """From what ``kubectl`` printed on standard error; ``doing``: what it was asked to, for what is not known here."""
    if security := _SECURITY.search(said):
        return refused_by_pod_security(security["level"], security["what"], "")
    if found := _FORBIDDEN.search(said):
        where = f" in namespace {found['namespace']}" if found["namespace"] else ""
        return Fault(
            f"{found['user']} may not {found['verb']} {found['resource']}{where}",
            f"a Role with what this command needs is {ROLE_FILE}; an administrator binds it to you",
        )
    if missing := _NOT_FOUND.search(said):
        return Fault(f"there is no {missing['kind'].partition('.')[0].removesuffix('s')} {missing['name']}")
    if any(each in said for each in _NO_LOGIN):
        return Fault(
            "the API server does not know you: " + _last_line(said), "kubectl auth whoami says the same"
        )
    if any(each in said for each in _NO_SERVER):
        return Fault(
            "the API server does not answer: " + _last_line(said),
            "kubectl config current-context says which one was asked; --context chooses another",
            transient=True,
        )
    return Fault(f"{doing} failed: {_last_line(said)}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Warning:")]
    return lines[-1] if lines else "kubectl said nothing"


def refused_by_pod_security(level: str, what: str, namespace: str) -> Fault:
    """The namespace's level of the Pod Security Standards does not allow the Job's pod."""
    return Fault(
        f"Pod Security refuses the pod{f' in namespace {namespace}' if namespace else ''}: level {level!r} forbids "
        + what.strip(),
        "observing takes the level privileged: give --job-namespace a namespace that has it "
        f"(deploy/kubernetes/namespace.yaml makes one), or label this one: kubectl label namespace "
        f"{namespace or 'NAMESPACE'} pod-security.kubernetes.io/enforce=privileged --overwrite",
    )


def of_events(events: Iterable[Mapping[str, Any]], namespace: str) -> Fault | None:
    """Why the Job has no pod, by the events of the Job; None where nothing was reported."""
    for event in events:
        if event.get("reason") not in ("FailedCreate", "FailedScheduling"):
            continue
        message = str(event.get("message", ""))
        if security := _SECURITY.search(message):
            return refused_by_pod_security(security["level"], security["what"], namespace)
        if "exceeded quota" in message:
            return Fault(
                f"a quota refuses the pod: {message}", "--memory-request and --memory-limit ask for less"
            )
        return Fault(f"the cluster does not make the pod: {message}")
    return None


def of_pod(pod: Mapping[str, Any], node: str) -> Fault | None:
    """Why a pod of a Job does not run, or was ended; None where nothing speaks against it yet."""
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        if (condition.get("type"), condition.get("reason")) == ("PodScheduled", "Unschedulable"):
            message = condition.get("message", "")
            if "node.kubernetes.io/not-ready" in message or "node.kubernetes.io/unreachable" in message:
                return Fault(f"node {node} is not ready", f"kubectl describe node {node}")
            if "Insufficient" in message:
                return Fault(f"node {node} has no room: {message}", "--memory-request asks for less")
            return Fault(f"the pod cannot be placed on node {node}: {message}")
    for each in status.get("containerStatuses", ()):
        waiting = each.get("state", {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _NO_IMAGE:
            return Fault(
                f"node {node} cannot get the image {each.get('image', '')}: {reason}: {message}",
                "nobody publishes it: build it (deploy/Dockerfile), push it to your registry and name it by --image",
            )
        if reason in _NO_CONTAINER:
            return Fault(f"node {node} cannot start the container {each['name']}: {reason}: {message}")
    if status.get("reason") in (
        "Evicted",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "NodeAffinity",
        "NodeLost",
    ):
        return Fault(f"node {node} ended the pod: {status['reason']}: {status.get('message', '')}")
    if status.get("reason") == "DeadlineExceeded":
        return Fault("the Job ran into its activeDeadlineSeconds")
    return None


_OF_GPUS: Final = {"all", "cuda", "kernel", "mem", "nccl"}
_GPU_SAMPLES: Final = re.compile(r"\b(?:cuda_|kernel_launch|gpu_kernel|device_memory_|nccl_)\w+ [1-9]")


def no_gpu_work(kinds: str, log: Iterable[str]) -> bool:
    """Whether profiles of GPU work were asked for, and the last line of otelgpu's counts none of them."""
    asked = bool(_OF_GPUS.intersection(word.strip() for word in kinds.split(",")))
    written = [line for line in log if ": written to " in line]
    return asked and bool(written) and not _GPU_SAMPLES.search(written[-1])


def of_exit(terminated: Mapping[str, Any], log: str, memory_limit: str) -> Fault | None:
    """What it means that otelgpu ended as it did; None: well."""
    if terminated.get("reason") == "OOMKilled":
        return Fault(
            f"otelgpu needed more memory than its limit of {memory_limit}", "--memory-limit raises it"
        )
    code = terminated.get("exitCode", 0)
    if code == 0:
        return None
    last = [line for line in log.splitlines() if line.strip()]
    return Fault(f"otelgpu ended with exit code {code}: {' / '.join(last[-2:]) or 'it said nothing'}")
