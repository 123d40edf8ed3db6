"""The chart on a real node: a real Helm installs it, its agents observe, ``helm test`` finds what it sent delivered.

And an annotation of a pod is heard of, and what became of it is an event that the Collector has.

No kube-proxy and no DNS run on it: the Collector is told where the API server is, the agents where the Collector is,
and the test where its node's agent is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.helm import NAMESPACE, RELEASE, Helm
from tests.cluster.node import BUSYBOX, Cluster, simple_pod, wait_until
from tests.cluster.test_deploy import AGENT, API_SERVER, BACKEND, COLLECTOR, logs, pod_of
from tests.deploy.manifests import CHART, HelmError, missing_helm

BUSY = "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; usleep 20000; done"

pytestmark = pytest.mark.skipif(missing_helm() is not None, reason=str(missing_helm()))


@pytest.fixture(scope="module")
def installed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    """The chart as the manual installs it, and afterwards no pod of it."""
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")
    bound = ("otelgpu-collector", "otelgpu-watch-pods")
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", *bound, "--ignore-not-found")
    cluster.namespace(NAMESPACE, "privileged")
    switch = {
        "enabled": True,
        "env": API_SERVER,
        "apiServer": {"cidrs": ["10.97.0.1/32"], "ports": [26443]},
        "profiles": {"enabled": True},
    }
    values = {"collector": {"env": API_SERVER}, "switch": switch}
    folder: Path = tmp_path_factory.mktemp("helm")
    (folder / "backend.yaml").write_text(yaml.safe_dump(BACKEND))
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    helm = Helm(cluster, folder)
    given: tuple[str, ...] = (
        f"--values={folder / 'values.yaml'}",
        f"--set-file=collector.backend={folder / 'backend.yaml'}",
    )
    helm.put("install", *given)
    collector = pod_of(cluster, NAMESPACE, COLLECTOR)["status"]["podIP"]
    given = (*given, f"--set=endpoint=http://{collector}:4317")
    helm.put("upgrade", *given)
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/otelgpu", "--timeout=110s")
    agent = pod_of(cluster, NAMESPACE, AGENT)["status"]["podIP"]
    helm.put("upgrade", *given, f"--set=test.agent=http://{agent}:13134")
    yield helm
    helm("uninstall", RELEASE)
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", "otelgpu-test", "--ignore-not-found")
    wait_until(lambda: cluster.items("pods", "-n", NAMESPACE) == [], "the chart's pods to be gone")


def test_helm_test_finds_that_its_requests_were_delivered(installed: Helm) -> None:
    assert "Phase:          Succeeded" in installed("test", RELEASE, "--timeout=150s")


def test_an_annotation_of_a_pod_is_heard_of_and_what_became_of_it_is_an_event(
    cluster: Cluster, installed: Helm
) -> None:
    cluster.namespace("annotated")
    pod = simple_pod("looked-at", BUSYBOX, ["sh", "-c", BUSY])
    pod["metadata"] |= {"namespace": "annotated", "annotations": {"otelgpu.io/detail": "all 2m"}}
    cluster.apply(pod)
    cluster.wait_ready("looked-at", "annotated")
    uid = cluster.pod("looked-at", "annotated")["metadata"]["uid"]
    event = ("EventName: otelgpu.switch", f"k8s.pod.uid: Str({uid})", "otelgpu.switch.state: Str(began)")
    cluster.kubectl("annotate", "pod", "looked-at", "-n", "annotated", "otelgpu.io/profile=2s")
    try:
        wait_until(
            lambda: all(each in logs(cluster, NAMESPACE, COLLECTOR, "collector") for each in event),
            "the event of the switch",
            60,
        )
        ended = re.compile(r"a profile of 2 s ended: over: ([0-9]+) samples in (/[^ )]+\.pb\.gz)")
        said: list[tuple[str, str]] = []  # kept when seen: the kubelet turns to a new file of a long log
        wait_until(
            lambda: bool(
                said.extend(ended.findall(logs(cluster, NAMESPACE, COLLECTOR, "collector"))) or said
            ),
            "the event of the profile",
            60,
        )
        samples, file = said[0]
        assert int(samples) > 0
        agent = pod_of(cluster, NAMESPACE, AGENT)["metadata"]["name"]
        inside = ("-n", NAMESPACE, "exec", agent, "-c", "profile-pods", "--")
        assert int(cluster.kubectl(*inside, "stat", "-c", "%s", file)) > 100
    finally:
        cluster.kubectl("delete", "pod", "looked-at", "-n", "annotated")


def test_the_pod_of_a_test_that_failed_says_what_does_not_answer(cluster: Cluster, installed: Helm) -> None:
    installed(
        "upgrade", RELEASE, CHART, "--reuse-values",
        "--set=test.agent=http://127.0.0.1:9", "--set=test.timeoutSeconds=10",
    )  # fmt: skip
    with pytest.raises(HelmError, match="otelgpu-test"):
        installed("test", RELEASE, "--timeout=150s")
    said = cluster.kubectl("-n", NAMESPACE, "logs", "otelgpu-test")
    assert said.startswith("not found: the agent of this node does not answer at http://127.0.0.1:9: ")
