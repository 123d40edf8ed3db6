"""Stored captures and layouts: what the program makes of them must not change unnoticed.

A difference that is meant is taken over with ``pytest tests/golden --update-golden`` and shows in the commit.
The capture itself is made by ``python -m tests.golden.make_capture``; it carries its own record layouts, so it
also proves that captures of earlier builds can still be read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otelgpu import __version__
from otelgpu.elf.btf import Btf
from otelgpu.engine import registry
from otelgpu.engine.pipeline import Pipeline
from otelgpu.export.file.exporter import FileExporter
from otelgpu.families.requests.http1 import framing
from otelgpu.kernel.loader import read_image, record_struct
from otelgpu.model.inputs import Input
from otelgpu.model.resource import resource
from otelgpu.model.settings import Detail, SignalSettings
from otelgpu.sources.capture import CaptureReader
from otelgpu.spanwriter import library
from otelgpu.symbols.demangle import short_name
from tests.golden import make_capture, training_job

Check = Callable[[str, str], None]
# Family → its enumerations that records hold.
ENUMS = {
    "cuda": ("cuda_kind", "cuda_api"),
    "http": ("http_kind", "http_direction"),
    "nccl": ("nccl_kind", "nccl_sequence", "nccl_api"),
    "process": ("process_kind",),
    "verbs": ("verbs_kind", "verbs_operation", "verbs_api"),
}


def replayed(
    inputs: list[Input], reader: CaptureReader, detail: Detail, folder: Path
) -> list[dict[str, Any]]:
    """The lines that the file exporter writes, spans then metrics."""
    session = Pipeline(
        {name: family for name, family in registry.families().items() if name in reader.btf},
        reader.btf,
        seed=reader.header.seed,
        own=resource(reader.header.own),
        start_unix_ns=reader.header.start_unix_ns,
        settings=SignalSettings(detail=detail),
        shorten=short_name,
    )
    exporter = FileExporter(str(folder / "out.jsonl"))
    for item in inputs:
        exporter.export_spans(session.feed(item))
    exporter.export_spans(session.finish())
    exporter.export_metrics(*session.read_metrics())
    exporter.close(0)
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def stable(node: Any) -> Any:
    """Without this program's version, and attributes by key."""
    if isinstance(node, dict):
        if "attributes" in node:
            node["attributes"].sort(key=lambda attribute: attribute["key"])
        if node.get("version") == __version__:
            del node["version"]
        return {key: stable(value) for key, value in node.items()}
    return [stable(entry) for entry in node] if isinstance(node, list) else node


def spread(line: dict[str, Any]) -> str:
    """A TracesData or MetricsData with its resource, scope, and each span or metric on a line of its own."""
    found = []
    for part in line.get("resourceSpans", line.get("resourceMetrics", [])):
        for scope in part.get("scopeSpans", part.get("scopeMetrics", [])):
            found += [{"resource": part["resource"]}, {"scope": scope["scope"]}]
            found += scope.get("spans", scope.get("metrics", []))
    return "".join(json.dumps(entry) + "\n" for entry in found)


def stored(name: str, detail: Detail, folder: Path) -> list[dict[str, Any]]:
    reader = CaptureReader(make_capture.path_of(name))
    try:
        lines = replayed(list(reader), reader, detail, folder)
    finally:
        reader.close()
    assert not reader.truncated
    return lines


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """With the library that does the work on rows and reads heads, and where it was not built."""
    if not request.param:
        monkeypatch.setattr(library, "_LIBRARY", Path("/nowhere"))
    caches = library.library, framing._plain_heads
    for each in caches:
        each.cache_clear()
    yield request.param
    monkeypatch.undo()
    for each in caches:
        each.cache_clear()


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        *(("llm_session", detail) for detail in ("ops", "all", "phases")),
        *(("training_job", detail) for detail in ("ops", "phases")),
    ],
)
def test_the_stored_capture_replays_to_the_stored_otlp(
    name: str, detail: Detail, compiled: bool, golden: Check, tmp_path: Path
) -> None:
    assert (library.library() is not None) == compiled, "make bpf builds it"
    lines = stored(name, detail, tmp_path)
    golden(f"{name}.{detail}.jsonl", "".join(spread(stable(line)) for line in lines))


