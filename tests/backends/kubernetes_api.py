"""A fake for a Kubernetes API server as the Collector's client finds it: pods of a Deployment, and a kubeconfig.

The server is :mod:`tests.rig.kubernetes`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rig.kubernetes import Access, ApiServer, Json, api_server, pod_object


@dataclass(frozen=True)
class KubernetesApi:
    """A running server."""

    kubeconfig: Path
    server: ApiServer

    def selectors(self) -> set[str]:
        """Of the requests: what fields the pods were to have."""
        return {query.get("fieldSelector", "") for _, query in self.server.asked}


def deployed_pod(deployment: str, uid: str, address: str, container_id: str) -> Json:
    """A pod of a Deployment in the namespace ``inference``; its one container is called ``server``."""
    digest = "5d9f7c8b6"
    replica_set = f"{deployment}-{digest}"
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": replica_set,
        "uid": "owner",
        "controller": True,
    }
    pod = pod_object(
        f"{replica_set}-x2x9z",
        uid,
        namespace="inference",
        container_id=container_id,
        container="server",
        image="registry.example/llm:1.2",
        labels={"pod-template-hash": digest},
        ownerReferences=[owner],
    )
    pod["status"]["podIP"] = address
    return pod


@contextlib.contextmanager
def kubernetes_api(folder: Path, pods: Sequence[Json]) -> Iterator[KubernetesApi]:
    """A server until the end of the block; its kubeconfig is in ``folder``."""
    with api_server(folder) as (server, access):
        for pod in pods:
            server.put(pod)
        kubeconfig = folder / "kubeconfig.json"  # every JSON text is YAML
        kubeconfig.write_text(json.dumps(_kubeconfig(access, server.token)))
        yield KubernetesApi(kubeconfig, server)


def _kubeconfig(access: Access, token: str) -> Json:
    authority = str(access.account / "ca.crt")
    cluster = {"server": f"https://{access.host}:{access.port}", "certificate-authority": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "standin", "cluster": cluster}],
        "users": [{"name": "collector", "user": {"token": token}}],
        "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "collector"}}],
        "current-context": "standin",
    }
