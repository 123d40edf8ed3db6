"""deploy/helm: the chart by a real Helm, which must say the same as deploy/kubernetes does."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from otelgpu import __version__
from otelgpu.config import Config
from tests.deploy.manifests import (
    CHART,
    COLLECTOR_CONFIG,
    DEPLOY,
    HELM,
    KUBERNETES,
    HelmError,
    Objects,
    agent_of,
    container,
    differences,
    manifests,
    missing_helm,
    patched,
    render,
)

pytestmark = pytest.mark.skipif(missing_helm() is not None, reason=str(missing_helm()))

PLAIN = {"daemonset": ("daemonset", "collector", "networkpolicy"), "sidecar": ("sidecar",)}
WORKLOADS = {"daemonset": ("DaemonSet", "otelgpu"), "sidecar": ("Deployment", "llm-server")}
SWITCH = ("--set=switch.enabled=true", "--set=switch.apiServer.cidrs={10.0.0.1/32}")
PROFILES = ("--set=switch.profiles.enabled=true",)
DASHBOARDS = DEPLOY / "grafana" / "dashboards"
# What an installed chart says besides: whose it is, when to start pods anew, and where images are taken from.
CHARTS_OWN = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
)


def assert_same(plain: Objects, rendered: Objects) -> None:
    """Of a chart without settings and the files that it stands for."""
    assert set(rendered) - set(plain) == {("ConfigMap", "otelgpu-collector")}
    assert set(plain) <= set(rendered)
    for key, each in plain.items():
        other = rendered[key]
        for own in CHARTS_OWN:
            other["metadata"].get("labels", {}).pop(own, None)
        each["metadata"].setdefault("labels", {})
        each["metadata"].setdefault("namespace", other["metadata"].get("namespace"))
        found = set(differences(each, other))
        left = {
            path for path in found if not path.endswith((".imagePullPolicy", "template.metadata.annotations"))
        }
        left.discard("metadata.namespace")
        left.discard("metadata.labels")
        assert left == set(), key


@pytest.mark.parametrize("mode", PLAIN)
def test_chart_says_what_the_plain_manifests_say(mode: str) -> None:
    assert_same(manifests(*PLAIN[mode]), render(mode))


def test_the_switch_is_what_the_plain_manifest_and_its_patch_are() -> None:
    plain = manifests("daemonset", "collector", "switch")
    agent = ("DaemonSet", "otelgpu")
    patch = yaml.safe_load((DEPLOY / "kubernetes/patches/switch.yaml").read_text())
    plain[agent] = patched(plain[agent], patch)
    rendered = render("daemonset", "--set=switch.enabled=true", "--set=networkPolicy.enabled=false")
    assert_same(plain, rendered)
    spec = rendered[agent]["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["containers"]] == [
        "otelgpu",
        "watch-pods",
    ]  # exec and logs: the agent's


def test_profiles_of_pods_are_what_the_plain_manifest_and_its_patches_are() -> None:
    plain = manifests("daemonset", "collector", "switch")
    agent = ("DaemonSet", "otelgpu")
    for patch in ("switch", "switch-profiles"):
        said = yaml.safe_load((DEPLOY / f"kubernetes/patches/{patch}.yaml").read_text())
        plain[agent] = patched(plain[agent], said)
    rendered = render(
        "daemonset", "--set=switch.enabled=true", *PROFILES, "--set=networkPolicy.enabled=false"
    )
    assert_same(plain, rendered)


def test_what_takes_profiles_of_pods_has_the_agents_privileges_and_settings_and_no_token() -> None:
    objects = render("daemonset", *SWITCH, *PROFILES, "--set=config.detail=phases")
    for each in objects.values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    spec = objects["DaemonSet", "otelgpu"]["spec"]["template"]["spec"]
    agent, taker = container(spec, "otelgpu"), container(spec, "profile-pods")
    assert taker["securityContext"] == agent["securityContext"]
    mounted = {each["name"]: each.get("readOnly", False) for each in taker["volumeMounts"]}
    assert mounted == {"tracing": True, "run": True, "profiles": False, "config": True}
    assert "--profiles" in container(spec, "watch-pods")["args"]


def test_profiles_of_pods_are_refused_without_what_hears_of_them() -> None:
    for mode in PLAIN:
        with pytest.raises(HelmError, match=r"it needs switch\.enabled, which is of mode daemonset"):
            render(mode, *PROFILES)
    with pytest.raises(HelmError, match="switch is of mode daemonset"):
        render("sidecar", "--set=switch.enabled=true", *PROFILES)


def test_the_agents_policy_lets_the_switch_reach_the_api_server_and_nothing_else() -> None:
    key = ("NetworkPolicy", "otelgpu")
    without, given = (render("daemonset", *options)[key]["spec"] for options in ((), SWITCH))
    assert given["egress"][:-1] == without["egress"]
    assert given["egress"][-1] == {
        "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
        "ports": [{"port": 443}, {"port": 6443}],
    }
    # Where the chart does not limit what the agent reaches, nobody has to say where that server is.
    elsewhere = ("--set=switch.enabled=true", "--set=endpoint=http://collector.example:4317")
    assert "egress" not in render("daemonset", *elsewhere)[key]["spec"]


@pytest.mark.parametrize(
    ("mode", "reported"),
    [("daemonset", "switch.apiServer.cidrs"), ("sidecar", "switch is of mode daemonset")],
)
def test_a_switch_that_cannot_work_is_refused(mode: str, reported: str) -> None:
    with pytest.raises(HelmError, match=reported):
        render(mode, "--set=switch.enabled=true")


@pytest.mark.parametrize("mode", PLAIN)
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--set=seccompProfile.type=Localhost", "--set=seccompProfile.localhostProfile=otelgpu.json"),
        (
            "--set=runtimeClassName=nvidia",
            "--set=priorityClassName=system-node-critical",
        ),
        (
            "--set=collector.enabled=false",
            "--set=endpoint=http://collector.example:4317",
            "--set=config.detail=phases",
        ),
        ("--set=imagePullSecrets[0].name=registry", "--set=podLabels.a=b", "--set=podAnnotations.a=b"),
        (
            "--set=collector.env[0].name=JAEGER_ENDPOINT",
            "--set=collector.env[0].value=http://jaeger.example:4317",
        ),
    ],
    ids=["defaults", "seccomp", "runtime", "elsewhere", "labels", "environment"],
)
def test_what_is_rendered_has_only_fields_that_kubernetes_knows(mode: str, options: tuple[str, ...]) -> None:
    for each in render(mode, *options).values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_the_switch_has_only_fields_that_kubernetes_knows() -> None:
    variable = ("--set=switch.env[0].name=KUBERNETES_SERVICE_HOST", "--set=switch.env[0].value=10.0.0.1")
    objects = render("daemonset", *SWITCH, *variable)
    for each in objects.values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    spec = objects["DaemonSet", "otelgpu"]["spec"]["template"]["spec"]
    names = [each["name"] for each in container(spec, "watch-pods")["env"]]
    assert names == ["OTELGPU_NODE_NAME", "KUBERNETES_SERVICE_HOST"]


@pytest.mark.parametrize("mode", PLAIN)
def test_collector_gets_the_files_of_the_repository(mode: str) -> None:
    data = render(mode)["ConfigMap", "otelgpu-collector"]["data"]
    for key, source in ((f"{mode}.yaml", f"{mode}.yaml"), ("backend.yaml", "backends/jaeger.yaml")):
        assert yaml.safe_load(data[key]) == yaml.safe_load((COLLECTOR_CONFIG / source).read_text())


def test_settings_reach_the_agent_and_a_change_starts_it_anew() -> None:
    one, other = (render("daemonset", f"--set=config.detail={detail}") for detail in ("phases", "all"))
    settings = yaml.safe_load(one["ConfigMap", "otelgpu"]["data"]["config.yaml"])
    assert settings == {"detail": "phases"}
    assert set(settings) <= set(Config.__struct_fields__)
    annotations = [
        each["DaemonSet", "otelgpu"]["spec"]["template"]["metadata"]["annotations"] for each in (one, other)
    ]
    assert annotations[0] != annotations[1]


def test_dashboards_come_where_they_are_asked_for() -> None:
    assert ("ConfigMap", "otelgpu-dashboards") not in render("daemonset")
    found = render("daemonset", "--set=dashboards.enabled=true")["ConfigMap", "otelgpu-dashboards"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}
    assert len(found["data"]) == 6


def test_agent_has_no_way_to_the_api_server() -> None:
    objects = render("daemonset")
    spec = objects["DaemonSet", "otelgpu"]["spec"]["template"]["spec"]
    assert ("ClusterRole", "otelgpu") not in objects
    assert spec["automountServiceAccountToken"] is False


def test_profile_of_the_node_replaces_the_runtimes() -> None:
    options = ("--set=seccompProfile.type=Localhost", "--set=seccompProfile.localhostProfile=otelgpu.json")
    for mode in PLAIN:
        spec = render(mode, *options)[WORKLOADS[mode]]["spec"]["template"]["spec"]
        security = {**spec["securityContext"], **agent_of(spec)["securityContext"]}
        assert security["seccompProfile"] == {"type": "Localhost", "localhostProfile": "otelgpu.json"}


@pytest.mark.parametrize(
    ("option", "reported"),
    [
        ("--set=mode=host", "mode"),
        ("--set=capabilities={CAP_BPF}", "capabilities"),
        ("--set=seccompProfile.type=Localhost", "localhostProfile"),
        ("--set=endpoint=collector:4317", "endpoint"),
        ("--set=colector.enabled=false", "colector"),
    ],
)
def test_wrong_value_is_refused_by_its_name(option: str, reported: str) -> None:
    with pytest.raises(HelmError, match=reported):
        render("daemonset", option)


def test_missing_files_of_the_collector_are_asked_for() -> None:
    with pytest.raises(HelmError, match=r"--set-file collector.config=collector-config/sidecar.yaml"):
        render("sidecar", collector=False)
    with pytest.raises(HelmError, match="endpoint"):
        render("daemonset", "--set=collector.enabled=false")


def test_chart_is_of_this_version_and_lint_finds_nothing(tmp_path: Path) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    options = [f"--set-file=collector.config={COLLECTOR_CONFIG}/daemonset.yaml", "--set=collector.backend=x"]
    linted = subprocess.run(
        [HELM, "lint", CHART, "--strict", f"--kube-version={KUBERNETES}", *options],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize(
    ("mode", "workload"), [("daemonset", "daemonset/otelgpu"), ("sidecar", "deployment/llm-server")]
)
def test_notes_report_how_to_look_at_the_agent(mode: str, workload: str, tmp_path: Path) -> None:
    # `helm template` leaves the notes out, and `helm install` wants a cluster: they become a template of their own.
    chart = Path(shutil.copytree(CHART, tmp_path / "otelgpu"))
    notes = (chart / "templates/NOTES.txt").read_text()
    head = "kind: Notes\nmetadata: {name: notes}\ntext: |\n"
    (chart / "templates/notes.yaml").write_text(head + textwrap.indent(notes, "  ", lambda line: True))
    shown = render(mode, chart=chart)["Notes", "notes"]["text"]
    assert f"kubectl -n otelgpu exec {workload} " in shown
    assert "-- otelgpu check" in shown
    assert "kubectl label namespace otelgpu pod-security.kubernetes.io/enforce=privileged" in shown
