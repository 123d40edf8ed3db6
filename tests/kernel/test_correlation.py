"""Against the truth that the example server writes: whose CUDA work it was, and when the first token came."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from examples.llm_server.client import Load, run
from otelgpu.kernel import clock
from tests.kernel.observing import OTELGPU, PROBED, Span, probed, read_metrics, read_spans
from tests.rig import LlmServer, start_llm_server

AGREEMENT_S = 0.002
CLOCK_NS = 100_000  # CLOCK_REALTIME is slewed against CLOCK_MONOTONIC while a session lasts


def send(server: LlmServer, requests: int, concurrency: int, max_tokens: int) -> list[dict[str, Any]]:
    """Streamed requests over kept-alive connections; the server's own lines about those that count."""
    load = Load(
        url=server.url,
        requests=requests,
        concurrency=concurrency,
        stream=True,
        max_tokens=max_tokens,
        api="chat",
        model="example-7b",
        prompt="Who did this work?",
        traceparent=False,
    )
    outcomes = run(load)
    assert [o.error for o in outcomes if o.error or o.status != 200] == []
    return server.truth(requests, timeout_s=30)


def by_response(spans: list[Span]) -> dict[str, tuple[Span, list[Span]]]:
    """Response id → the request's span, and the operations in its trace."""
    traces = defaultdict(list)
    for span in spans:
        traces[span["traceId"]].append(span)
    return {
        span["attributes"]["gen_ai.response.id"]: (
            span,
            [s for s in traces[span["traceId"]] if s["name"].startswith("cuda")],
        )
        for span in spans
        if "gen_ai.response.id" in span["attributes"]
    }


