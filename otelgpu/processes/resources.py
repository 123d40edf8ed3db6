"""What a process is called in telemetry: the resource that describes it, and how each part of that is known.

In: :class:`~otelgpu.processes.listing.ProcessFacts`, what the process says of itself, what the agent knows of its own
pod. Out: a :class:`~otelgpu.model.resource.Resource`.

Where a process runs is observed (by the kernel and the downward API) and never taken from the process:
what it claims of that in OTEL_RESOURCE_ATTRIBUTES or its process context is kept apart, under ``otelgpu.claimed.``.
docs/reference/identity.md says what is left that a process can say untruly.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from otelgpu.model.inputs import LossCounted
from otelgpu.model.losses import LossReports, Reasons
from otelgpu.model.resource import (
    CONTAINER,
    CONTAINER_ID,
    GO,
    NAMESPACE,
    NODE_NAME,
    OF_MACHINE,
    POD_NAME,
    POD_UID,
    AttributeValue,
    Resource,
    resource,
    unnamed,
)
from otelgpu.processes.kubernetes import OwnPod
from otelgpu.processes.listing import PYTHON, ProcessFacts, executable_name, guess_service_name

try:
    from _sha1 import sha1  # type: ignore[import-not-found]  # without OpenSSL, which hashlib loads
except ImportError:  # another Python than CPython
    from hashlib import sha1

CLAIMED: Final = "otelgpu.claimed."
"""In front of what a process says of where it runs, where nothing else says the same."""

MAX_CLAIMS: Final = 128
MAX_CLAIM_KEY: Final = 256  # characters
MAX_CLAIM_VALUE: Final = 4096
MAX_CLAIMS_SIZE: Final = 16_384
"""Characters of all keys and values that one process may say of itself: they are sent with each of its batches."""

REASONS: Final = Reasons(
    "identity",
    {
        "claims_dropped": "attributes that a process says of itself beyond what one may: 128, 16,384 characters in all",
        "claims_set_aside": "attributes of a place that a process claims to be in and that is not known to be its own: "
        "reported under `otelgpu.claimed.`",
    },
)
"""What one count of (``identity``, reason) means."""

_INSTANCES: Final = uuid.UUID("5b2f6d0c-94a7-4b3e-8a6e-3f1f0c1d7e52")  # namespace of service.instance.id
_RUNTIME: Final = {"python": "cpython", "pypy": "pypy"}
_OURS: Final = ("telemetry.", "process.", "otelgpu.")
"""What the agent itself knows better than the process."""
_PLACES: Final = ("k8s.", "container.", "host.", "cloud.")
"""Where a process runs: its word is not taken for it."""


class Known(StrEnum):
    """How a part of a process's identity is known."""

    CGROUP = "cgroup"
    """The path of its cgroup."""
    SAME_POD = "same_pod"
    """Its cgroup lies beside the agent's own."""
    MOUNTINFO = "mountinfo"
    """What is mounted in it."""
    DOWNWARD_API = "downward_api"
    """Variables that Kubernetes set for the agent, and the process is on its node or in its pod."""


Identity = Mapping[str, tuple[AttributeValue, Known]]
"""Attribute → its value, and how that is known."""


def identify(facts: ProcessFacts, own: OwnPod = OwnPod()) -> Identity:  # noqa: B008 (immutable)
    """Where a process runs. ``own``: the agent's place."""
    found: dict[str, tuple[AttributeValue, Known]] = {}
    if own.node:
        found[NODE_NAME] = own.node, Known.DOWNWARD_API
    if facts.container_id:
        by_mounts = facts.placed_by == "mountinfo"
        found[CONTAINER_ID] = facts.container_id, Known.MOUNTINFO if by_mounts else Known.CGROUP
    if facts.pod_uid:
        found[POD_UID] = facts.pod_uid, Known(facts.placed_by or Known.CGROUP)
    if facts.container_name:
        found[CONTAINER] = facts.container_name, Known.MOUNTINFO
    if facts.pod_uid and facts.with_agent:
        for key, value in ((POD_NAME, own.name), (NAMESPACE, own.namespace)):
            if value:
                found[key] = value, Known.DOWNWARD_API
    return found


