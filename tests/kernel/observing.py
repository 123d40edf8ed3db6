"""otelgpu as these tests use it: a live source in this process, or the command line in one of its own.

In: what to observe. Out: records as the kernel wrote them, or spans as a backend would get them.
"""

from __future__ import annotations

import ctypes
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from otelgpu.engine import registry
from otelgpu.kernel.loader import Image
from otelgpu.kernel.scope import Scope
from otelgpu.model.inputs import Batch, CallsCounted, FunctionNamed, Input, Records
from otelgpu.model.operations import DEVICE_KINDS
from otelgpu.model.profiling import ProfileSettings
from otelgpu.model.settings import Settings
from otelgpu.processes.probes import ProbedFile
from otelgpu.sources.live import LiveSettings, LiveSource
from tests.rig import ROOT, fake_cudart_path
from tests.rig.metrics import metrics_reported
from tests.rig.spans import Span, attributes_of, spans_of_lines
from tests.rig.spans import cuda_calls as cuda_calls
from tests.rig.spans import read_spans as read_spans
from tests.rig.spans import spans_of as spans_of
from tools.cuda_calls import calls

OTELGPU: Final = str(Path(sys.executable).with_name("otelgpu"))
PUMP_S: Final = 0.02
_PROGRAMS_LINE: Final = re.compile(r"^(?!otelgpu: ).*\n", re.MULTILINE)
WAIT_S: Final = 60.0  # for what must come: on a machine that does other things as well, it comes late
Result = TypeVar("Result")


class Watch:
    """A live source that is drained while a test's work runs in a thread beside it.

    The process that watches is never observed itself: its children are, by `observe`.
    """

    def __init__(
        self,
        *,
        families: tuple[str, ...] = ("cuda",),
        scope: Scope | None = None,
        ring_bytes: int = 8 << 20,
        return_probes: bool = True,
        sessions: bool = True,
        hold_on_load: bool = False,
        constants: Mapping[str, int] | None = None,
        of_families: Mapping[str, object] | None = None,
        keep_probes_s: float = 300.0,
        profile: ProfileSettings | None = None,
    ) -> None:
        self.inputs: list[Input] = []
        settings = LiveSettings(
            ring_bytes={},
            default_ring_bytes=ring_bytes,
            return_probes=return_probes,
            sessions=sessions,
            hold_on_load=hold_on_load,
            constants=constants or {},
            families=Settings({"profiling": profile or ProfileSettings(), **(of_families or {})}),
            keep_probes_s=keep_probes_s,
        )
        self.source = LiveSource(registry.select(families), scope or Scope(), settings)
        self._before: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()

    def start_anew(self) -> None:
        """Forget what was collected and counted so far."""
        self.source.collect()
        self.inputs.clear()
        self._before = self.source.totals()

    def settle(self, folder: Path) -> None:
        """Wait until attaching is quick: the kernel may still be busy with probes that others took off."""
        for number in range(20):
            copy = folder / f"settle{number}" / "libcudart.so.12"
            copy.parent.mkdir()
            shutil.copy(fake_cudart_path(), copy)
            began = time.monotonic()
            self.source.prepare_file(copy)
            if time.monotonic() - began < 0.1:
                return
        raise AssertionError(
            "attaching to a file stays slow: something else attaches and detaches all the time"
        )

    def observe(self, *tgids: int) -> None:
        """Bring processes into scope."""
        for tgid in tgids:
            self.source.observe(tgid)

    def pump(self, seconds: float) -> None:
        """Handle events and collect for a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.source.wait(min(left, PUMP_S))
            self.inputs += self.source.collect()

    def during(self, work: Callable[[], Result], *, drain: bool = True, limit_s: float = 60) -> Result:
        """Run `work` in a thread, handle events meanwhile, collect what is left; its result or its exception.

        Without `drain` nothing is collected before the work is done.
        """
        outcome: list[Result] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(work())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        until = time.monotonic() + limit_s
        while thread.is_alive():
            if drain:
                self.pump(PUMP_S)
            else:
                thread.join(PUMP_S)
            assert time.monotonic() < until, f"the work was not done in {limit_s} s"
        thread.join()
        self.inputs += self.source.collect()
        if failure:
            raise failure[0]
        return outcome[0]

    def records(self, kind: str | None = None) -> list[np.void]:
        """Records of one kind (an enumerator of the family's kinds, in small letters) or of all, as collected."""
        return [record for rows in self._rows(kind) for record in rows]

    def column(self, kind: str, field: str) -> npt.NDArray[Any]:
        """One field of all records of a kind."""
        found = [rows[field] for rows in self._rows(kind)]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.uint64)

    def _rows(self, kind: str | None) -> Iterator[Records]:
        for item in self.inputs:
            if isinstance(item, Batch):
                kinds = self.source.btf[item.family].enumerators(f"{item.family}_kind")
                if kind is None:
                    yield item.records
                elif kind.upper() in kinds:
                    chosen = item.records[item.heads["kind"] == kinds[kind.upper()]]
                    if len(chosen):
                        yield chosen

    def api_names(self) -> dict[int, str]:
        """Numbers of `enum cuda_api` → functions."""
        numbers = self.source.btf["cuda"].enumerators("cuda_api")
        return {number: name.removeprefix("API_") for name, number in numbers.items()}

    def calls(self, tgid: int | None = None) -> dict[str, int]:
        """CUDA calls by function, of one process or of all; those that report names are none."""
        names = self.api_names()
        found: Counter[str] = Counter()
        for item in self.inputs:
            if isinstance(item, Batch) and item.family == "cuda":
                mine = item.heads["kind"] <= DEVICE_KINDS[-1]
                if tgid is not None:
                    mine &= item.heads["tgid"] == tgid
                found.update(names[int(api)] for api in item.records["api"][mine])
        return dict(found)

    def counted(self) -> dict[str, int]:
        """CUDA calls by function that were counted in place of being recorded."""
        found: Counter[str] = Counter()
        for item in self.inputs:
            if isinstance(item, CallsCounted):
                found[item.api] += item.count
        return dict(found)

    def names(self) -> dict[int, FunctionNamed]:
        """Answers of the symbol tables by address."""
        return {item.address: item for item in self.inputs if isinstance(item, FunctionNamed)}

    def total(self, room: str, reason: str) -> int:
        """A counter since the start of the source or of the test."""
        return self.source.totals().get((room, reason), 0) - self._before.get((room, reason), 0)

    def losses(self) -> dict[tuple[str, str], int]:
        """Every counter of something lost or skipped that grew since then."""
        now = self.source.totals()
        grown = {key: count - self._before.get(key, 0) for key, count in now.items()}
        return {key: count for key, count in grown.items() if count and key[1] != "submitted"}

    def probed_file(self, path: Path) -> ProbedFile:
        """The only probed_file that is known under this path."""
        found = [p for p in self.source.probed_files if p.path == str(path)]
        assert len(found) == 1, (path, self.source.probed_files)
        return found[0]


