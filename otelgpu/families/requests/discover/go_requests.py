"""Where the ``http.Request`` of a Go program has its context, for the cookies of bpf/http/go_client.h."""

from __future__ import annotations

from typing import Final

from otelgpu.elf.go import go_minor
from otelgpu.model.losses import Reasons
from otelgpu.processes.probes import InspectedFile, ProbePlacer

REASONS: Final = Reasons(
    "http",
    {
        "go_caller_unknown": "a write of a request of Go's http.Client that was asked for before observation began, or "
        "so long ago that others' took its place: it is linked to no request",
    },
)
"""What one count of (``http``, reason) means."""

LIBRARY: Final = "libgo"
_CONTEXT: Final = {**dict.fromkeys((21, 22), 232), **dict.fromkeys((23, 24, 25, 26), 248)}
"""By minor version of Go (src/net/http/request.go): in 1.23 ``Pattern`` came before it."""


def watch_go(placer: ProbePlacer) -> None:
    """Answer for the files that are probed from now on."""
    placer.file_cookies[LIBRARY] = context_of


def context_of(file: InspectedFile) -> int:
    """The offset in bytes; 0: it is not known."""
    return _CONTEXT.get(go_minor(file.image) or 0, 0)
