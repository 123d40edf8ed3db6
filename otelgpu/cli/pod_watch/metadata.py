"""What the API server says of pods → :class:`~otelgpu.model.switches.PodSwitch`. Pure.

In: ``PartialObjectMetadata`` and ``PartialObjectMetadataList`` (``meta.k8s.io/v1``), which have nothing of a pod's
containers and variables, and events of a watch, as JSON. Sources: ``k8s.io/apimachinery/pkg/apis/meta/v1/types.go``
(``ObjectMeta``, ``ManagedFieldsEntry``), ``watch.go`` (``WatchEvent``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from otelgpu.model.switches import LONGEST_VALUE, PodSwitch

_NAME: Final = 253
_MANAGER: Final = 128
_UID: Final = 64


class _Managed(Struct, rename="camel"):
    manager: str = ""
    time: str = ""
    fields_v1: dict[str, Any] | None = msgspec.field(default=None, name="fieldsV1")


class Metadata(Struct, rename="camel"):
    """Of one pod, as far as it is needed."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    managed_fields: list[_Managed] | None = None


class Pod(Struct):
    """Its metadata alone."""

    metadata: Metadata


class _ListMeta(Struct, rename="camel"):
    resource_version: str = ""
    next: str = msgspec.field(default="", name="continue")


class Page(Struct):
    """A part of a list."""

    metadata: _ListMeta
    items: list[Pod]


class Seen(Struct):
    """An event of a watch. ``type``: ADDED, MODIFIED, DELETED, BOOKMARK, ERROR."""

    type: str
    object: msgspec.Raw


def switch_of(pod: Metadata, annotation: str) -> PodSwitch | None:
    """What is asked for a pod so; None: nothing is. A value that is too long is cut, and means nothing then."""
    value = (pod.annotations or {}).get(annotation)
    if value is None or not pod.uid or len(pod.uid) > _UID:
        return None
    manager, written_unix_s = _written(pod.managed_fields or (), annotation)
    return PodSwitch(
        uid=pod.uid,
        namespace=pod.namespace[:_NAME],
        pod=pod.name[:_NAME],
        value=value[: LONGEST_VALUE + 1],
        manager=manager[:_MANAGER],
        written_unix_s=written_unix_s,
    )


def _written(entries: Sequence[_Managed], annotation: str) -> tuple[str, int]:
    """Who wrote the annotation last, and when; "" and 0 where nobody says."""
    owners = [each for each in entries if _owns(each.fields_v1, annotation)]
    latest = max(owners, key=lambda each: _unix_s(each.time), default=None)
    return ("", 0) if latest is None else (latest.manager, _unix_s(latest.time))


def _owns(fields: object, annotation: str) -> bool:
    for key in ("f:metadata", "f:annotations", f"f:{annotation}"):
        if not isinstance(fields, dict) or key not in fields:
            return False
        fields = fields[key]
    return True


def _unix_s(text: str) -> int:
    try:
        return max(int(datetime.fromisoformat(text).timestamp()), 0)
    except (ValueError, OverflowError, OSError):
        return 0
