"""The chart before a real API server, by a real Helm: installed, upgraded, rolled back, tested and taken away again.

There is no node: what a pod does is in ``test_helm.py``. In the place of the kubelet a test says how a pod ended.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.helm import NAMESPACE, RELEASE, Helm, objects_of
from tests.cluster.node import ApiServer, wait_until
from tests.deploy.custom_resources import FOLDER as CRDS
from tests.deploy.manifests import CHART, HelmError, collector_files, missing_helm, read_objects
from tests.rig.llm_server import RigError

pytestmark = pytest.mark.skipif(missing_helm() is not None, reason=str(missing_helm()))

MONITORED = (
    "--set=podMonitor.enabled=true",
    "--set=podMonitor.interval=30s",
    "--set=serviceMonitor.enabled=true",
    "--set=serviceMonitor.services=true",
    "--set=prometheusRule.enabled=true",
    "--set=dashboards.enabled=true",
    "--set=dashboards.annotations.grafana_folder=otelgpu",
)
TRACES = "--set=test.traces=http://jaeger.monitoring:16686/api/v3/traces/{id}"
REQUEST = "--set=test.request=http://llm-server.serving:8000/health"


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    api_server.namespace(NAMESPACE, "privileged")
    return api_server


@pytest.fixture
def helm(server: ApiServer, tmp_path: Path) -> Iterator[Helm]:
    """Whatever a test has installed is taken away after it, and then nothing is left of it."""
    before = objects_of(server)
    command = Helm(server, tmp_path)
    yield command
    if command("list", "-q", "--all").split():
        command("uninstall", RELEASE)
    assert objects_of(server) - before == set()


@pytest.fixture
def operator(server: ApiServer) -> Iterator[None]:
    """The Prometheus operator's kinds."""
    server.kubectl("apply", "--server-side", "-f", str(CRDS))
    server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    yield
    server.kubectl("delete", "-f", str(CRDS))


def live(server: ApiServer, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.kubectl("-n", NAMESPACE, "get", kind, name, "-o", "json"))
    return found


def is_within(given: Any, taken: Any) -> bool:
    """Whether nothing of it was cut off as unknown; the server adds defaults."""
    if isinstance(given, dict) and isinstance(taken, dict):
        return all(key in taken and is_within(each, taken[key]) for key, each in given.items())
    if isinstance(given, list) and isinstance(taken, list):
        return len(given) == len(taken) and all(map(is_within, given, taken))
    return bool(given == taken)


@pytest.mark.parametrize("mode", ["daemonset", "sidecar"])
def test_the_server_would_take_in_all_of_it(helm: Helm, mode: str) -> None:
    printed = helm.put("install", "--dry-run=server", TRACES, REQUEST, mode=mode)
    assert "STATUS: pending-install" in printed
    assert "otelgpu check" in printed.partition("NOTES:")[2]


@pytest.mark.usefixtures("operator")
def test_what_is_installed_is_what_is_rendered_with_the_operators_kinds_among_it(
    server: ApiServer, helm: Helm
) -> None:
    helm.put("install", *MONITORED)
    assert helm.history() == [(1, "deployed")]
    installed = read_objects(helm("get", "manifest", RELEASE))
    kinds = {kind for kind, _ in installed}
    assert {
        "DaemonSet",
        "Service",
        "NetworkPolicy",
        "PodMonitor",
        "ServiceMonitor",
        "PrometheusRule",
    } <= kinds
    names = {tuple(each.split("/")[1:]) for each in objects_of(server)}
    assert {("PodMonitor", "otelgpu"), ("DaemonSet", "otelgpu-collector")} <= names
    for kind, name in installed:
        assert (kind, name) in names
    for kind, name in installed:
        if kind.endswith(("Monitor", "Rule")):
            taken = live(server, f"{kind.lower()}s.monitoring.coreos.com", name)["spec"]
            assert is_within(installed[kind, name]["spec"], taken), kind


def test_without_the_operators_kinds_the_release_is_refused_and_nothing_is_made(helm: Helm) -> None:
    with pytest.raises(
        HelmError, match=r'no matches for kind "PodMonitor" in version "monitoring\.coreos\.com/v1"'
    ):
        helm.put("install", *MONITORED)


def test_an_upgrade_changes_settings_and_a_rollback_takes_them_back(server: ApiServer, helm: Helm) -> None:
    def agent() -> dict[str, Any]:
        return dict(live(server, "daemonset", "otelgpu")["spec"]["template"])

    helm.put("install", "--set=config.detail=phases")
    first = agent()
    helm.put("upgrade", "--set=config.detail=all", "--set=resources.limits.memory=512Mi")
    second = agent()
    assert second["spec"]["containers"][0]["resources"]["limits"] == {"memory": "512Mi"}
    assert first["metadata"]["annotations"] != second["metadata"]["annotations"]  # the agent starts anew
    assert live(server, "configmap", "otelgpu")["data"] == {"config.yaml": "detail: all\n"}
    helm("rollback", RELEASE, "1")
    assert agent() == first
    assert live(server, "configmap", "otelgpu")["data"] == {"config.yaml": "detail: phases\n"}
    assert helm.history() == [(1, "superseded"), (2, "superseded"), (3, "deployed")]


