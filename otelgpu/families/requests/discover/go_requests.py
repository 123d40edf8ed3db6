"""Where Go programs have what bpf/http/go_client.h and go_streams.h read, for their cookies."""

from __future__ import annotations

from typing import Final

from otelgpu.elf.go import go_minor, module_minor
from otelgpu.elf.image import ElfImage
from otelgpu.kernel.attach import GO_ENTRIES
from otelgpu.processes.probes import InspectedFile, ProbePlacer
from otelgpu.processes.task_runtimes import go_path

GRPC: Final = "google.golang.org/grpc"
_CONTEXT: Final = {**dict.fromkeys((21, 22), 232), **dict.fromkeys((23, 24, 25, 26), 248)}
"""By minor version of Go (src/net/http/request.go): in 1.23 ``Pattern`` came before it."""
_GRPC_LAYOUTS: Final = {**dict.fromkeys(range(69, 77), 1 << 12), **dict.fromkeys(range(77, 84), 1 << 13)}
"""GO_LAYOUT_GRPC_*, by minor version of grpc-go (internal/transport/transport.go and server_stream.go)."""

_TLS_BITS: Final = 15  # that are left of the cookie's 31


def watch_go(placer: ProbePlacer) -> None:
    """Answer for the files that are probed from now on."""
    placer.file_cookies[GO_ENTRIES] = layouts_of


def layouts_of(file: InspectedFile) -> int:
    """The offset in bytes of a request's context, the layout of gRPC's streams, and the way to goroutines.

    Of each 0: it is not known.
    """
    layouts = _CONTEXT.get(go_minor(file.image) or 0, 0)
    if layouts:
        layouts |= _GRPC_LAYOUTS.get(module_minor(file.image, GRPC) or 0, 0)
    return layouts | _goroutines_of(file.image)


def _goroutines_of(image: ElfImage) -> int:
    """GO_LAYOUT_CURG_184, GO_LAYOUT_GOID_160 and, from GO_LAYOUT_TLS_SHIFT on, where ``runtime.tlsg`` is."""
    path = go_path(image)
    if isinstance(path, str):
        return 0
    tls, _, curg, goid = path
    if tls % 8 or not 0 < -tls // 8 < 1 << _TLS_BITS:
        return 0
    return (curg == 184) << 14 | (goid == 160) << 15 | -tls // 8 << 16
