"""Who emitted something: an OpenTelemetry resource, hashable so that it can key a table."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

AttributeValue = str | bool | int | float | tuple[str, ...]

HOSTS: Final = ("host.name", "k8s.node.name", "host.id")
"""Resource attributes of which the first that is there names the host."""

GO: Final = "go"
"""``process.runtime.name`` of what the Go toolchain built: its runtime moves work from thread to thread."""


class Resource(Struct, frozen=True):
    """An immutable attribute set.

    ``attributes`` is sorted by key, so that equal sets compare and hash equal.
    Build it with :func:`resource`.
    """

    attributes: tuple[tuple[str, AttributeValue], ...]

    def get(self, key: str) -> AttributeValue | None:
        """The value of ``key``, or None."""
        return next((value for name, value in self.attributes if name == key), None)


def unnamed(tgid: int) -> Resource:
    """That of a process that nobody could look at."""
    return resource({"service.name": "unknown_service", "process.pid": tgid})


def resource(attributes: dict[str, AttributeValue]) -> Resource:
    """Build a :class:`Resource` from a mapping; the order of the mapping does not matter."""
    return Resource(tuple(sorted(attributes.items())))
