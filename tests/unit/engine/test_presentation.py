"""A family that is put into a folder is shown everywhere, and nothing that shows it was edited."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import otelgpu.families.gpu
from otelgpu.engine import presentation, top_views
from otelgpu.export.console import exporter as console
from otelgpu.export.console.exporter import ConsoleExporter
from otelgpu.model.spans import Attribute, SpanColumns
from otelgpu.render.kineto import kineto
from otelgpu.render.timeline import timeline
from tests.unit.render.test_timeline import spans

CACHES = [
    *(each for each in vars(presentation).values() if hasattr(each, "cache_clear")),
    *(top_views.top_views, console._shown),
]
IMAGINED = """
from otelgpu.families.gpu.presentations import device_presentation
PRESENTATION = device_presentation("imagined", "Imagined", {"imMemcpyHostToDevice": "HtoD"})
"""


def made(row: tuple[str, int, int], reported: Mapping[str, Any]) -> SpanColumns:
    """One span, with begin and end in microseconds."""
    attributes = tuple(Attribute.of(key, [value]) for key, value in reported.items())
    return replace(spans([row], scope="otelgpu.imagined"), attributes=attributes)


def clear() -> None:
    for each in CACHES:
        each.cache_clear()


@pytest.fixture
def imagined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of a family that is no part of the program."""
    folder = tmp_path / "imagined"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "presentation.py").write_text(IMAGINED)
    monkeypatch.setattr(otelgpu.families.gpu, "__path__", [*otelgpu.families.gpu.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    clear()
    yield
    clear()
    for name in [name for name in sys.modules if name.startswith("otelgpu.families.gpu.imagined")]:
        del sys.modules[name]


def test_without_it_nothing_is_shown_of_it() -> None:
    views = list(top_views.top_views())
    assert (views[:4], views[-2:]) == (["requests", "cuda", "nccl", "rdma"], ["processes", "agent"])
    assert "imagined" not in top_views.top_views()


@pytest.mark.usefixtures("imagined")
def test_it_has_a_view_of_top_with_its_own_metrics() -> None:
    views = top_views.top_views()
    assert list(views)[-3:] == ["imagined", "processes", "agent"]
    top_table, _ = views["imagined"].top_tables
    assert (top_table.title, views["imagined"].families) == ("Imagined processes", ("imagined",))
    metrics = {metric for column in top_table.columns for metric in column.metrics}
    assert {metric.split(".")[1] for metric in metrics} == {"imagined"}
    (processes,) = views["processes"].top_tables
    assert "imagined_launches_per_s" in [column.key for column in processes.columns]


@pytest.mark.usefixtures("imagined")
def test_its_work_is_on_streams_of_its_devices_and_tied_to_its_calls() -> None:
    call = made(
        ("imLaunchKernel", 100, 110), {"thread.id": 9, "imagined.stream": 7, "imagined.api": "runtime"}
    )
    work = made(
        ("axpy", 150, 180),
        {
            "thread.id": 9,
            "imagined.correlation.id": 3,
            "imagined.device.index": 1,
            "imagined.stream.id": 7,
            "imagined.call.delay": 50e-6,
            "imagined.kernel.name": "axpy",
        },
    )
    batches = [call, work]
    found = json.loads(timeline(batches))["traceEvents"]
    assert {e["args"]["name"] for e in found if e["name"] == "thread_name"} == {"thread 9", "GPU 1 stream 7"}
    assert [e["ph"] for e in found if e["name"] == "launch"] == ["s", "f"]
    categories = {e["name"]: e.get("cat") for e in json.loads(kineto(batches))["traceEvents"]}
    assert (categories["imLaunchKernel"], categories["axpy"]) == ("cuda_runtime", "kernel")


@pytest.mark.usefixtures("imagined")
def test_a_console_shows_its_labels() -> None:
    stream = io.StringIO()
    exporter = ConsoleExporter(stream)
    reported = {"imagined.memcpy.kind": "imMemcpyHostToDevice", "imagined.size": 4096}
    exporter.export_spans([made(("imMemcpy", 100, 110), reported)])
    exporter.flush(1)
    assert "imMemcpy  10.0 µs  imMemcpyHostToDevice  4.0 KiB" in stream.getvalue()
