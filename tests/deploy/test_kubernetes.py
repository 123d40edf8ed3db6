"""deploy/kubernetes: what a strict API server would refuse, and what the files promise each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from otelgpu import __version__
from otelgpu.kernel.privileges import capabilities
from otelgpu.processes.kubernetes import OWN_VARIABLES
from tests.deploy.manifests import COLLECTOR_CONFIG, DEPLOY, ROOT, agent_of, container, manifests, pod_specs

FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.30", "1.34", "1.37")  # the oldest that has every field, and newer ones
WORKLOADS = {"daemonset": ("DaemonSet", "otelgpu"), "sidecar": ("Deployment", "llm-server")}


def spec_of(manifest: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifests(manifest)[WORKLOADS[manifest]]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_manifest_has_only_fields_that_kubernetes_knows(path: Path, version: str) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_field_that_is_misspelt_is_found() -> None:
    (document,) = yaml.safe_load_all((DEPLOY / "kubernetes/networkpolicy.yaml").read_text().split("---")[0])
    document["spec"]["ingres"] = document["spec"].pop("ingress")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("manifest", WORKLOADS)
def test_agent_has_no_more_privileges_than_it_needs(manifest: str) -> None:
    spec = spec_of(manifest)
    security = {**spec["securityContext"], **agent_of(spec)["securityContext"]}
    always = [need for need in capabilities.NEEDS if need in _NEEDS_OF_A_POD]
    needed = {each.name for need in always for each in need.capabilities}
    assert security["runAsNonRoot"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    assert set(security["capabilities"]["add"]) == needed
    assert security["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")


_NEEDS_OF_A_POD = (
    capabilities.LOADING,
    capabilities.OTHER_PROCESSES,
    capabilities.OTHER_FILES,
    capabilities.REPLACED_FILES,
)


@pytest.mark.parametrize("manifest", WORKLOADS)
def test_agent_is_reported_its_node_and_pod(manifest: str) -> None:
    variables = {each["name"]: each for each in agent_of(spec_of(manifest))["env"]}
    paths = {name: variables[name]["valueFrom"]["fieldRef"]["fieldPath"] for name in OWN_VARIABLES}
    assert paths == {
        "OTELGPU_NODE_NAME": "spec.nodeName",
        "OTELGPU_POD_NAME": "metadata.name",
        "OTELGPU_POD_NAMESPACE": "metadata.namespace",
        "OTELGPU_POD_UID": "metadata.uid",
    }


@pytest.mark.parametrize("manifest", WORKLOADS)
def test_both_manifests_run_the_same_agent(manifest: str) -> None:
    agent, other = agent_of(spec_of(manifest)), agent_of(spec_of("daemonset"))
    same = ("image", "args", "resources", "volumeMounts")
    assert [agent[key] for key in same] == [other[key] for key in same]


def test_sidecars_of_a_pod_are_up_before_the_service_and_share_its_processes() -> None:
    spec = spec_of("sidecar")
    assert spec["shareProcessNamespace"] is True
    for each in spec["initContainers"]:
        assert (each["restartPolicy"], "startupProbe" in each) == ("Always", True)


def test_images_are_of_the_versions_that_are_tested() -> None:
    images = {
        each["image"]
        for path in FILES
        for spec in pod_specs(manifests(path.stem))
        for each in [*spec.get("initContainers", []), *spec["containers"]]
    }
    recipe = yaml.safe_load((ROOT / "tests/backends/ocb.yaml").read_text())
    collector = f"otel/opentelemetry-collector-contrib:{recipe['dist']['version']}"
    assert images == {f"otelgpu:{__version__}", collector, "llm-server:latest"}


@pytest.mark.parametrize(("manifest", "file"), [("collector", "daemonset.yaml"), ("sidecar", "sidecar.yaml")])
def test_collector_reads_files_that_the_documented_command_puts_into_its_config_map(
    manifest: str, file: str
) -> None:
    text = (DEPLOY / "kubernetes" / f"{manifest}.yaml").read_text()
    sources = re.findall(r"--from-file=(?:([\w.]+)=)?(collector-config/[\w./-]+)", text)
    keys = {key or Path(source).name: ROOT / source for key, source in sources}
    assert all(path.is_file() for path in keys.values())

    spec = next(spec for spec in pod_specs(manifests(manifest)))
    collector = container(spec, "collector")
    read = {argument.removeprefix("--config=/etc/otelcol/") for argument in collector["args"]}
    assert read == set(keys) == {file, "backend.yaml"}


def test_collector_of_a_node_may_not_do_more_than_read() -> None:
    role = manifests("collector")["ClusterRole", "otelgpu-collector"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_role_of_the_plug_in_lets_nobody_change_what_he_did_not_make() -> None:
    roles = manifests("kubectl-role")
    verbs = {
        (name, resource): set(rule["verbs"])
        for (_, name), role in roles.items()
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    assert {resource for (_, resource), allowed in verbs.items() if allowed - {"get", "list", "watch"}} == {
        "jobs",
        "pods/exec",
    }
    assert not any("*" in key[1] or "*" in allowed for key, allowed in verbs.items())
    assert verbs["otelgpu-kubectl-target", "pods"] == {"get", "list"}


def test_agent_has_no_way_to_the_api_server() -> None:
    assert spec_of("daemonset")["automountServiceAccountToken"] is False
    bindings = manifests("daemonset", "collector", "namespace")
    bound = [
        subject["name"]
        for key, each in bindings.items()
        if "Binding" in key[0]
        for subject in each["subjects"]
    ]
    assert bound == ["otelgpu-collector"]


def test_network_policies_and_the_service_select_pods_that_there_are() -> None:
    objects = manifests("daemonset", "collector", "networkpolicy")
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for key, each in objects.items()
        if key[0] == "DaemonSet"
    ]
    selectors = [
        each["spec"].get("podSelector", {}).get("matchLabels") or each["spec"]["selector"]
        for key, each in objects.items()
        if key[0] in ("NetworkPolicy", "Service")
    ]
    assert len(selectors) == 3
    assert all(any(selector.items() <= each.items() for each in labels) for selector in selectors)


def test_memory_limit_of_a_collector_leaves_room_for_what_its_limiter_allows() -> None:
    for manifest, file in (("collector", "daemonset.yaml"), ("sidecar", "sidecar.yaml")):
        configured = yaml.safe_load((COLLECTOR_CONFIG / file).read_text())
        allowed = int(re.search(r"\d+", configured["processors"]["memory_limiter"]["limit_mib"])[0])  # type: ignore[index]
        collector = container(next(pod_specs(manifests(manifest))), "collector")
        limit = int(collector["resources"]["limits"]["memory"].removesuffix("Mi"))
        assert allowed <= limit * 3 / 4 <= allowed * 1.1


def test_the_patch_for_switches_gives_the_token_to_who_has_no_capability() -> None:
    patch = yaml.safe_load((DEPLOY / "kubernetes/patches/switch.yaml").read_text())
    spec = patch["spec"]["template"]["spec"]
    agent, watcher = spec["containers"]
    assert agent == {
        "name": "otelgpu",
        "env": [{"name": "OTELGPU_SWITCH_FILE", "value": watcher["args"][-1]}],
    }
    assert watcher["image"] == f"otelgpu:{__version__}"
    assert watcher["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert watcher["securityContext"]["allowPrivilegeEscalation"] is False
    (volume,) = spec["volumes"]
    mounts = {each["name"] for each in watcher["volumeMounts"]}
    assert mounts == {"run", volume["name"]}
    (rule,) = manifests("switch")["ClusterRole", "otelgpu-watch-pods"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["pods"], ["list", "watch"])
