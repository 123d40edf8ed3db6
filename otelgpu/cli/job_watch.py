"""What a job's processes and devices are like while it is watched, read again and again from a thread.

Source: proc(5), NVML. What cannot be read says nothing: each of these is evidence beside what was recorded.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from otelgpu.cli.asked_server import AskedServer
from otelgpu.cli.model_files import FoundModel, find_model
from otelgpu.cli.stall_surroundings import Reading, between, read_own
from otelgpu.diagnose.stall.surroundings import Surroundings
from otelgpu.diagnose.utilization.devices import DeviceUse, device_uses
from otelgpu.diagnose.utilization.job_facts import LONGEST_VALUE, libraries_of
from otelgpu.diagnose.utilization.job_facts import VARIABLES as VARIABLES_COMPARED
from otelgpu.diagnose.utilization.job_processes import (
    JobProcess,
    frameworks_of,
    has_cuda,
    interactive_by,
)
from otelgpu.diagnose.utilization.model_places import VARIABLES
from otelgpu.diagnose.utilization.served_models import PATH as SERVED
from otelgpu.families.gpu.devices.poll.nvml import REASONS
from otelgpu.families.gpu.devices.poll.poller import DevicePoller
from otelgpu.kernel import clock
from otelgpu.model.devices import DeviceInput
from otelgpu.processes.listing import descendants, describe
from otelgpu.processes.maps import distinct_files, read_maps
from otelgpu.render.page_columns import clean

EVERY_S: Final = 0.5
ASK_S: Final = 3.0
"""Between two questions to a server that has not answered: it may load its model still."""
MOST_PROCESSES: Final = 256
_MOST_BYTES: Final = 1 << 20
_MOST_FILES: Final = 1024
_DEVICE: Final = re.compile(r"/dev/nvidia\d+")
_TERMINAL: Final = re.compile(r"/dev/(pts/\d+|tty\w*)")


class JobWatch:
    """From :meth:`start` to :meth:`stop`; ``pids`` and their descendants. ``server``: of theirs, None: not to ask."""

    def __init__(self, proc: Path = Path("/proc"), server: AskedServer | None = None) -> None:
        self.pids: list[int] = []
        self.processes: dict[int, JobProcess] = {}
        self.begin_ns = 0
        self.end_ns = 0
        self._alive_ns = 0  # when one of them was seen last
        self._proc = proc
        self._poller = DevicePoller(EVERY_S)
        self.model: FoundModel | None = None  # the first that a command names
        self._commands: dict[int, tuple[str, ...]] = {}  # that were looked through for one
        # Of processes whose control group has a quota: the first reading of it and the last.
        self._quotas: dict[int, tuple[Reading, Reading]] = {}
        self._server = server
        self._asked_s = -ASK_S
        self._inputs: list[DeviceInput] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otelgpu-job", daemon=True)

    def start(self) -> None:
        """Begin, once probes are in place."""
        self.begin_ns = time.time_ns()
        self._poller.start()
        self._thread.start()

    def stop(self) -> None:
        """Read no more. Of a job that has ended, what it did not do since then is nothing that it left undone."""
        now_ns = time.time_ns()
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        if any(read_process(pid, proc=self._proc) is not None for pid in self.processes):
            self.end_ns = now_ns
        else:
            self.end_ns = min(now_ns, self._alive_ns + round(EVERY_S * 1e9)) if self._alive_ns else now_ns
        self._poller.stop()
        self._inputs += self._poller.collect(clock.monotonic_ns())

    def devices(self) -> list[DeviceUse]:
        """What was read of them."""
        return device_uses(self._inputs)

    def device_note(self) -> str:
        """Why there is none, where it is known."""
        return next((REASONS[reason] for reason in self._poller.counters if reason in REASONS), "")

    def surroundings(self) -> dict[int, Surroundings]:
        """Of processes that the CPU quota of their control group held back: how often, and for how long."""
        return {
            pid: between(first, last, pid=pid)
            for pid, (first, last) in self._quotas.items()
            if first.throttled is not None and first.throttled != last.throttled
        }

    def server_note(self) -> str:
        """Why what the server said is of no use; "" where it is, or nobody asks."""
        server = self._server
        if server is None or (self.model is not None and self.model.by == SERVED):
            return ""
        if not server.models:
            return f"{server.url}: {server.problem}"
        names = " or ".join(clean(each.name)[:LONGEST_VALUE] for each in server.models)
        return f"{server.url} serves {names}, and no process of the job has its config.json"

    def _run(self) -> None:
        while True:
            self._look()
            if self._stopping.wait(EVERY_S):
                return

    def _look(self) -> None:
        self._ask()
        for pid in [*self.pids, *descendants(*self.pids, proc=self._proc)][:MOST_PROCESSES]:
            now = read_process(pid, proc=self._proc)
            if now is None:
                continue
            self._alive_ns = time.time_ns()
            self._look_for_model(pid)
            self._look_at_quota(pid)
            before = self.processes.get(pid, now)
            self.processes[pid] = structs.replace(
                now,
                frameworks=list(dict.fromkeys((*before.frameworks, *now.frameworks))),
                libraries={**before.libraries, **now.libraries},
                has_cuda=before.has_cuda or now.has_cuda,
                holds_device=before.holds_device or now.holds_device,
            )
        self._inputs += self._poller.collect(clock.monotonic_ns())

    def _ask(self) -> None:
        """The server, until it has answered."""
        server, now_s = self._server, time.monotonic()
        if server is None or server.models or now_s < self._asked_s + ASK_S:
            return
        server.ask()
        self._asked_s = time.monotonic()
        if server.models:  # which is better than what a command says
            self.model = None
            self._commands.clear()

    def _look_at_quota(self, pid: int) -> None:
        last = read_own(pid, proc=self._proc)
        if last.quota_cpus is not None:
            self._quotas[pid] = self._quotas.get(pid, (last, last))[0], last

    def _look_for_model(self, pid: int) -> None:
        facts = describe(pid, proc=self._proc) if self.model is None else None
        if facts is None or self._commands.get(pid) == facts.command:
            return
        self._commands[pid] = facts.command
        variables = _environ(self._proc / str(pid), VARIABLES)
        served = self._server.models if self._server is not None else ()
        self.model = find_model(pid, facts.command, variables, served=served, proc=self._proc)


def read_process(pid: int, *, proc: Path = Path("/proc")) -> JobProcess | None:
    """Of a process now; None of one that has ended."""
    facts = describe(pid, proc=proc)
    if facts is None or not facts.command:
        return None
    files: list[str] = []
    with suppress(OSError):
        mapped = distinct_files(read_maps(pid, proc=proc, executable_only=True))
        files = [each.path.rpartition("/")[2] for each in mapped]
    environ = _environ(proc / str(pid), VARIABLES_COMPARED)
    opened = _opened(proc / str(pid) / "fd")
    return JobProcess(
        pid=pid,
        program=facts.command[0].rpartition("/")[2] or facts.comm,
        interactive=interactive_by(facts.command, has_terminal=bool(_TERMINAL.fullmatch(opened.get(0, "")))),
        frameworks=frameworks_of(files),
        has_cuda=has_cuda(files),
        holds_device=any(_DEVICE.fullmatch(path) for path in opened.values()),
        blocking=environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
        visible=_visible(environ.get("CUDA_VISIBLE_DEVICES")),
        libraries=libraries_of(files),
        environment={name: clean(value)[:LONGEST_VALUE] for name, value in environ.items()},
    )


def _visible(value: str | None) -> int | None:
    """Devices up to the first that is none: ``0,1,-1,2`` leaves two (CUDA C++ Programming Guide)."""
    if value is None:
        return None
    count = 0
    for part in value.split(",")[:64]:
        if not re.fullmatch(r"\d+|(GPU|MIG)-[\w-]+", part.strip()):
            break
        count += 1
    return count


def _environ(folder: Path, wanted: Collection[str]) -> dict[str, str]:
    try:
        with open(folder / "environ", "rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return {}
    pairs = (each.decode("utf-8", "replace").partition("=") for each in content.split(b"\0"))
    return {name: value for name, _, value in pairs if name in wanted}


def _opened(folder: Path) -> dict[int, str]:
    found = {}
    try:
        names = os.listdir(folder)[:_MOST_FILES]
    except OSError:
        return {}
    for name in names:
        with suppress(OSError, ValueError):
            found[int(name)] = os.readlink(folder / name)
    return found
