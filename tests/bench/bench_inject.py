"""The in-process source: what it costs the thread that calls, how fast it is read, and that nothing is lost.

The same call of the same program, bare, with the library in it, and (as root) with otelgpu's probe pair on it,
in turns. The library that is called does nothing, and the probes are on a copy of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from otelgpu.elf.btf import Btf
from otelgpu.kernel.injection.server import InjectError, InjectListener, Library, environment, read_library
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import read_image
from tests.bench.programs import BUILD, BenchError, Load, attached, build_load, running_load
from tests.bench.rows import Budget, Row, median, not_measured, spread
from tests.rig import cuda_include_flags
from tests.rig.inject_client import InjectClient, launches

NAME = "inject"
IDLE = Path(__file__).with_name("idle_cudart.c")
LOAD_RATE, LOAD_THREADS, CALLS_PER_REQUEST = 100_000, 4, 100
RING_BYTES = 1 << 23


def rows(quick: bool) -> list[Row]:
    try:
        library, btf = read_library(), read_image("cuda").btf
    except (InjectError, BpfError) as error:
        return [not_measured(NAME, "everything", "", str(error))]
    build_load()
    return [*_cost(library, btf, quick), _drained(library, btf, quick), *_kept(library, btf, quick)]


class Reader:
    """Drains in a thread, as the agent does, until the end of the block."""

    def __init__(self, library: Library, btf: Btf, ring_bytes: int = 1 << 20) -> None:
        self.listener = InjectListener(library.layout, btf, ring_bytes=ring_bytes)
        self.listener.start()
        self.env = environment(library.path, self.listener.path, os.environ)
        self.records = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._drain)
        self._collecting = threading.Lock()

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.collect()
        self.listener.close()

    def _drain(self) -> None:
        while not self._ended.wait(0.02):
            self.collect()

    def collect(self) -> None:
        with self._collecting:
            self.listener.gone()
            self.records += sum(len(batch.records) for batch in self.listener.drain())


def _cost(library: Library, btf: Btf, quick: bool) -> list[Row]:
    """Rounds are short enough for a ring, so that all calls are recorded."""
    rounds, calls = (5, 3_000) if quick else (100, 3_000)
    times: dict[str, list[float]] = {"bare": [], "inject": [], "no agent": [], "uprobe": []}
    with (
        tempfile.TemporaryDirectory(dir=BUILD) as folder,
        Reader(library, btf) as reader,
        running_load() as bare,
        running_load(reader.env) as injected,
        running_load({"LD_PRELOAD": str(library.path)}) as alone,
        running_load() as probed,
    ):
        idle, probed_library = _idle_library(Path(folder))
        loads = {"bare": bare, "inject": injected, "no agent": alone, "uprobe": probed}
        for load in loads.values():
            load.ask(f"open {probed_library if load is probed else idle}")
        with _probes(probed) as hindrance:
            if hindrance is not None:
                del loads["uprobe"]
            for _ in range(rounds):
                for name, load in loads.items():
                    times[name].append(load.ask(f"launch 1 {calls}") / calls)
                time.sleep(0.03)  # so that the reader gets its turn
        lost = {k: n for k, n in reader.listener.counters().items() if k != "submitted" and n}
    base = median(times["bare"])
    ours = median(times["inject"]) - base
    note = f"{spread(times['inject'])}; lost: {lost or 'nothing'}"
    found = [
        Row(bench=NAME, name="bare call", value=base, unit="ns/call"),
        Row(
            bench=NAME, name="in-process adds", value=ours, unit="ns/call",
            budget=Budget(limit=100, kind="at most"), note=note,
        ),
        Row(bench=NAME, name="without an agent", value=median(times["no agent"]) - base, unit="ns/call"),
    ]  # fmt: skip
    if hindrance is not None:
        return [*found, not_measured(NAME, "in-process adds, by the probe pair", "ns/call", hindrance)]
    found.append(
        Row(
            bench=NAME, name="in-process adds, by the probe pair", value=ours, unit="ns/call",
            baseline="uprobe pair", baseline_value=median(times["uprobe"]) - base,
            budget=Budget(limit=0.05, kind="at most", of="ratio"),
        )
    )  # fmt: skip
    return found


def _idle_library(folder: Path) -> tuple[Path, Path]:
    """Two copies of a libcudart that does nothing: probes are on a file, whoever maps it."""
    one, other = folder / "idle" / "libcudart.so.12", folder / "probed" / "libcudart.so.12"
    for copy in (one, other):
        copy.parent.mkdir()
    command = ["gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", *cuda_include_flags(), "-o", str(one)]
    made = subprocess.run([*command, str(IDLE)], capture_output=True, text=True, check=False)
    if made.returncode:
        raise BenchError(f"gcc failed on {IDLE}:\n{made.stderr}")
    shutil.copyfile(one, other)
    return one, other


@contextlib.contextmanager
def _probes(load: Load) -> Iterator[str | None]:
    """otelgpu attached to the load; or why it is not."""
    if os.geteuid() != 0:
        yield "needs root"
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(attached(load.pid))
        except BenchError as error:
            yield str(error).splitlines()[0]
            return
        yield None


def _drained(library: Library, btf: Btf, quick: bool) -> Row:
    """Rings that four threads have filled, read to one batch in the order of time."""
    count = RING_BYTES // (btf.dtype("cuda_call").itemsize + 8) - 1
    times = []
    listener = InjectListener(library.layout, btf, threads=LOAD_THREADS, ring_bytes=RING_BYTES)
    with contextlib.closing(listener):
        listener.start()
        for _ in range(3 if quick else 15):
            client = InjectClient(listener, library.layout, btf)
            now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            for thread in range(LOAD_THREADS):
                client.fill(thread, launches(btf, count, ends_ns=now_ns - 100 * thread))
            began = time.thread_time()
            batches = listener.drain()
            times.append(time.thread_time() - began)
            if sum(len(batch.records) for batch in batches) != LOAD_THREADS * count:
                raise BenchError(f"not every record was drained: {listener.counters()}")
    return Row(
        bench=NAME, name="drained, 4 rings", value=LOAD_THREADS * count / median(times), unit="records/s of CPU",
        budget=Budget(limit=2_000_000, kind="at least"),
    )  # fmt: skip


def _kept(library: Library, btf: Btf, quick: bool) -> list[Row]:
    seconds = 1 if quick else 60
    with Reader(library, btf) as reader:
        with running_load(reader.env) as load:
            said = load.ask(f"serve {LOAD_RATE} {seconds} {CALLS_PER_REQUEST} {LOAD_THREADS}")
        reader.collect()
        counters = reader.listener.counters()
    rate = said["calls"] / ((said["ended_ns"] - said["began_ns"]) / 1e9)
    counted = sum(n for reason, n in counters.items() if reason != "submitted")
    unaccounted = said["calls"] - reader.records - counted
    note = f"{said['calls']:,} calls in {seconds} s at {rate:,.0f}/s by {LOAD_THREADS} threads"
    return [
        Row(bench=NAME, name="lost, counted", value=counted, unit="records", note=note,
            budget=Budget(limit=0, kind="at most")),
        Row(bench=NAME, name="lost, not counted", value=unaccounted, unit="records", note=note,
            budget=Budget(limit=0, kind="at most")),
    ]  # fmt: skip