def test_every_call_of_200_clients_is_under_its_own_request(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    with start_llm_server(
        threads=10,
        env={"LLM_TRUTH_CALLS": "1"},
        prefix=(OTELGPU, "run", "--detail=all", "--ring-bytes=33554432", f"--export=file:{traces}", "--"),
    ) as server:
        truth = send(server, requests=600, concurrency=200, max_tokens=3)
        before = clock.anchor()
    spans = read_spans(traces)
    found = by_response(spans)
    assert found.keys() == {line["id"] for line in truth}
    offset = before.unix_ns - before.monotonic_ns
    wrong: list[str] = []
    for line in truth:
        request, operations = found[line["id"]]
        made = probed(line["cuda_calls"])
        seen = Counter(span["name"].split()[0] for span in operations)
        if dict(seen) != made:
            wrong.append(f"{line['id']}: saw {dict(seen)}, made {made}")
            continue
        if {span["attributes"]["thread.id"] for span in operations} != {line["thread_id"]}:
            wrong.append(f"{line['id']}: calls of other threads")
        # The n-th call of a function began just after the server noted it, and before its next note.
        notes = [*sorted(time_ns for _, time_ns in line["cuda_call_times"]), line["end_ns"]]
        for function in made:
            starts = sorted(s["start"] - offset for s in operations if s["name"].split()[0] == function)
            times = [time_ns for name, time_ns in line["cuda_call_times"] if name == function]
            for start, time_ns in zip(starts, times, strict=True):
                following = next(note for note in notes if note > time_ns)
                if not time_ns - CLOCK_NS <= start <= following + CLOCK_NS:
                    wrong.append(f"{line['id']}: {function} at {start}, not in {time_ns} … {following}")
        if not all(request["start"] <= s["start"] and s["end"] <= request["end"] for s in operations):
            wrong.append(f"{line['id']}: calls outside of the request's time")
    assert wrong == []
    reported = sum(len(operations) for _, operations in found.values())
    assert reported == sum(sum(probed(line["cuda_calls"]).values()) for line in truth)
    linked = {s["spanId"] for _, operations in found.values() for s in operations}
    assert [s["name"] for s in spans if s["name"].split()[0] in PROBED and s["spanId"] not in linked] == []


def test_folded_calls_add_up_to_the_truth(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    with start_llm_server(threads=4, prefix=(OTELGPU, "run", f"--export=file:{traces}", "--")) as server:
        truth = send(server, requests=20, concurrency=8, max_tokens=40)
    found = by_response(read_spans(traces))
    for line in truth:
        request, operations = found[line["id"]]
        seen: Counter[str] = Counter()
        for span in operations:
            seen[span["name"].split()[0]] += span["attributes"].get("otelgpu.count", 1)
        made = probed(line["cuda_calls"])
        assert dict(seen) == made
        assert request["attributes"]["cuda.launch.calls"] == made["cudaLaunchKernel"]


def test_requests_have_all_their_calls_where_probes_lose_the_processor(tmp_path: Path) -> None:
    """Others want all processors: now and then a probe's program waits for one while it writes its record."""
    traces = tmp_path / "traces.jsonl"
    burn = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as others:
        for _ in range(3 * (os.cpu_count() or 1)):
            others.callback(others.enter_context(subprocess.Popen(burn)).kill)
        with start_llm_server(threads=4, prefix=(OTELGPU, "run", f"--export=file:{traces}", "--")) as server:
            truth = send(server, requests=20, concurrency=8, max_tokens=40)
    found = by_response(read_spans(traces))
    for line in truth:
        request, _ = found[line["id"]]
        assert request["attributes"]["cuda.launch.calls"] == probed(line["cuda_calls"])["cudaLaunchKernel"]
    losses = read_metrics(traces).get("otelgpu.losses", [])
    assert "late_operations" not in {point["attributes"]["otelgpu.reason"] for point in losses}


def test_ttft_and_tpot_agree_with_the_server(tmp_path: Path, record_property: Any) -> None:
    """All of 100 requests within 2 ms.

    What lies between the read that otelgpu sees and the application's first line belongs to one figure and
    not to the other: when the server waits for a processor just then, that is no error of either. So the
    server goes before other programs; an attempt may have outliers all the same, reported as they are, and one
    of three must have none.
    """
    reports = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        ttft, tpot = measure_differences(folder)
        reports.append(
            ", ".join(
                f"{name} median {values[50] * 1e3:.3f} ms, max {values[-1] * 1e3:.3f} ms"
                for name, values in (("TTFT", ttft), ("TPOT", tpot))
            )
        )
        print(f"attempt {attempt}: {reports[-1]}")
        assert len(ttft) == 100
        assert ttft[75] <= AGREEMENT_S, reports
        assert tpot[-1] <= AGREEMENT_S, reports
        if ttft[-1] <= AGREEMENT_S:
            break
    else:
        raise AssertionError(reports)
    record_property("agreement", reports)


def undisturbed() -> tuple[str, ...]:
    """A command prefix for a program that other programs shall not keep from a processor, if that is allowed."""
    prefix = ("chrt", "--rr", "10")
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return prefix if tried.returncode == 0 else ()


def measure_differences(folder: Path) -> tuple[list[float], list[float]]:
    """How far TTFT and TPOT of 100 requests are from the server's own, in seconds, ascending."""
    traces = folder / "traces.jsonl"
    with start_llm_server(
        env={"FAKE_CUDART_KERNEL_US": "500"},
        prefix=(OTELGPU, "run", f"--export=file:{traces}", "--", *undisturbed()),
    ) as server:
        # The first request of each thread imports and binds things between the read and the handler.
        warm = len(send(server, requests=20, concurrency=10, max_tokens=1))
        truth = send_more(server, warm, requests=100, concurrency=4, max_tokens=8)
    found = by_response(read_spans(traces))
    differences = []
    for line in truth:
        reported = found[line["id"]][0]["attributes"]
        differences.append(
            (
                abs(
                    reported["gen_ai.latency.time_to_first_token"]
                    - reported.get("otelgpu.http.time_to_read", 0)
                    - line["ttft_s"]
                ),
                abs(reported["otelgpu.gen_ai.time_per_output_token"] - line["tpot_s"]),
            )
        )
    ttft, tpot = (sorted(column) for column in zip(*differences, strict=True))
    return ttft, tpot


def send_more(
    server: LlmServer, before: int, *, requests: int, concurrency: int, max_tokens: int
) -> list[dict[str, Any]]:
    """Like `send`, on a server that has answered some already."""
    send(server, requests=requests, concurrency=concurrency, max_tokens=max_tokens)
    return server.truth(before + requests, timeout_s=30)[before:]


@pytest.mark.parametrize("workers", [2])
def test_each_worker_s_requests_hold_their_own_work(tmp_path: Path, workers: int) -> None:
    traces = tmp_path / "traces.jsonl"
    with start_llm_server(
        workers=workers, threads=3, prefix=(OTELGPU, "run", f"--export=file:{traces}", "--")
    ) as server:
        truth = send(server, requests=40, concurrency=12, max_tokens=4)
    found = by_response(read_spans(traces))
    for line in truth:
        request, operations = found[line["id"]]
        assert request["resource"]["process.pid"] == line["pid"]
        assert {s["resource"]["process.pid"] for s in operations} == {line["pid"]}