def own_attributes(own: OwnPod) -> dict[str, AttributeValue]:
    """Where the agent itself is, for its own telemetry."""
    given = ((NODE_NAME, own.node), (POD_NAME, own.name), (NAMESPACE, own.namespace), (POD_UID, own.uid))
    return {key: value for key, value in given if value}


# -- What a process says of itself -----------------------------------------------------------------------


class Claims(Struct, frozen=True, kw_only=True):
    """``taken``: what is believed. ``places``: what says where it runs. ``dropped``: how many had no room."""

    taken: Mapping[str, AttributeValue]
    places: Mapping[str, AttributeValue]
    dropped: int


def sift(*said: Mapping[str, AttributeValue]) -> Claims:
    """Sort what a process says, the later winning, within the bounds."""
    taken: dict[str, AttributeValue] = {}
    places: dict[str, AttributeValue] = {}
    dropped, left = 0, MAX_CLAIMS_SIZE
    # The last that is said is the first to find room.
    for key, value in _newest_first(said):
        if key.startswith(_OURS):
            continue
        size = len(key) + _size(value)
        too_long = len(key) > MAX_CLAIM_KEY or _size(value) > MAX_CLAIM_VALUE
        if too_long or size > left or len(taken) + len(places) >= MAX_CLAIMS or not _is_usual(key, value):
            dropped += 1
            continue
        left -= size
        (places if key.startswith(_PLACES) else taken)[key] = value
    return Claims(taken=taken, places=places, dropped=dropped)


def _newest_first(said: Iterable[Mapping[str, AttributeValue]]) -> Iterator[tuple[str, AttributeValue]]:
    seen: set[str] = set()
    for some in reversed(tuple(said)):
        for key, value in some.items():
            if key not in seen:
                seen.add(key)
                yield key, value


def _size(value: AttributeValue) -> int:
    if isinstance(value, tuple):
        return sum(len(item) + 1 for item in value)
    return len(value) if isinstance(value, str) else 8


def _is_usual(key: str, value: AttributeValue) -> bool:
    """``service.*`` are texts, and a service without a name is none."""
    return not key.startswith("service.") or (isinstance(value, str) and bool(value.strip()))


