"""A PyTorch service on a real GPU under otelgpu: each request has its own GPU work, and what that costs in tokens.

On the fakes there is no PyTorch, so these are skipped there; test_real_gpu.py's run on both.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import otelgpu
from tests.gpu import probing
from tests.gpu.conftest import STAND_IN, Gpu
from tests.rig.spans import Span, read_spans

OTELGPU = Path(sys.executable).with_name("otelgpu")
SERVICE = Path(__file__).with_name("torch_service.py")
LIBRARY = Path(otelgpu.__file__).with_name("_inject") / "libotelgpu_inject.so"
SOURCES = {"uprobe": (), "inject": ("--source=inject",), "cupti": ("--source=inject", "--device-time")}
DECODING = {"eager": (), "graphs": ("--graphs",)}
Figure = Callable[[str, Any], None]


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    if STAND_IN:
        pytest.skip("the fakes are no device that PyTorch could compute on")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed in this environment")


@contextlib.contextmanager
def service(decoding: str, *prefix: str | Path, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """Its port. Ended by SIGTERM, and waited for: what it wrote is then complete."""
    command = [str(part) for part in (*prefix, sys.executable, SERVICE, *DECODING[decoding])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("listening on "):
                yield int(line.split()[-1])
                break
        else:
            pytest.fail(f"the service ended: {process.wait()}")
    finally:
        process.terminate()
        process.stdout.read()
        process.wait(60)


def request(port: int, tokens: int) -> dict[str, float]:
    """What a client saw of one request: when it began, tokens a second after the first, the time to the first."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
    asked = {
        "model": "random",
        "max_tokens": tokens,
        "stream": True,
        "messages": [{"role": "user", "content": "x"}],
    }
    began = time.perf_counter()
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(asked), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    times, last = [], {}
    for line in answer:
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
            last = json.loads(line[6:])
    connection.close()
    assert len(times) == tokens + 1  # the last has the usage
    return {
        "tokens": tokens,
        "ttft_s": times[0] - began,
        "tokens_per_s": 1 / statistics.median(b - a for a, b in itertools.pairwise(times[:-1])),
        "first_s": last["first_s"],
    }


def by_request(path: Path) -> list[tuple[Span, list[Span]]]:
    """Each generation's span with the spans of its trace, in the order in which they began."""
    traces: dict[str, list[Span]] = defaultdict(list)
    for span in read_spans(path):
        traces[span["traceId"]].append(span)
    found = [
        (span, spans)
        for spans in traces.values()
        for span in spans
        if "gen_ai.usage.output_tokens" in span["attributes"]
    ]
    return sorted(found, key=lambda each: each[0]["start"])


