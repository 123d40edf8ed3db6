"""A real Prometheus operator before an API server, and what it makes of monitors and rules for a Prometheus.

``tools/backends.sh prometheus_operator`` builds it.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.backends.programs import CACHE, ChildProcess, answers, missing_program
from tests.cluster.node import ApiServer, wait_until
from tests.rig.ports import free_ports

PROGRAM: Final = CACHE / "prometheus_operator"
CRDS: Final = CACHE / "prometheus_operator_crds"
NAMESPACE: Final = "monitoring"
_NAME: Final = "k8s"


def missing_operator() -> str | None:
    """Why there is none to run, and what to do; None when there is one."""
    return missing_program("prometheus_operator", PROGRAM, "prometheus_operator/go.mod")


class PrometheusOperator:
    """It looks after one Prometheus, which picks monitors and rules of all namespaces by ``labels``."""

    def __init__(self, server: ApiServer, folder: Path, labels: Mapping[str, str]) -> None:
        self._server = server
        server.kubectl("apply", "--server-side", "-f", str(CRDS))
        server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        server.namespace(NAMESPACE)
        picked = {"matchLabels": dict(labels)}
        spec = {
            f"{what}{which}": {} if which.endswith("NamespaceSelector") else picked
            for what in ("podMonitor", "serviceMonitor", "rule")
            for which in ("Selector", "NamespaceSelector")
        }
        prometheus = {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "spec": spec}
        server.apply({**prometheus, "metadata": {"name": _NAME, "namespace": NAMESPACE}})
        (port,) = free_ports(1)
        command = [PROGRAM, f"--web.listen-address=127.0.0.1:{port}"]
        environment = os.environ | {"KUBECONFIG": str(server.kubeconfig())}
        self.process = ChildProcess(command, folder / "operator.log", environment)
        self.process.wait_until(lambda: answers(f"http://127.0.0.1:{port}/healthz"))

    def stop(self) -> None:
        """End it."""
        self.process.stop()

    def scrape_configs(self) -> dict[str, dict[str, Any]]:
        """What that Prometheus is to scrape, by the names of its jobs."""
        return {each["job_name"]: each for each in self._configuration().get("scrape_configs", ())}

    def rules(self) -> list[dict[str, Any]]:
        """Groups of rules that it is to evaluate."""
        maps = self._server.items("configmaps", "-n", NAMESPACE, "-l", f"prometheus-name={_NAME}")
        return [
            group
            for each in maps
            for text in each["data"].values()
            for group in yaml.safe_load(text)["groups"]
        ]

    def wait_for_jobs(self, count: int) -> dict[str, dict[str, Any]]:
        """The same, once there are as many. Raises `RigError` with its log."""
        try:
            wait_until(
                lambda: len(self.scrape_configs()) == count and bool(self.rules()), f"{count} jobs", 60
            )
        except Exception as error:
            error.add_note(self.process.said()[-3000:])
            raise
        return self.scrape_configs()

    def _configuration(self) -> dict[str, Any]:
        for secret in self._server.items("secrets", "-n", NAMESPACE):
            if secret["metadata"]["name"] == f"prometheus-{_NAME}":
                text = gzip.decompress(base64.b64decode(secret["data"]["prometheus.yaml.gz"]))
                found: dict[str, Any] = yaml.safe_load(text) or {}
                return found
        return {}


def labels_of_pod(template: Mapping[str, Any], container: str, port: str) -> dict[str, str]:
    """What a Prometheus finds out of a running pod's port before relabelling, as its discovery calls it."""
    return {
        "__meta_kubernetes_namespace": "otelgpu",
        "__meta_kubernetes_pod_name": "otelgpu-abcde",
        "__meta_kubernetes_pod_node_name": "node-a",
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_ready": "true",
        "__meta_kubernetes_pod_container_name": container,
        "__meta_kubernetes_pod_container_port_name": port,
        **_labels("pod", template["metadata"]["labels"]),
    }


def labels_of_endpoint(service: Mapping[str, Any], port: str) -> dict[str, str]:
    """The same of a Service's endpoint (role ``endpoints`` and role ``endpointslice``)."""
    metadata = service["metadata"]
    return {
        "__meta_kubernetes_service_name": metadata["name"],
        **_labels("service", metadata["labels"]),
        **{f"__meta_kubernetes_{kind}_port_name": port for kind in ("endpoint", "endpointslice")},
        **{f"__meta_kubernetes_{kind}_address_target_kind": "Pod" for kind in ("endpoint", "endpointslice")},
        **{f"__meta_kubernetes_{kind}_address_target_name": "p" for kind in ("endpoint", "endpointslice")},
    }


def _labels(of: str, labels: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for key, value in labels.items():
        name = "".join(each if each.isalnum() else "_" for each in key)
        found |= {
            f"__meta_kubernetes_{of}_label_{name}": value,
            f"__meta_kubernetes_{of}_labelpresent_{name}": "true",
        }
    return found


def scraping(config: Mapping[str, Any], address: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """A job of which discovery has found one target; of one shard, as the reloader beside a Prometheus fills in."""
    filled: dict[str, Any] = json.loads(json.dumps(config).replace("$(SHARD)", "0"))
    kept = {key: value for key, value in filled.items() if not key.endswith("_sd_configs")}
    return {**kept, "static_configs": [{"targets": [address], "labels": dict(labels)}]}
