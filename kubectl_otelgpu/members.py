"""Pods of a job: those that can be observed, and why the others cannot. Pure, but for the one question to the cluster.

In: a job's name or a label selector, pods as the API server lists them. Out: :class:`Members`.
Sources of the labels: ``batch/v1`` (``JobCompletionIndexAnnotation``, ``JobNameLabel``), Kubeflow's training operator
(``kubeflow.org/v1`` ``JobNameLabel``, ``ReplicaIndexLabel``), JobSet and Volcano
(``jobset.sigs.k8s.io``, ``volcano.sh``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kubectl_otelgpu.client import Client
from kubectl_otelgpu.faults import Fault
from kubectl_otelgpu.target import Target, target_of

JOB_LABELS: Final = (
    "batch.kubernetes.io/job-name",
    "job-name",  # before Kubernetes 1.27
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "volcano.sh/job-name",
)
"""Which pods are a job's: tried in turn."""
NUMBERS: Final = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "volcano.sh/task-index",
)
"""Which of its pods one is: a label, or an annotation."""
MOST_PODS: Final = 64
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class Missing(NamedTuple):
    """A pod of which there is no recording."""

    pod: str
    number: str  # among the job's pods; "": it has none
    why: str

    @property
    def line(self) -> str:
        """In words."""
        return f"{self.pod}{f' (index {self.number})' if self.number else ''}: {self.why}"


class Members(NamedTuple):
    """Of a job. ``numbers``: of all pods, by name."""

    targets: Sequence[Target]
    missing: Sequence[Missing]
    numbers: Mapping[str, str]


def pods_of(client: Client, job: str | None, selector: str | None, namespace: str) -> list[dict[str, Any]]:
    """Of a job by its name, or with labels. Raises :class:`Fault` where there are none."""
    if (job is None) == (selector is None):
        raise Fault("give a job, or its pods by -l SELECTOR")
    if selector is not None:
        found = client.items("pods", namespace, "-l", selector)
        if not found:
            raise Fault(f"there is no pod in namespace {namespace} with labels {selector}")
        return found
    assert job is not None
    name = job.rpartition("/")[2]
    if not _NAME.fullmatch(name):
        raise Fault(f"{job!r} is no name of a job", "pods by their labels: -l KEY=VALUE")
    for label in JOB_LABELS:
        if found := client.items("pods", namespace, "-l", f"{label}={name}"):
            return found
    raise Fault(
        f"there is no pod of a job {name} in namespace {namespace}", "-l SELECTOR takes pods by their labels"
    )


def members_of(pods: Sequence[Mapping[str, Any]], container: str | None) -> Members:
    """Those that can be observed. Raises :class:`Fault` where there are none, or too many."""
    targets: list[Target] = []
    missing: list[Missing] = []
    numbers = {pod["metadata"]["name"]: number_of(pod) for pod in pods}
    for pod in pods:
        name = pod["metadata"]["name"]
        try:
            targets.append(target_of(pod, container))
        except Fault as fault:
            missing.append(Missing(name, numbers[name], fault.message))
    running = {numbers[each.pod] for each in targets} - {""}
    missing = [each for each in missing if each.number not in running]  # tried again, in another pod
    if not targets:
        raise Fault("no pod of the job runs: " + "; ".join(each.line for each in missing[:3]))
    if len(targets) > MOST_PODS:
        raise Fault(
            f"the job has {len(targets)} pods: {MOST_PODS} at most are observed at once", "-l takes some"
        )
    return Members(targets, missing, numbers)


def number_of(pod: Mapping[str, Any]) -> str:
    """Which of its job's pods one is; "": nobody says."""
    metadata = pod["metadata"]
    said = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
    return next((said[key] for key in NUMBERS if key in said), "")
