"""What somebody asked of the agent for a pod while it works, by an annotation of the pod. Nothing of it is believed.

``otelgpu.io/detail: "all 5m"`` on a pod → :class:`PodSwitch` → what is done about it (``families/switches``);
``otelgpu.io/profile: "30s"`` → likewise, in a file of its own (``cli/pod_profiles``).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

DETAIL_ANNOTATION: Final = "otelgpu.io/detail"
PROFILE_ANNOTATION: Final = "otelgpu.io/profile"
LONGEST_VALUE: Final = 64
"""Characters of a value that are read; no longer one means anything."""
MOST_PODS: Final = 256
"""With such an annotation on one node; more are counted."""

_Name = Annotated[str, Meta(max_length=253)]


class PodSwitch(Struct, frozen=True, kw_only=True):
    """An annotation. ``manager``: who wrote it, by its own word; ``written_unix_s``: when, 0 where not known."""

    uid: Annotated[str, Meta(min_length=1, max_length=64)]
    namespace: _Name
    pod: _Name
    value: Annotated[str, Meta(max_length=LONGEST_VALUE + 1)]
    manager: Annotated[str, Meta(max_length=128)] = ""
    written_unix_s: Annotated[int, Meta(ge=0, le=1 << 40)] = 0


class SwitchesRead(Struct, frozen=True, kw_only=True):
    """All that there are on the node, as of now."""

    switches: Annotated[tuple[PodSwitch, ...], Meta(max_length=MOST_PODS)] = ()


class SwitchesWritten(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of ``otelgpu watch-pods``, JSON: of one kind of annotation.

    ``switches``: all that there are, absent while the API server has not answered yet, which withdraws none.
    ``failures``: tries to list or watch that failed since ``watch-pods`` began.
    """

    switches: Annotated[tuple[PodSwitch, ...], Meta(max_length=MOST_PODS)] | None = None
    failures: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
