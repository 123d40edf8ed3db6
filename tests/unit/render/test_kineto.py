"""PyTorch's layout: the checker has the rules by which Kineto writes and its readers read.

Rules: pytorch/kineto at 114171d, libkineto/src/output_json.cpp; torch-tb-profiler 0.4.3, profiler/trace.py and
profiler/event_parser.py; HolisticTraceAnalysis 0.5.0, hta/common/trace_parser.py. tests/backends/test_tensorboard.py
has the readers themselves read.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind
from otelgpu.render.kineto import kineto, kineto_gz
from tests.unit.render.profile_columns import HOSTILE, START, profile
from tests.unit.render.test_timeline import OWNER, faults, kernels, launches, spans

KERNEL = "void flash_fwd<64>(float*)"
CATEGORIES = {
    *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"),
    *("user_annotation", "cpu_instant_event", "block_time", "ac2g", "Trace"),
}
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def kineto_faults(document: dict[str, Any]) -> list[str]:
    """Each rule that the document breaks, besides those of Chrome's format."""
    found = []
    if list(document)[:2] != ["schemaVersion", "deviceProperties"] or document["schemaVersion"] != 1:
        found.append("schemaVersion")
    if not isinstance(document.get("baseTimeNanoseconds"), int) or "traceName" not in document:
        found.append("baseTimeNanoseconds or traceName")
    devices = {each["id"] for each in document["deviceProperties"]}
    calls: Counter[int] = Counter()
    for event in document["traceEvents"]:
        category, args, what = event.get("cat"), event.get("args", {}), json.dumps(event)[:200]
        if event["ph"] == "X" and category not in CATEGORIES:
            found.append(f"category: {what}")
        if category in ON_DEVICE:
            if event["pid"] != args["device"] or args["device"] not in devices:
                found.append(f"device: {what}")
            if not isinstance(args.get("stream"), int) or not isinstance(args.get("correlation"), int):
                found.append(f"stream or correlation: {what}")
        if category in ("cuda_runtime", "cuda_driver") and "correlation" in args:
            calls[args["correlation"]] += 1
    found += [f"calls of one correlation: {number}" for number, count in calls.items() if count > 1]
    if not any(
        event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation"
        for event in document["traceEvents"]
        if event["ph"] == "X"
    ):
        found.append("no step")
    return found


def written(given: Sequence[SpanColumns], profiles: Sequence[ProfileColumns] = ()) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(kineto(given, profiles, title="t"))
    assert kineto_faults(document) == []
    named = [event for event in document["traceEvents"] if event.get("pid") != "Spans"]
    named = [event for event in named if event["name"] not in ("ProfilerStep#0", "process_labels")]
    assert faults(document | {"traceEvents": named}) == []
    return document


def of_category(document: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event.get("cat") == category and event["ph"] == "X"]


def called(*rows: tuple[str, int, int], api: str = "runtime", **columns: Any) -> SpanColumns:
    shape = {
        f"cuda_{what}_{axis}": [size] * len(rows)
        for what, size in (("grid", 8), ("block", 64))
        for axis in "xyz"
    }
    return launches(*rows, **({"cuda_api": [api] * len(rows)} | shape | columns))


def ran(*rows: tuple[str, int, int], **columns: Any) -> SpanColumns:
    streams: dict[str, Any] = {"cuda_stream_id": [7] * len(rows), "cuda_kernel_name": [KERNEL] * len(rows)}
    return kernels(*rows, **(streams | columns))


