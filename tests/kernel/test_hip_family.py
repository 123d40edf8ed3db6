"""A family that was added to a copy of the tree, run: HIP, from a fake libamdhip64 to spans, metrics, profiles, `top`,
the viewer and a timeline, each by its own names. tests/contract/test_added_families.py has what needs no root.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.observing import OTELGPU, said_at_start
from tests.rig.checkout import Checkout, missing_for_checkout, with_families
from tests.rig.fakes import ROOT
from tests.rig.metrics import metrics_reported
from tests.rig.spans import Span, attributes_of, read_spans

pytestmark = pytest.mark.long

SOURCES = ROOT / "tests" / "contract" / "data" / "hip"
CALLS = {
    "hipSetDevice": 1,
    "hipStreamCreate": 1,
    "hipMalloc": 14,
    "hipMallocManaged": 5,
    "hipHostMalloc": 3,
    "hipMemcpy": 28,
    "hipLaunchKernel axpy": 23,
    "hipLaunchKernel scale": 7,
    "hipStreamSynchronize": 19,
    "hipMemset": 2,
    "hipFree": 6,
}
"""What the program of program.c says that it does; what these call inside the library is part of them."""
DEVICE, MANAGED, HOST = 64 << 10, 4 << 10, 8 << 10


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    if missing := missing_for_checkout():
        pytest.skip(f"needs {missing}")
    return with_families(tmp_path_factory.mktemp("added") / "tree", "hip")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, beside the fake of the library."""
    folder = tmp_path_factory.mktemp("hip")
    common = ("gcc", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer")
    library, made = folder / "libamdhip64.so.6", folder / "program"
    shared = ("-O2", "-shared", "-fPIC", f"-Wl,-soname,{library.name}")
    subprocess.run([*common, *shared, "-o", library, SOURCES / "libamdhip64.c"], check=True)
    linked = (f"-L{folder}", f"-l:{library.name}", "-Wl,-rpath,$ORIGIN", "-rdynamic")
    subprocess.run([*common, "-O0", "-o", made, SOURCES / "program.c", *linked], check=True)
    return made


def otelgpu(checkout: Checkout, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The copy's."""
    return subprocess.run(
        [OTELGPU, *map(str, arguments)],
        cwd=checkout.root,
        env=checkout.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


class Observed:
    """A run of the program under the copy's otelgpu, which wrote `lines` and said `summary`."""

    def __init__(self, checkout: Checkout, program: Path, lines: Path) -> None:
        export, profiles = f"--export=file:{lines}", "--profiles=cuda,kernel,mem"
        done = otelgpu(checkout, "run", "--detail=all", export, profiles, "--", program)
        self.lines, self.summary = lines, done.stderr

    @property
    def spans(self) -> list[Span]:
        return [span for span in read_spans(self.lines) if span["scope"] == "otelgpu.hip"]

    def points(self, name: str) -> list[dict[str, Any]]:
        """How a metric stood in each report: attributes and value of each series."""
        return [
            {**attributes_of(point), "value": _value(point)}
            for reported in metrics_reported(self.lines)
            if reported.metric["name"] == name
            for point in reported.points
        ]

    @property
    def metric_names(self) -> set[str]:
        return {reported.metric["name"] for reported in metrics_reported(self.lines)}


def _value(point: dict[str, Any]) -> float:
    """Of a histogram its sum."""
    return float(point.get("asInt", point.get("asDouble", point.get("sum", 0))))


@pytest.fixture(scope="module")
def observed(checkout: Checkout, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return Observed(checkout, program, tmp_path_factory.mktemp("run") / "out.jsonl")


def test_each_call_is_one_span(observed: Observed) -> None:
    assert Counter(span["name"] for span in observed.spans) == CALLS
    assert sum(CALLS.values()) == 109


def test_calls_say_what_they_were_called_with(observed: Observed) -> None:
    copied = Counter[str]()
    for span in observed.spans:
        if span["name"] == "hipMemcpy":
            copied[span["attributes"]["hip.memcpy.kind"]] += span["attributes"]["hip.size"]
    assert copied == {"hipMemcpyHostToDevice": 17 * 4096, "hipMemcpyDeviceToHost": 11 * 4096}
    launch = next(span["attributes"] for span in observed.spans if span["name"] == "hipLaunchKernel axpy")
    shape = [launch[f"hip.{what}.{axis}"] for what in ("grid", "block") for axis in "xyz"]
    assert (shape, launch["hip.shared_memory.size"]) == ([8, 4, 2, 128, 1, 1], 512)
    assert (launch["hip.kernel.name"], launch["hip.device.index"]) == ("axpy", 1)


def test_the_one_that_failed_says_so(observed: Observed) -> None:
    failed = [(span["name"], span["attributes"]["error.type"]) for span in observed.spans if span["status"]]
    assert failed == [("hipMalloc", "hipErrorOutOfMemory")]


def test_memory_is_under_names_of_its_own(observed: Observed) -> None:
    def last(name: str, kind: str) -> float:
        labels = {"hip.memory.kind": kind, "hip.device.index": 1}
        return [point["value"] for point in observed.points(name) if labels.items() <= point.items()][-1]

    assert last("gpu.hip.memory.peak", "device") == 13 * DEVICE
    assert last("gpu.hip.memory.peak", "managed") == 5 * MANAGED
    assert last("gpu.hip.memory.usage", "device") == 0  # the program has ended
    assert last("gpu.hip.memory.allocation.failures", "device") == 1
    assert observed.points("gpu.hip.memory.allocations")[-1]["value"] == 13 * DEVICE + 5 * MANAGED
    assert observed.points("gpu.hip.kernel.launch.calls")[-1]["value"] == 30
    assert [name for name in observed.metric_names if "cuda" in name] == []


def test_profiles_count_its_calls_and_bytes(observed: Observed) -> None:
    sums: Counter[str] = Counter()
    for line in observed.lines.read_text().splitlines():
        found = json.loads(line)
        words = found.get("dictionary", {}).get("stringTable", ())
        for of_resource in found.get("resourceProfiles", ()):
            for profile in (each for scope in of_resource["scopeProfiles"] for each in scope["profiles"]):
                kind = words[profile["sampleType"]["typeStrindex"]]
                sums[kind] += sum(int(value) for sample in profile["samples"] for value in sample["values"])
    assert sums["hip_calls"] == 109
    assert sums["kernel_launches"] == 30
    assert sums["device_memory_allocated"] == 13 * DEVICE + 5 * MANAGED + 3 * HOST
    assert [kind for kind in sums if "cuda" in kind] == []


def test_the_summary_says_calls_of_no_vendor(observed: Observed) -> None:
    assert "\nCalls: 109 " in observed.summary
    assert "hipMalloc: hipErrorOutOfMemory" in observed.summary
    assert "CUDA" not in observed.summary


# The page's own program (Node), with what the copy's families say of their spans.
KINDS = """
import json, sys
from pathlib import Path
from tests.unit.view.page_program import PageProgram, batch
program = PageProgram()
lines = [line for line in Path(sys.argv[1]).read_bytes().splitlines(keepends=True) if b"resourceSpans" in line]
print(json.dumps(program.ask("Array.from(model.ids, (_, row) => kindOf(model, row))", [batch(*lines)])))
program.close()
"""


def test_the_viewer_has_its_calls_by_kind(checkout: Checkout, observed: Observed, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    otelgpu(checkout, "view", observed.lines, "-o", page, "--no-open")
    assert '"scope":"otelgpu.hip"' in page.read_text()
    done = checkout.python("-c", KINDS, str(observed.lines))
    kinds = Counter(json.loads(done.stdout))
    del kinds["unattributed"]
    assert kinds == {"launch": 30, "copy": 30, "sync": 19, "memory": 28, "call": 2}, done.stderr


def test_a_capture_replayed_gives_the_same_and_a_timeline(
    checkout: Checkout, program: Path, observed: Observed, tmp_path: Path
) -> None:
    capture, lines, timeline = tmp_path / "x.capture", tmp_path / "x.jsonl", tmp_path / "x.json"
    otelgpu(checkout, "record", "--families=hip", "-o", capture, "--", program)
    otelgpu(checkout, "replay", "--detail=all", capture, f"--export=file:{lines}", "-o", timeline)
    replayed = Counter(span["name"] for span in read_spans(lines) if span["scope"] == "otelgpu.hip")
    assert replayed == Counter(span["name"] for span in observed.spans)
    events = json.loads(timeline.read_text())["traceEvents"]
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    drawn = Counter(
        tracks[event["pid"], event["tid"]].split()[0]
        for event in events
        if event["ph"] == "X" and event["name"].startswith("hip")
    )
    assert drawn == {"thread": 109}


@pytest.fixture
def running(program: Path) -> Iterator[subprocess.Popen[str]]:
    """The program, which goes on launching when it is told to begin."""
    with subprocess.Popen(
        [program, "--forever", "--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_memory_in_use_is_what_it_holds_and_top_shows_its_launches(
    checkout: Checkout, running: subprocess.Popen[str], tmp_path: Path
) -> None:
    lines = tmp_path / "out.jsonl"
    attach = [
        OTELGPU,
        "attach",
        f"-p{running.pid}",
        f"--export=file:{lines}",
        "--detail=phases",
        "--families=hip",
    ]
    with subprocess.Popen(
        attach, cwd=checkout.root, env=checkout.environment, stderr=subprocess.PIPE, text=True
    ) as agent:
        assert "observing" in said_at_start(agent)
        assert running.stdin is not None and running.stdout is not None
        running.stdin.write("go\n")
        running.stdin.flush()
        assert running.stdout.readline() == "done\n"
        agent.terminate()
        agent.communicate(timeout=60)
    usage = {
        (attributes_of(point)["hip.memory.kind"], attributes_of(point)["hip.device.index"]): int(
            point["asInt"]
        )
        for reported in metrics_reported(lines)
        if reported.metric["name"] == "gpu.hip.memory.usage"
        for point in reported.points
    }
    assert usage == {("device", 1): 7 * DEVICE, ("managed", 1): 5 * MANAGED}
    top = otelgpu(checkout, "top", "hip", f"-p{running.pid}", "--once", "--json", "--interval=1")
    (row,) = json.loads(top.stdout)["processes"]
    assert row["pid"] == running.pid
    assert 10 < row["launches_per_s"] < 1100  # one a millisecond, and what a launch takes
