"""How the calls of a device's API are shown, whichever vendor's: processes in ``otelgpu top``, streams as tracks.

A vendor's family has ``PRESENTATION = device_presentation("cuda", "CUDA", …)``: the same, under its own names.
"""

from __future__ import annotations

from collections.abc import Mapping

from otelgpu.engine.presentation import (
    OF_PROCESS,
    Column,
    ConsoleLabel,
    How,
    Presentation,
    ProcessColumns,
    TopTable,
    TopView,
    Unit,
    device_names,
    rate,
    stream_rule,
)
from otelgpu.engine.viewer import SpanKind, SpanRule, ViewerPart


def device_presentation(
    vendor: str, title: str, directions: Mapping[str, str], *, rank: int = 10
) -> Presentation:
    """Of the family ``vendor``, whose attributes are ``cuda.stream`` and metrics ``gpu.cuda.…``.

    ``directions``: how it calls directions of copies → how Kineto does, ``HtoD``. ``rank``: of its view of ``top``.
    """
    names = device_names(vendor, directions)
    return Presentation(
        views=(
            TopView(
                name=vendor,
                title=title,
                top_tables=(_processes(vendor, title), _kernels(vendor, title)),
                families=(vendor,),
                rank=rank,
            ),
        ),
        process_columns=ProcessColumns(
            columns=(_launches(vendor, f"{vendor}_launches_per_s", f"{title} launch/s"),),
            families=(vendor,),
            rank=rank,
        ),
        labels=(
            ConsoleLabel(key=names.direction),
            ConsoleLabel(key=names.size, unit=Unit.BYTES),
        ),
        tracks=(stream_rule(names),),
        device=names,
        viewer=_viewer(vendor),
    )


def _viewer(vendor: str) -> ViewerPart:
    """Calls by what their names say of them; the first rule that fits."""
    scope = f"otelgpu.{vendor}"
    return ViewerPart(
        kinds=(
            SpanKind(id="launch", words="kernel launch", call=True, summed=True),
            SpanKind(id="copy", words="copy", call=True, summed=True),
            SpanKind(id="sync", words="wait for the GPU", call=True, summed=True),
            SpanKind(id="memory", words="memory", call=True, summed=True),
            SpanKind(id="call", words="other call", call=True, summed=True),
        ),
        rules=(
            SpanRule(kind="launch", scope=scope, name="Launch"),
            SpanRule(kind="copy", scope=scope, name="Mem(cpy|set|Prefetch)"),
            SpanRule(kind="sync", scope=scope, name="Synchronize|WaitEvent"),
            SpanRule(
                kind="memory",
                scope=scope,
                name="[Aa]lloc|Free|MemMap|MemUnmap|HostRegister|HostUnregister|MemCreate|MemRelease",
            ),
            SpanRule(kind="call", scope=scope),
        ),
        launches=f"{vendor}.launch.calls",
    )


def _processes(vendor: str, title: str) -> TopTable:
    return TopTable(
        name="processes",
        title=f"{title} processes",
        keys=OF_PROCESS,
        columns=(
            _launches(vendor, "launches_per_s", "launches/s"),
            rate("graph_launches_per_s", "graphs/s", f"gpu.{vendor}.graph.launch.calls"),
            Column(
                key="launch_host_p99_s",
                title="launch p99",
                how=How.P99,
                metrics=(f"gpu.{vendor}.kernel.launch.host.duration",),
                unit=Unit.SECONDS,
            ),
            rate("copies_per_s", "copies/s", f"gpu.{vendor}.memory.copies"),
            Column(
                key="copied_bytes_per_s",
                title="copied/s",
                how=How.SUM_RATE,
                metrics=(f"gpu.{vendor}.memory.copies",),
                unit=Unit.BYTES,
            ),
            rate("waits_per_s", "waits/s", f"gpu.{vendor}.synchronize.duration"),
            Column(
                key="waited_share",
                title="waited",
                how=How.SUM_RATE,
                metrics=(f"gpu.{vendor}.synchronize.duration",),
                unit=Unit.SHARE,
            ),
            rate("allocated_bytes_per_s", "alloc/s", f"gpu.{vendor}.memory.allocations", unit=Unit.BYTES),
            rate("errors_per_s", "err/s", f"gpu.{vendor}.errors", alarming=True),
        ),
        sort="launches_per_s",
    )


def _kernels(vendor: str, title: str) -> TopTable:
    """Those that have a series of their own, and ``other``; none unless metrics carry names of kernels."""
    return TopTable(
        name="kernels",
        title=f"{title} kernels",
        keys={**OF_PROCESS, f"{vendor}.kernel.name": ("kernel", "kernel")},
        columns=(
            _launches(vendor, "launches_per_s", "launches/s", having=f"{vendor}.kernel.name"),
            Column(
                key="launches",
                title="since start",
                how=How.TOTAL,
                metrics=(f"gpu.{vendor}.kernel.launch.calls",),
                having=f"{vendor}.kernel.name",
            ),
        ),
        sort="launches_per_s",
    )


def _launches(vendor: str, key: str, title: str, *, having: str = "") -> Column:
    return rate(key, title, f"gpu.{vendor}.kernel.launch.calls", having=having)