def parse_resource_attributes(text: str) -> dict[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES: ``key=value,…``, percent-encoded. A text with any error counts as empty.

    Source: OpenTelemetry specification, "Resource SDK", section "Specifying resource information via an
    environment variable".
    """
    attributes = {}
    for item in text.split(","):
        if not item.strip():
            continue
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            return {}
        try:
            attributes[key.strip()] = unquote(value.strip(), errors="strict")
        except UnicodeDecodeError:
            return {}
    return attributes


# -- The resource ----------------------------------------------------------------------------------------


def process_resource(
    facts: ProcessFacts,
    base: Mapping[str, AttributeValue],
    published: Mapping[str, AttributeValue] = MappingProxyType({}),
    identity: Identity | None = None,
    claims: Claims | None = None,
) -> Resource:
    """The resource of a process's telemetry.

    ``base`` holds what is the same for all: ``host.name``, ``telemetry.*`` and what the user set for the
    agent. ``published`` is what the process has said of itself in its process context (process_context.py).
    In rising precedence: the guessed ``service.name``; ``published``; ``base``; the process's environment, in
    OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME; where it runs, as ``identity`` has it; ``process.*`` as observed.

    ``service.instance.id`` is the same for as long as the process lives, whichever agent looks at it on
    this boot of this host, given that ``base`` has a ``host.id`` or ``host.name``; but a process that
    publishes one has that, as its own telemetry does.
    """
    found = identify(facts) if identity is None else identity
    said = said_of_itself(facts, published) if claims is None else claims
    own = own_words(facts)
    host = str(base.get("host.id") or base.get("host.name") or "")
    instance = f"{host}/{facts.tgid}/{facts.start_time_ns}/{facts.container_id}"
    attributes: dict[str, AttributeValue] = {
        "service.name": guess_service_name(facts),
        "service.instance.id": _instance_id(instance),
    }
    attributes |= {key: value for key, value in said.taken.items() if key not in own}
    attributes |= _that_applies(base, facts)
    attributes |= {key: value for key, value in said.taken.items() if key in own}
    attributes |= {key: value for key, (value, _) in found.items()}
    attributes |= {
        f"{CLAIMED}{key}": value for key, value in said.places.items() if attributes.get(key) != value
    }
    return resource(attributes | _observed(facts))


def _instance_id(instance: str) -> str:
    """A UUID of version 5 (RFC 9562), as :func:`uuid.uuid5` makes it with hashlib."""
    named = sha1(_INSTANCES.bytes + instance.encode(), usedforsecurity=False)
    return str(uuid.UUID(bytes=named.digest()[:16], version=5))


def own_words(facts: ProcessFacts) -> dict[str, AttributeValue]:
    """What the environment of a process says of it."""
    found: dict[str, AttributeValue] = {**parse_resource_attributes(facts.resource_attributes)}
    if facts.service_name:
        found["service.name"] = facts.service_name
    return found


def said_of_itself(facts: ProcessFacts, published: Mapping[str, AttributeValue]) -> Claims:
    """All that a process says, sorted."""
    return sift(published, own_words(facts))


def _that_applies(base: Mapping[str, AttributeValue], facts: ProcessFacts) -> dict[str, AttributeValue]:
    """Of what the agent was reported, what is true of another pod: it may know its own place by the same variables."""
    elsewhere = bool(facts.pod_uid or facts.container_id) and not facts.with_agent
    return {
        key: value
        for key, value in base.items()
        if not (elsewhere and key.startswith(("k8s.", "container.")) and not key.startswith(OF_MACHINE))
    }


def _observed(facts: ProcessFacts) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {"process.pid": facts.tgid}
    if facts.executable:
        found["process.executable.path"] = facts.executable
    name = executable_name(facts)
    found["process.executable.name"] = name
    if command := _program_word(facts):
        found["process.command"] = command
    if python := PYTHON.fullmatch(name):
        found["process.runtime.name"] = _RUNTIME.get(python.group(1), "cpython")
    elif facts.is_go:
        found["process.runtime.name"] = GO
    return found | dict(facts.job)


def _program_word(facts: ProcessFacts) -> str:
    """``process.command``: argv[0], without what a program may have written behind it as its title."""
    first = facts.command[0] if facts.command else ""
    if first == facts.executable:
        return first
    return first.split(maxsplit=1)[0].removesuffix(":")[:255] if first.strip() else ""


# -- All of a session ------------------------------------------------------------------------------------


class ResourceDetector:
    """Describes the processes of a session. ``base``: what is the same for all. ``own``: the agent's place."""

    def __init__(
        self,
        base: Mapping[str, AttributeValue] = MappingProxyType({}),
        *,
        own: OwnPod = OwnPod(),  # noqa: B008 (immutable)
    ) -> None:
        self._base = dict(base)
        self._own = own
        self._counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._reports = LossReports()

    def identify(self, facts: ProcessFacts) -> Identity:
        """Where a process runs."""
        return identify(facts, self._own)

    def describe(
        self, facts: ProcessFacts, published: Mapping[str, AttributeValue] = MappingProxyType({})
    ) -> Resource:
        """A process that came into sight, or says something new of itself."""
        claims = said_of_itself(facts, published)
        made = process_resource(facts, self._base, published, self.identify(facts), claims)
        self._counters["claims_dropped"] += claims.dropped
        self._counters["claims_set_aside"] += sum(key.startswith(CLAIMED) for key, _ in made.attributes)
        return made

    def unnamed(self, tgid: int) -> Resource:
        """A process of which nothing is known but that it is on this host."""
        return unnamed(tgid, self._base)

    def losses(self) -> list[LossCounted]:
        """What was counted since the last call."""
        return self._reports.take({("identity", reason): count for reason, count in self._counters.items()})
