"""deploy/compose.yaml: as Compose itself reads it, and against the files that it names."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from otelgpu import __version__
from tests.deploy.manifests import COMPOSE, DEPLOY, ROOT, agent_of, manifests, missing_compose

needs_compose = pytest.mark.skipif(missing_compose() is not None, reason=str(missing_compose()))


WITH_GRAFANA = ("compose.yaml", "compose.grafana.yaml")


def read(text: str) -> subprocess.CompletedProcess[str]:
    """By the library of docker compose: the specification's schema, then what it means."""
    return subprocess.run(
        [COMPOSE, "--format=json", "/dev/stdin"],
        input=text, capture_output=True, text=True, check=False, cwd=DEPLOY, timeout=30,
    )  # fmt: skip


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """What the file says, not read by Compose."""
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return dict(content["services"])


@needs_compose
def test_compose_reads_the_file() -> None:
    done = read((DEPLOY / "compose.yaml").read_text())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    started = {name for name, each in found["services"].items() if not each.get("profiles")}
    assert started == {"service", "otelgpu", "collector", "jaeger"}
    assert found["services"]["otelgpu"]["pid"] == "service:service"


@needs_compose
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("cap_add:", "cap_adds:"),
        ("condition: service_started", "condition: started"),
        ("target: /etc", "targets: /etc"),
    ],
)
def test_a_mistake_is_found(right: str, wrong: str) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert right in text
    assert read(text.replace(right, wrong)).returncode != 0


def test_services_name_each_other(services: dict[str, Any]) -> None:
    named = {other for each in services.values() for other in each.get("depends_on", ())}
    named |= {each["pid"].removeprefix("service:") for each in services.values() if "pid" in each}
    assert named != set() and named <= set(services)


def test_agent_has_the_capabilities_of_the_manifests(services: dict[str, Any]) -> None:
    spec = manifests("daemonset")["DaemonSet", "otelgpu"]["spec"]["template"]["spec"]
    agent, pod = services["otelgpu"], agent_of(spec)["securityContext"]
    assert agent["cap_add"] == pod["capabilities"]["add"]
    assert (agent["cap_drop"], agent["read_only"]) == (["ALL"], True)
    # Docker gives a user that is not root no capability but by files, and files give none with no_new_privs.
    assert "security_opt" not in agent
    assert all(
        each["security_opt"] == ["no-new-privileges:true"]
        for name, each in services.items()
        if name != "otelgpu"
    )


def test_what_it_builds_and_mounts_is_there(services: dict[str, Any]) -> None:
    for each in services.values():
        if build := each.get("build"):
            assert (DEPLOY / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()
    configuration = DEPLOY / services["collector"]["volumes"][0]["source"]
    files = [argument.removeprefix("--config=/etc/otelcol/") for argument in services["collector"]["command"]]
    assert [name for name in files if not (configuration / name).is_file()] == []


def test_images_are_of_the_versions_that_are_tested(services: dict[str, Any]) -> None:
    collector = yaml.safe_load((ROOT / "tests/backends/ocb.yaml").read_text())["dist"]["version"]
    assert services["otelgpu"]["image"] == f"otelgpu:{__version__}"
    assert services["collector"]["image"] == f"otel/opentelemetry-collector-contrib:{collector}"
    # Jaeger counts its modules and its images differently: 1.N and 2.(N-63) are one release.
    module = (ROOT / "tests/backends/jaeger/go.mod").read_text()
    release = module.split("github.com/jaegertracing/jaeger v1.")[1].split(".")[0]
    assert services["jaeger"]["image"] == f"jaegertracing/jaeger:2.{int(release) - 63}.0"


@pytest.fixture(scope="module")
def with_grafana() -> dict[str, Any]:
    """What the second file says, not read by Compose."""
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.grafana.yaml").read_text())
    return dict(content["services"])


@needs_compose
def test_compose_reads_both_files_as_one() -> None:
    done = subprocess.run(
        [COMPOSE, "--format=json", *WITH_GRAFANA],
        capture_output=True, text=True, check=False, cwd=DEPLOY, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]
    assert set(found["collector"]["depends_on"]) == {"jaeger", "tempo", "prometheus"}
    assert found["grafana"]["ports"][0]["host_ip"] == "127.0.0.1"


def test_what_the_second_file_names_is_there(with_grafana: dict[str, Any]) -> None:
    bound = [volume["source"] for each in with_grafana.values() for volume in each.get("volumes", ())]
    assert bound and all((DEPLOY / source).exists() for source in bound)
    command = with_grafana["collector"]["command"]
    names = [argument.removeprefix("--config=/etc/otelcol/") for argument in command]
    assert [name for name in names if not (ROOT / "collector-config" / name).is_file()] == []


def test_grafana_finds_what_it_is_to_show(with_grafana: dict[str, Any]) -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    sources = yaml.safe_load((folder / "datasources" / "otelgpu.yaml").read_text())["datasources"]
    assert {source["url"].split("//")[1].split(":")[0] for source in sources} <= set(with_grafana)
    uids = {source["uid"] for source in sources}
    (exemplars,) = (
        source["jsonData"]["exemplarTraceIdDestinations"] for source in sources if "jsonData" in source
    )
    assert {each["datasourceUid"] for each in exemplars} <= uids
    (provider,) = yaml.safe_load((folder / "dashboards" / "otelgpu.yaml").read_text())["providers"]
    assert provider["options"]["path"] in {volume["target"] for volume in with_grafana["grafana"]["volumes"]}
    rules = yaml.safe_load((DEPLOY / "grafana" / "prometheus.yaml").read_text())["rule_files"]
    assert set(rules) <= {volume["target"] for volume in with_grafana["prometheus"]["volumes"]}
    tempo = yaml.safe_load((DEPLOY / "grafana" / "tempo.yaml").read_text())
    assert sources[1]["url"].endswith(f":{tempo['server']['http_listen_port']}")


def test_ports_are_of_the_loopback_interface_only(services: dict[str, Any]) -> None:
    published = [port for each in services.values() for port in each.get("ports", ())]
    assert published != [] and all(port.startswith("127.0.0.1:") for port in published)