def test_a_kernel_is_of_its_device_and_stream_with_the_shape_and_the_number_of_its_launch() -> None:
    document = written([called(("cudaLaunchKernel flash_fwd", 0, 5)), ran(("flash_fwd", 10, 30))])
    [kernel], [call] = of_category(document, "kernel"), of_category(document, "cuda_runtime")
    assert (kernel["name"], kernel["pid"], kernel["tid"], kernel["ts"], kernel["dur"]) == (
        KERNEL,
        0,
        7,
        10,
        20,
    )
    assert (kernel["args"]["grid"], kernel["args"]["block"]) == ([8, 8, 8], [64, 64, 64])
    assert (call["name"], call["pid"], call["tid"]) == ("cudaLaunchKernel", 100, 7)
    assert call["args"]["correlation"] == kernel["args"]["correlation"]
    flow = {event["ph"]: event for event in document["traceEvents"] if event.get("cat") == "ac2g"}
    assert (flow["s"]["tid"], flow["f"]["pid"], flow["f"]["tid"]) == (7, 0, 7)
    assert document["deviceProperties"] == [{"id": 0}]


def test_processes_that_use_one_device_have_streams_and_numbers_of_their_own() -> None:
    other = resource({"process.pid": 101, "process.executable.name": "python3"})
    reported = [
        each
        for owner in (OWNER, other)
        for each in (called(("l", 0, 5), owner=owner), ran(("k", 10, 30), owner=owner))
    ]
    document = written(reported)
    kernels_ = of_category(document, "kernel")
    assert [event["args"]["stream"] for event in kernels_] == [7, 7]
    assert (
        len({event["tid"] for event in kernels_})
        == len({event["args"]["correlation"] for event in kernels_})
        == 2
    )


def test_kernels_of_one_graph_launch_have_its_number() -> None:
    graph = ran(("a", 10, 20), ("b", 20, 30), called=[0, 0], cuda_correlation_id=[5, 5])
    document = written([called(("cudaGraphLaunch", 0, 5)), graph])
    [call] = of_category(document, "cuda_runtime")
    assert {event["args"]["correlation"] for event in of_category(document, "kernel")} == {
        call["args"]["correlation"]
    }


def test_a_call_that_caused_nothing_that_was_measured_has_no_number() -> None:
    document = written([called(("cuLaunchKernel", 0, 5), api="driver")])
    [call] = of_category(document, "cuda_driver")
    assert call["args"].keys() == {"trace_id", "span_id"}


def test_copies_and_sets_say_their_direction_bytes_and_rate() -> None:
    def work(name: str, begin: int, **columns: Any) -> SpanColumns:
        made = kernels((name, begin, begin + 1), called=[begin - 5], cuda_stream_id=[7], **columns)
        return replace(
            made, attributes=tuple(each for each in made.attributes if each.key != "cuda.kernel.name")
        )

    host = called(("cudaMemcpyAsync", 0, 2), cuda_memcpy_kind=["MemcpyHostToDevice"], cuda_size=[4000])
    document = written([host, work("memcpy", 5, cuda_size=[0]), work("memset", 20, cuda_size=[512])])
    [copy], [set_] = of_category(document, "gpu_memcpy"), of_category(document, "gpu_memset")
    assert (copy["name"], copy["args"]["bytes"], copy["args"]["memory bandwidth (GB/s)"]) == (
        "Memcpy HtoD",
        4000,
        4.0,
    )
    assert (set_["name"], set_["args"]["bytes"]) == ("Memset (Device)", 512)


@pytest.mark.parametrize("kind", ["MemcpyDefault", None])
def test_a_direction_that_nobody_knows_is_called_so(kind: str | None) -> None:
    made = kernels(("memcpy", 5, 6), called=[0])
    work = replace(made, attributes=tuple(each for each in made.attributes if each.key != "cuda.kernel.name"))
    reported: dict[str, Any] = {"cuda_memcpy_kind": [kind]} if kind else {}
    host = called(("cudaMemcpyAsync", 0, 2), **reported)
    [copy] = of_category(written([host, work]), "gpu_memcpy")
    assert copy["name"] == "Memcpy Unknown"