def test_an_upgrade_takes_away_what_is_switched_off(server: ApiServer, helm: Helm) -> None:
    helm.put("install", "--set=dashboards.enabled=true")
    assert len(live(server, "configmap", "otelgpu-dashboards")["data"]) == 6
    helm.put("upgrade", "--set=networkPolicy.enabled=false")
    for kind, name in (("configmap", "otelgpu-dashboards"), ("networkpolicy", "otelgpu")):
        with pytest.raises(RigError, match="NotFound"):
            live(server, kind, name)


def test_who_watches_may_ask_while_the_switch_is_on_and_the_agent_has_no_token(
    server: ApiServer, helm: Helm, tmp_path: Path
) -> None:
    def may_watch() -> bool:
        account = "--as=system:serviceaccount:otelgpu:otelgpu"
        try:
            return server.kubectl("auth", "can-i", "watch", "pods", "-A", account).strip() == "yes"
        except RigError:  # it fails where it is not allowed
            return False

    older = Path(shutil.copytree(CHART, tmp_path / "older"))  # of when there were no profiles of pods
    known = yaml.safe_load((older / "values.yaml").read_text())
    del known["switch"]["profiles"]
    (older / "values.yaml").write_text(yaml.safe_dump(known))
    options = ("--set=switch.enabled=true", "--set=switch.apiServer.cidrs={10.97.0.1/32}")
    helm("install", RELEASE, older, *collector_files("daemonset"), *options)
    spec = live(server, "daemonset", "otelgpu")["spec"]["template"]["spec"]
    with_token = [
        each["name"]
        for each in spec["containers"]
        if "api-server" in {mount["name"] for mount in each["volumeMounts"]}
    ]
    assert (with_token, spec["automountServiceAccountToken"]) == (["watch-pods"], False)
    assert may_watch()
    helm("upgrade", RELEASE, CHART, "--reuse-values", "--set=switch.profiles.enabled=true")
    spec = live(server, "daemonset", "otelgpu")["spec"]["template"]["spec"]
    assert "--keep=8" in next(each for each in spec["containers"] if each["name"] == "profile-pods")["args"]
    helm.put("upgrade", "--set=switch.enabled=false")
    assert not may_watch()


@pytest.mark.parametrize(
    ("option", "reported"),
    [
        ("--set=mode=host", "mode"),
        ("--set=podMonitor.interval=soon", "podMonitor"),
        ("--set=colector.env=a", "colector"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_made(helm: Helm, option: str, reported: str) -> None:
    with pytest.raises(HelmError, match=rf"(?s)specifications of the schema.*{reported}"):
        helm.put("install", option)
    assert helm("list", "-q", "--all") == ""


def test_who_may_do_nothing_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r'is forbidden: User "developer" cannot get resource "\w+"'):
        helm.put("install", who="developer")


class Kubelet:
    """Says of the test's pod how it ended, once it is there; keeps what it saw of it."""

    def __init__(self, server: ApiServer, phase: str) -> None:
        self._server, self._phase = server, phase
        self.seen: set[str] = set()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _work(self) -> None:
        def there() -> bool:
            return bool(self._server.items("pods", "-n", NAMESPACE))

        wait_until(there, "the pod of helm test", 60)
        self.seen = objects_of(self._server)
        patch = json.dumps({"status": {"phase": self._phase}})
        subresource = ("--subresource=status", "--type=merge", "-p", patch)
        self._server.kubectl("-n", NAMESPACE, "patch", "pod", "otelgpu-test", *subresource)


def made_for_test(objects: set[str]) -> set[str]:
    return {each.split("/")[1] for each in objects if each.endswith("/otelgpu-test")}


def test_helm_test_makes_what_it_needs_and_takes_it_away(server: ApiServer, helm: Helm) -> None:
    helm.put("install")
    assert made_for_test(objects_of(server)) == set()
    with Kubelet(server, "Succeeded") as kubelet:
        printed = helm("test", RELEASE, "--timeout=90s")
    assert "Phase:          Succeeded" in printed
    assert made_for_test(kubelet.seen) >= {"ConfigMap", "Service", "NetworkPolicy", "Pod"}
    assert made_for_test(objects_of(server)) == set()


def test_a_test_that_failed_leaves_its_pod_and_nothing_else(server: ApiServer, helm: Helm) -> None:
    helm.put("install")
    with Kubelet(server, "Failed"), pytest.raises(HelmError, match="otelgpu-test"):
        helm("test", RELEASE, "--timeout=90s")
    assert made_for_test(objects_of(server)) == {"Pod"}
    with Kubelet(server, "Succeeded"):  # the next one begins by deleting it
        helm("test", RELEASE, "--timeout=90s")
    assert made_for_test(objects_of(server)) == set()