@pytest.mark.parametrize("name", make_capture.CAPTURES)
def test_the_script_makes_the_stored_capture_as_far_as_layouts_are_the_same(
    name: str, tmp_path: Path
) -> None:
    """When only this fails after a change of a record: python -m tests.golden.make_capture."""
    make_capture.write(name, tmp_path / "again")
    found, again = CaptureReader(make_capture.path_of(name)), CaptureReader(tmp_path / "again")
    assert [repr(item) for item in again] == [repr(item) for item in found]
    found.close()
    again.close()


@pytest.mark.parametrize(("name", "most"), [("llm_session", 160_000), ("training_job", 400_000)])
def test_a_stored_capture_is_small(name: str, most: int) -> None:
    assert make_capture.path_of(name).stat().st_size < most


def told(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Spans as stored, with attributes by key."""
    spans = [
        span
        for line in lines
        for part in line.get("resourceSpans", [])
        for scope in part["scopeSpans"]
        for span in scope["spans"]
    ]
    for span in spans:
        span["attributes"] = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
    return spans


def test_the_stored_job_is_told_as_it_was(tmp_path: Path) -> None:
    """Whatever is taken over with --update-golden: a trace a collective, with all its ranks and one root."""
    spans = told(stored("training_job", "ops", tmp_path))
    traces: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        traces.setdefault(span["traceId"], []).append(span)
    found: Counter[tuple[str, str]] = Counter()
    for trace in traces.values():
        phases = [span["attributes"].get("nccl.phase") for span in trace]
        if "collective" not in phases:
            continue
        (root,) = (span for span in trace if not span.get("parentSpanId"))
        of = root["attributes"]
        calls = [span["attributes"] for span in trace if span.get("parentSpanId") == root["spanId"]]
        assert sorted(int(call["nccl.rank"]) for call in calls) == list(range(int(of["nccl.ranks.seen"])))
        assert of["nccl.ranks.seen"] == of["nccl.communicator.ranks"]
        found[of["nccl.communicator.hash"], root["name"]] += 1
    world, pair = (f"{hash_:016x}" for hash_ in (training_job.WORLD, training_job.PAIR))
    assert found == {
        (world, "AllReduce"): training_job.STEPS,
        **{(world, "Broadcast"): 1, (pair, "AllGather"): 1, (pair, "ReduceScatter"): 1},
    }
    fabric = [span for span in spans if span["name"].startswith("RDMA ")]
    assert len({span["traceId"] for span in fabric}) == 1  # both ends
    lives = [span["attributes"] for span in fabric if span["name"] == "RDMA queue pair"]
    assert [(life["rdma.total.bytes"], life["rdma.total.failures"]) for life in lives] == [
        (str(96 << 20), "0"),
        (str(96 << 20), "4"),
    ]


# -- layouts ----------------------------------------------------------------------------------------


def listing(family: str) -> str:
    """Every record of a family, field by field, and its enumerators."""
    btf = Btf(read_image(family).btf_section)
    kinds = btf.enumerators(f"{family}_kind")
    lines = [
        f"{enum} {name} = {value}" for enum in ENUMS[family] for name, value in btf.enumerators(enum).items()
    ]
    for name in dict.fromkeys(("record_head", *(record_struct(btf, family, kind) for kind in kinds))):
        dtype = btf.dtype(name)
        lines += ["", f"struct {name}: {dtype.itemsize} bytes", *fields(dtype)]
    return "\n".join(lines) + "\n"


def fields(dtype: np.dtype, prefix: str = "", base: int = 0) -> list[str]:
    lines = []
    for name, (part, offset, *_) in (dtype.fields or {}).items():
        if part.names and name != "head":
            lines += fields(part, f"{prefix}{name}.", base + offset)
            continue
        spelled = "record_head" if name == "head" else np.lib.format.dtype_to_descr(part.base)
        shape = "".join(f"[{n}]" for n in part.shape)
        lines.append(f"{base + offset:6} {part.itemsize:6}  {prefix}{name}: {spelled}{shape}")
    return lines


@pytest.mark.parametrize("family", ENUMS)
def test_record_layouts_are_those_stored(family: str, golden: Check) -> None:
    golden(f"layout_{family}.txt", listing(family))
