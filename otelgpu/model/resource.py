"""Who emitted something: an OpenTelemetry resource, hashable so that it can key a table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

AttributeValue = str | bool | int | float | tuple[str, ...]

NAMESPACE: Final = "k8s.namespace.name"
NODE_NAME: Final = "k8s.node.name"
POD_NAME: Final = "k8s.pod.name"
POD_UID: Final = "k8s.pod.uid"
CONTAINER: Final = "k8s.container.name"
CONTAINER_ID: Final = "container.id"
"""Whose a process is, and where, in Kubernetes (OpenTelemetry semantic conventions 1.44: k8s, container)."""

HOSTS: Final = ("host.name", NODE_NAME, "host.id")
"""Resource attributes of which the first that is there names the host."""

OF_MACHINE: Final = ("host.", "os.", "cloud.", "k8s.node.", "k8s.cluster.", "telemetry.")
"""How keys begin of what holds for every process of a host, in any pod, that one agent reports."""

GO: Final = "go"
"""``process.runtime.name`` of what the Go toolchain built: its runtime moves work from thread to thread."""


class Resource(Struct, frozen=True, cache_hash=True):
    """An immutable attribute set.

    ``attributes`` is sorted by key, so that equal sets compare and hash equal.
    Build it with :func:`resource`.
    """

    attributes: tuple[tuple[str, AttributeValue], ...]

    def get(self, key: str) -> AttributeValue | None:
        """The value of ``key``, or None."""
        return next((value for name, value in self.attributes if name == key), None)


def of_machine(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Of what is known of one process, what holds for every other of its host."""
    return {key: value for key, value in attributes.items() if key.startswith(OF_MACHINE)}


def unnamed(tgid: int, machine: Mapping[str, AttributeValue] = MappingProxyType({})) -> Resource:
    """That of a process that nobody could look at; of ``machine`` it has what :func:`of_machine` takes."""
    return resource({**of_machine(machine), "service.name": "unknown_service", "process.pid": tgid})


def resource(attributes: dict[str, AttributeValue]) -> Resource:
    """Build a :class:`Resource` from a mapping; the order of the mapping does not matter."""
    return Resource(tuple(sorted(attributes.items())))
