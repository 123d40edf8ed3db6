"""Write the stored captures: ``python -m tests.golden.make_capture``.

Run it when a record changes. The bytes depend on the record layouts and on what is written here alone:
no clock, no process, no kernel. What ``llm_session`` holds is in :func:`session`, what ``training_job`` holds
in :mod:`tests.golden.training_job`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import CallsCounted, FunctionNamed, Input, LossCounted, Tick
from otelgpu.model.operations import Memory, OperationKind
from otelgpu.sources.capture import CaptureWriter, Header
from tests.golden import training_job
from tests.unit.families.records import MS, UNIX_OFFSET_NS, Host, completion, joined, plain_answer

OWN = {"service.name": "otelgpu", "service.version": "golden", "process.pid": 1}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"


def session() -> list[Input]:
    """A streamed and an unstreamed completion, a sampled and an unsampled caller, errors, unlinked work, memory."""
    host = Host()
    for connection in (1, 2, 3):
        host.accept(connection, tid=100 + connection)
    host.serve(connection=1, tid=101, tokens=4, traceparent=f"{PARENT}-01", tracestate="vendor=a")
    host.serve(connection=2, tid=102, tokens=2, traceparent=f"{PARENT}-00")
    host.ask(connection=3, tid=103, stream=False)
    host.cuda("cuda_allocation", "cudaMalloc", tid=103, bytes=1 << 34, status=2)
    host.launch(0x3000, times=3, tid=103)
    host.cuda("cuda_graph_launch", "cudaGraphLaunch", tid=103, object=0x77, stream=0x55, extra=17)
    host.copy(1 << 20, tid=103, detail=2)
    host.write(completion(prompt_tokens=11, completion_tokens=2), connection=3, tid=103)
    host.read(b"GET /health HTTP/1.1\r\nuser-agent: probe/1\r\n\r\n", connection=3, tid=103)
    host.write(plain_answer(503, b"busy"), connection=3, tid=103)
    host.launch(0x2000, times=5, tid=200, took_ns=2 * MS)
    for size in (1 << 20, 1 << 21):
        given = {"object": 0x7000_0000 + size, "bytes": size, "memory": Memory.DEVICE, "caller": 0x4000}
        host.cuda("cuda_allocation", "cuMemAlloc_v2", tid=200, device=1, **given)
    host.cuda("cuda_set", "cuMemsetD8Async", tid=200, object=0x7000_0000, bytes=512, device=1)
    host.cuda("cuda_event", "cudaEventRecord", tid=200, object=0x88, stream=0x55)
    host.cuda("cuda_free", "cudaFree", tid=200, object=0x7000_0000 + (1 << 20), memory=Memory.DEVICE)
    host.cuda("cuda_free", "cudaFree", tid=200, object=0x1234, memory=Memory.DEVICE)
    host.close(1)
    host.ask(connection=2, tid=102)
    host.launch(0x1000, tid=102)
    named = FunctionNamed(
        tgid=host.tgid,
        address=0x3000,
        name="libmodel.so+0x1a2b",
        known=False,
        module="libmodel.so",
        build_id="1b2c7e90",
        offset=0x1A2B,
    )
    site = FunctionNamed(tgid=host.tgid, address=0x4000, name="load_weights()+0x1f", known=True)
    inputs: list[Input] = [*host.preamble(), named, site]
    half = len(host.sent) // 2
    inputs += [
        *joined([s.batch for s in host.sent[:half]]),
        Tick(time_ns=host.sent[half - 1].submitted_ns + 1),
    ]
    inputs += [
        *joined([s.batch for s in host.sent[half:]]),
        LossCounted(family="cuda", reason="ring_full", count=3),
        CallsCounted(
            tgid=host.tgid, family="cuda", kind=OperationKind.LAUNCH, api="cudaLaunchKernel", count=9
        ),
    ]
    gone = host.gone()
    return [*inputs, Tick(time_ns=gone.time_ns - 1), gone, Tick(time_ns=gone.time_ns + 10_000 * MS)]


class Capture(NamedTuple):
    """``families``: those whose record layouts it holds."""

    inputs: Callable[[], list[Input]]
    families: Sequence[str]


CAPTURES: Final = {
    "llm_session": Capture(session, ("cuda", "http", "sched")),
    "training_job": Capture(training_job.job, training_job.FAMILIES),
}


def path_of(name: str) -> Path:
    return Path(__file__).parent / f"{name}.capture"


def write(name: str, path: Path) -> None:
    header = Header(
        version="golden",
        seed=20_240_607,
        start_unix_ns=UNIX_OFFSET_NS,
        own=OWN,
        btf={family: read_image(family).btf_section for family in CAPTURES[name].families},
    )
    writer = CaptureWriter(path, header)
    for item in CAPTURES[name].inputs():
        writer.write(item)
    writer.close()


if __name__ == "__main__":
    for each in CAPTURES:
        write(each, path_of(each))
        print(f"{path_of(each)}: {path_of(each).stat().st_size} bytes")