def launches(spans: Sequence[Span]) -> int:
    return sum(
        span["attributes"].get("otelgpu.count", 1)
        for span in spans
        if re.search("LaunchKernel|GraphLaunch", span["name"].split()[0])
    )


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("source", SOURCES)
def test_each_request_has_the_launches_of_its_tokens(
    tmp_path: Path, figure: Figure, source: str, decoding: str
) -> None:
    out = tmp_path / "spans.jsonl"
    asked = [8, 16, 24, 8, 16, 24]
    command = (OTELGPU, "run", "--quiet", f"--export=file:{out}", *SOURCES[source], "--")
    with service(decoding, *command) as port:
        time.sleep(2)
        request(port, 4)  # the first loads kernels
        seen = [request(port, tokens) for tokens in asked]
        together: list[dict[str, float]] = []
        threads = [threading.Thread(target=lambda: together.append(request(port, 16))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(1)
    _, *found = by_request(out)
    assert [root["attributes"]["gen_ai.usage.output_tokens"] for root, _ in found] == [*asked, 16, 16, 16, 16]
    counts = [launches(spans) for _, spans in found]
    per_token, rest = divmod(counts[1] - counts[0], 8)
    assert rest == 0
    assert per_token > 0
    fixed = counts[0] - 8 * per_token
    figure(
        f"PyTorch service, {decoding}, by {source}: launches of a request",
        {
            "a token": per_token,
            "fixed": fixed,
            "counts": counts,
            "device spans": [
                sum("cuda.correlation.id" in s["attributes"] for s in spans) for _, spans in found
            ],
            "ttft ms, ours and the client's": [
                [
                    round(root["attributes"]["gen_ai.latency.time_to_first_token"] * 1e3, 3),
                    round(s["ttft_s"] * 1e3, 3),
                ]
                for (root, _), s in zip(found, seen, strict=False)
            ],
            "span names": dict(Counter(span["name"] for _, spans in found for span in spans).most_common(25)),
            "attributes of a request": found[2][0]["attributes"],
        },
    )
    assert counts == [fixed + tokens * per_token for tokens in (*asked, 16, 16, 16, 16)]
    for (root, _), client in zip(found, seen, strict=False):
        ours = root["attributes"]["gen_ai.latency.time_to_first_token"]
        assert ours == pytest.approx(client["ttft_s"], abs=0.005)


@pytest.mark.parametrize("decoding", DECODING)
def test_which_functions_a_token_enters(gpu: Gpu, figure: Figure, decoding: str) -> None:
    """What of its launches comes by the runtime, and what by the driver alone: cuBLAS has a runtime inside it."""
    if why := probing.hindrance():
        pytest.skip(why)
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    runtime, *_ = Path(torch.origin).parent.parent.glob("nvidia/**/libcudart.so.*")
    of_runtime = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaGraphLaunch", "cudaMemcpyAsync")
    of_driver = ("cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2")
    places = [*((runtime, name) for name in of_runtime), *((gpu.driver, name) for name in of_driver)]
    with service(decoding) as port, probing.counting(*places) as counts:
        request(port, 16)
        before = counts()
        request(port, 100)
        after = counts()
    entered = {name: after[name] - before[name] for name in before}
    figure(f"PyTorch service, {decoding}: functions entered for 100 tokens", entered)
    assert entered["cuLaunchKernel"] + entered["cuLaunchKernelEx"] + entered["cuGraphLaunch"] >= 100


@pytest.mark.timeout(400)
@pytest.mark.parametrize("decoding", DECODING)
def test_what_observing_costs_in_tokens_per_second(tmp_path: Path, figure: Figure, decoding: str) -> None:
    """Also of the library alone, which no agent reads, and of observing requests without CUDA."""
    ways: dict[str, tuple[str, ...] | None] = {
        "alone": None,
        "library without agent": None,
        "requests only": ("--families=http",),
        **SOURCES,
    }
    rates: dict[str, list[float]] = defaultdict(list)
    for turn in range(3):  # by turns, so that what else the machine does falls on all
        for name, options in ways.items():
            out = tmp_path / f"{name}{turn}.jsonl"
            prefix = (
                () if options is None else (OTELGPU, "run", "--quiet", f"--export=file:{out}", *options, "--")
            )
            loaded = {"LD_PRELOAD": str(LIBRARY)} if name == "library without agent" else {}
            with service(decoding, *prefix, env=loaded) as port:
                time.sleep(1)
                request(port, 16)
                rates[name] += [request(port, 200)["tokens_per_s"] for _ in range(5)]
    # What else the machine does makes requests slower, never faster: the upper quartile has least of it.
    quartiles = {name: statistics.quantiles(values, n=4)[1:] for name, values in rates.items()}
    medians = {name: median for name, (median, _) in quartiles.items()}
    figure(
        f"PyTorch service, {decoding}: tokens a second: median, upper quartile, what is lost of that",
        {
            name: [round(median, 1), round(upper, 1), f"{1 - upper / quartiles['alone'][1]:.1%}"]
            for name, (median, upper) in quartiles.items()
        },
    )
    figure(f"PyTorch service, {decoding}: tokens a second, each request", rates)
    assert min(medians.values()) > 0.5 * medians["alone"]