TELL_NAMES: Final = frozenset(("KERNEL", "REGISTRATION", "NAME"))
PROBED: Final = frozenset(call.symbol for call in calls() if call.kind not in TELL_NAMES)
"""The functions that have probes, besides those that give kernels their handles and names."""


def probed(calls: dict[str, int] | Counter[str]) -> dict[str, int]:
    """Those of a program's own counts that otelgpu can see."""
    return {name: count for name, count in calls.items() if name in PROBED}


def read_metrics(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The data points of each metric at the end of a session, their attributes as plain mappings.

    Of a resource that is gone by then: when they were reported last. Points of one time may come in parts, and twice:
    when nothing has happened in between, the end is of the same time as the interval before it.
    """
    last: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for metric, described, points in metrics_reported(path):
        key = metric["name"], str(described)
        before = last.get(key, [])
        goes_on = before and before[0]["timeUnixNano"] == points[0]["timeUnixNano"]
        new = [point | {"attributes": attributes_of(point), "resource": described} for point in points]
        series = [point["attributes"] for point in new]
        last[key] = [point for point in before if goes_on and point["attributes"] not in series] + new
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, _), points in last.items():
        found.setdefault(name, []).extend(points)
    return found


def requests(spans: Sequence[Span]) -> list[Span]:
    """The spans of HTTP requests."""
    return [span for span in spans if span["kind"] == 2]


def compiled_image(name: str, folder: Path, family: str = "process") -> Image:
    """A BPF object of tests/kernel/data, with what family process has of maps and counters."""
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip(f"clang is not on PATH: {name}.bpf.c cannot be compiled")
    source, output = ROOT / "tests/kernel/data" / f"{name}.bpf.c", folder / f"{name}.bpf.o"
    flags = ("-g", "-O2", "-target", "bpf", "-D__TARGET_ARCH_x86")
    subprocess.run([clang, *flags, "-c", source, "-o", output], check=True)
    return Image(family, output.read_bytes())


def run_otelgpu(*arguments: str, timeout_s: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output captured."""
    return subprocess.run(
        [OTELGPU, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )


def said_at_start(process: subprocess.Popen[str]) -> str:
    """What a command says up to the line that it observes; all that it says, when it does not come to that."""
    assert process.stderr is not None
    said = ""
    while "observing" not in said and (line := process.stderr.readline()):
        said += line
    return said


class Session:
    """A command that observes in a process of its own until the end of the block; its spans as they come.

    ``prefix``: what to write before it, as :data:`tests.rig.priority.FIRST`.
    """

    def __init__(self, *arguments: str, traces: Path, prefix: Sequence[str] = ()) -> None:
        self.traces = traces
        command = [*prefix, OTELGPU, *arguments, f"--export=file:{traces}"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said = ""
        self._spans: list[Span] = []
        self._read = 0

    def __enter__(self) -> Self:
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        if "observing" not in first:
            rest, _ = self.process.communicate()
            raise AssertionError(f"{self.process.args} did not start: {first}{rest}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM: it flushes, and says what it saw."""
        if self.process.poll() is None:
            self.process.terminate()
        _, self.said = self.process.communicate(timeout=30)
        assert "Traceback" not in self.said, self.said

    def spans(self, wanted: Callable[[Span], object], count: int, limit_s: float = WAIT_S) -> list[Span]:
        """Those that are `wanted`, by start, once there are `count`; an AssertionError when they do not come."""
        found = self._await(wanted, count, limit_s)
        assert len(found) == count, found
        return sorted(found, key=lambda span: span["start"])

    def first(self, wanted: Callable[[Span], object], limit_s: float = WAIT_S) -> Span:
        """One that is `wanted`, once there is one; an AssertionError when none comes."""
        return self._await(wanted, 1, limit_s)[0]

    def _await(self, wanted: Callable[[Span], object], count: int, limit_s: float) -> list[Span]:
        """Each is looked at once: who waits leaves the processors to whom it waits for."""
        until, looked_at, found = time.monotonic() + limit_s, 0, list[Span]()
        while True:
            self._take()
            found += filter(wanted, self._spans[looked_at:])
            looked_at = len(self._spans)
            if len(found) >= count:
                return found
            assert time.monotonic() < until, f"{len(found)} of {count} spans after {limit_s} s: {found}"
            time.sleep(0.02)

    def _take(self) -> None:
        if not self.traces.exists():
            return
        with self.traces.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        self._spans += spans_of_lines(whole.decode())


# -- What an agent holds in the kernel -----------------------------------------------------------------


def held_programs(pid: int) -> set[int]:
    """Ids of the BPF programs that a process has descriptors of, links' included."""
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fdinfo"):
        try:
            text = Path(entry.path).read_text()
        except OSError:
            continue
        found |= {int(line.split()[1]) for line in text.splitlines() if line.startswith("prog_id:")}
    return found


def living_programs(ids: set[int]) -> set[int]:
    """Those of the programs that the kernel still has."""
    libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
    alive = set()
    for number in ids:
        descriptor = libbpf.bpf_prog_get_fd_by_id(number)
        if descriptor >= 0:
            os.close(descriptor)
            alive.add(number)
    return alive


def interrupted_at_terminal(command: Sequence[str], output: Path, *, stdin: str = "") -> int:
    """Run a command at a terminal of its own, press Ctrl-C there once its program has written a line; the exit code.

    ``output`` gets what it writes. ``stdin``: a file to read in place of the terminal.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        if stdin:
            os.dup2(os.open(stdin, os.O_RDONLY), 0)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT, 0o644), 1)
        os.dup2(1, 2)
        os.execv(command[0], command)
    try:
        wait_until(
            lambda: output.exists() and _PROGRAMS_LINE.search(output.read_text()), "the program runs", 20
        )
        os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(status)


def wait_until(condition: Callable[[], object], what: str, limit_s: float = WAIT_S) -> None:
    """Poll until the condition holds; an AssertionError that says what did not come."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"not within {limit_s} s: {what}"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    """The letter of a process's state (T: stopped), or an empty string when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