def test_steps_are_those_of_the_profiler_and_without_any_the_whole_is_one() -> None:
    steps = spans(
        [("training step", 0, 50), ("training step", 50, 90)],
        scope="otelgpu.training",
        otelgpu_step_number=[3, 4],
    )
    document = written([steps])
    assert [(each["name"], each["ts"], each["dur"]) for each in of_category(document, "user_annotation")] == [
        ("ProfilerStep#3", 0, 50),
        ("ProfilerStep#4", 50, 40),
    ]
    [whole] = of_category(written([called(("l", 0, 5)), ran(("k", 10, 30))]), "user_annotation")
    assert (whole["name"], whole["ts"], whole["dur"]) == ("ProfilerStep#0", 0, 30)


def test_a_collective_has_the_name_that_readers_know_and_its_kernels_its_number() -> None:
    call = spans(
        [("ncclAllReduce", 0, 8)],
        scope="otelgpu.nccl",
        thread_id=[7],
        nccl_communicator_hash=["ab"],
        nccl_phase=["enqueue"],
        nccl_operation=["AllReduce"],
    )
    device = ran(("nccl", 10, 30), ("other", 30, 40), called=[2, 9], cuda_correlation_id=[1, 2])
    document = written([call, called(("l", 2, 3), ("l", 9, 10)), device])
    collective = next(
        each for each in of_category(document, "user_annotation") if each["name"].startswith("nccl")
    )
    assert collective["name"] == "nccl:all_reduce"
    reported = [event["args"].get("External id") for event in of_category(document, "kernel")]
    assert reported == [collective["args"]["External id"], None]


def test_the_rank_is_reported_where_the_file_is_of_one() -> None:
    def rank(number: int, size: int) -> SpanColumns:
        made = spans([("ncclCommInitRank", 0, 1)], scope="otelgpu.nccl", nccl_rank=[number])
        reported = Attribute.of("nccl.communicator.ranks", [size])
        return replace(made, attributes=(*made.attributes, reported))

    assert written([rank(3, 8), rank(1, 2)])["distributedInfo"] == {
        "backend": "nccl",
        "rank": 3,
        "world_size": 8,
    }
    assert "distributedInfo" not in written([rank(3, 8), rank(4, 8)])


def test_requests_and_samples_are_there_and_counted() -> None:
    request = spans([("chat", 0, 100)], scope="otelgpu.http", kind=SpanKind.SERVER)
    attributes = (Attribute.of("thread.id", [7]), Attribute.of("thread.name", ["worker"]))
    sample = profile([(("main", "py:step:3"), 10)], times=[START + 5000], owner=OWNER, attributes=attributes)
    document = written([request], [sample, profile({("a",): 1})])
    assert "chat" in {event["name"] for event in of_category(document, "user_annotation")}
    [instant] = [event for event in document["traceEvents"] if event["ph"] == "i"]
    assert (instant["cat"], instant["args"]["stack"]) == ("cpu_instant_event", ["step (model.py:3)", "main"])
    assert document["otelgpu"] == {"samples_shown": 1, "samples_left_out": 1, "events_without_room": 0}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_any_name_is_held(hostile: str) -> None:
    document = written([called((hostile, 0, 5)), ran(("k", 10, 30), cuda_kernel_name=[hostile or "k"])])
    [kernel] = of_category(document, "kernel")
    assert kernel["name"] == (hostile.encode("utf-8", "replace").decode() or "k")


def test_nothing_is_a_file_too_and_compressed_it_is_the_same() -> None:
    assert written([])["deviceProperties"] == []
    given = [called(("l", 0, 5)), ran(("k", 10, 30))]
    assert gzip.decompress(kineto_gz(given, title="t")) == kineto(given, title="t")


@pytest.mark.parametrize(
    "wrong",
    [
        {"pid": 1, "args": {"device": 0, "stream": 1, "correlation": 1}},
        {"args": {"device": 0, "correlation": 1}},
        {"cat": "otelgpu.cuda"},
    ],
)
def test_the_checker_finds_fault_with_what_is_wrong(wrong: dict[str, Any]) -> None:
    document = written([called(("l", 0, 5)), ran(("k", 10, 30))])
    of_category(document, "kernel")[0].update(wrong)
    assert kineto_faults(document) != []
