"""What the agent knows of its own pod, by the downward API. Pure.

In: the variables that Kubernetes sets for the agent (docs/reference/identity.md). Out: :class:`OwnPod`. The API server
is not asked: the Collector's ``k8s_attributes`` processor names pods and workloads by the ``k8s.pod.uid`` of each
resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_MAX_NAME: Final = 253  # a DNS subdomain, as names of objects are

OWN_VARIABLES: Final = ("OTELGPU_NODE_NAME", "OTELGPU_POD_NAME", "OTELGPU_POD_NAMESPACE", "OTELGPU_POD_UID")
"""What the downward API is to set for the agent: docs/reference/identity.md."""


class OwnPod(Struct, frozen=True, kw_only=True):
    """What the agent knows of itself by the downward API. "" for what was not set."""

    node: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


def own_pod(environ: Mapping[str, str]) -> OwnPod:
    """From :data:`OWN_VARIABLES`."""
    node, name, namespace, uid = (environ.get(variable, "").strip()[:_MAX_NAME] for variable in OWN_VARIABLES)
    return OwnPod(node=node, name=name, namespace=namespace, uid=uid)
