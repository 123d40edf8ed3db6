"""An agent that observes two cgroups, an attacker's and a victim's, and what is measured of all three."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.kernel.observing import Session, read_metrics, wait_until
from tests.rig import fake_cudart_path, start_cuda_client
from tests.rig.breakpoints import Code
from tests.rig.cgroup import in_cgroup, own_cgroup, remove_cgroup

ATTACKER: Final = 65_533
"""The attacker's user and group: nobody else's here, and not that of the agent's own workers."""
MOST_RSS_BYTES: Final = 200 << 20
END_S: Final = 5.0
"""How long the agent may take to end on SIGTERM, whatever is done to it."""
COMPLETE_S: Final = 1.0
"""From a library's first probe to its last: they come in a few calls of the kernel, on a machine that is flooded."""
VICTIM: Final = """
import socket, sys, threading, time
requests, pause_s, each = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
listener = socket.create_server(("127.0.0.1", 0))
def answer(connection):
    with connection:
        while connection.recv(4096):
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
def serve():
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],)).start()
threading.Thread(target=serve, daemon=True).start()
for number in range(requests):
    if number % each == 0:
        connection = socket.create_connection(listener.getsockname())
    connection.sendall(b"GET /victim/%d HTTP/1.1\\r\\nHost: v\\r\\n\\r\\n" % number)
    assert connection.recv(4096)
    time.sleep(pause_s)
"""
"""A server that is asked ``/victim/0``, ``/victim/1`` and so on. Arguments: requests, pause, how many a connection."""
_VICTIMS_SPAN: Final = re.compile(rb'"kind":2,[^]]*?"url\.path","value":{"stringValue":"/victim/(\d+)"')


@dataclass
class Stage:
    """``folder``: where the agent's files are. ``attackers``: what :meth:`attack` started.

    ``niceness``: of attackers. Ten at 10 weigh what one at 0 does (sched(7)): they are as a container that has the same
    share of processors as the agent's, not as ten.
    """

    folder: Path
    cgroup: Path
    niceness: int = 0
    attackers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def traces(self) -> Path:
        """What the agent exports."""
        return self.folder / "traces.jsonl"

    @property
    def victim(self) -> tuple[str, ...]:
        """What to write before a victim's command."""
        return in_cgroup(self.cgroup / "victim")

    def start_victim(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a script of Python as a victim; what it prints can be read."""
        command = [*self.victim, sys.executable, "-c", script, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def ask_victim(
        self, requests: int, *, pause_s: float, of_connection: int = 1, timeout_s: float = 60
    ) -> None:
        """Have a victim answer so many requests, and wait for its end."""
        arguments = str(requests), str(pause_s), str(of_connection)
        with self.start_victim(VICTIM, *arguments) as victim:
            assert victim.wait(timeout_s) == 0

    def run_new_libraries(self, victims: int, *, calls: int, probed_s: float) -> None:
        """Have victims make calls, each of a library that nobody has probed before; an AssertionError when one
        of them is not probed within ``probed_s``, :data:`COMPLETE_S` before the calls.
        """
        with contextlib.ExitStack() as running:
            clients, launches = [], []
            for number in range(victims):
                library = self.folder / str(number) / "libcudart.so.12"
                library.parent.mkdir()
                shutil.copy(fake_cudart_path(), library)
                start = start_cuda_client(prefix=self.victim, library=library, calls=calls)
                client = running.enter_context(start)
                clients.append(client)
                launches.append(Code(client.pid, library, "cudaLaunchKernel"))
            first_s = probed_s - COMPLETE_S
            wait_until(lambda: all(each.is_probed() for each in launches), "all are probed", first_s)
            time.sleep(COMPLETE_S)
            for client in clients:
                client.finish()

    def unseen(self, requests: int) -> set[int]:
        """The numbers of requests that :meth:`ask_victim` made, of which no span of its server is exported.

        Looked for in the text: an attacker's millions of spans would take minutes to read.
        """
        seen: set[int] = set()
        with self.traces.open("rb") as lines:
            for line in lines:
                seen.update(map(int, _VICTIMS_SPAN.findall(line)))
        return set(range(requests)) - seen

    def lag_s(self) -> float:
        """How late the agent's loop was at most."""
        (lag,) = read_metrics(self.traces)["otelgpu.loop.lag"]
        return float(lag["asDouble"])

    def agent(self, *options: str) -> Session:
        """To be entered: it observes both."""
        return Session("agent", f"--cgroup={self.cgroup}", "--detail=all", *options, traces=self.traces)

    def attack(self, *command: str) -> subprocess.Popen[str]:
        """Start a command as another user, without privileges, in namespaces and a cgroup of its own."""
        shut_in = ("unshare", "--mount", "--net", "--ipc", "--uts")
        powerless = (
            "setpriv",
            f"--reuid={ATTACKER}",
            f"--regid={ATTACKER}",
            "--clear-groups",
            "--no-new-privs",
            "--bounding-set=-all",
            "--inh-caps=-all",
        )
        process = subprocess.Popen(
            [
                *in_cgroup(self.cgroup / "attacker"),
                "nice",
                f"-n{self.niceness}",
                *shut_in,
                *powerless,
                *command,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.attackers.append(process)
        return process

    def attack_with(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """The same with a script of Python; it is under way once it has printed a line."""
        process = self.attack(sys.executable, "-c", script, *arguments)
        assert process.stdout is not None
        assert process.stdout.readline(), "the attacker did not begin"
        return process

    def end_attacks(self) -> None:
        """All of them, and what they started."""
        (self.cgroup / "attacker" / "cgroup.kill").write_text("1")
        for each in self.attackers:
            each.communicate()
        self.attackers.clear()


@contextlib.contextmanager
def opened_stage(folder: Path) -> Iterator[Stage]:
    """Two empty cgroups under one that is observed."""
    with own_cgroup() as cgroup:
        parts: Sequence[Path] = [cgroup / name for name in ("attacker", "victim")]
        for part in parts:
            part.mkdir()
        stage = Stage(folder, cgroup)
        try:
            yield stage
        finally:
            stage.end_attacks()
            for part in parts:
                (part / "cgroup.kill").write_text("1")
                remove_cgroup(part)


def resident_bytes(pid: int, what: str = "VmRSS") -> int:
    """Of a process; ``VmHWM``: the most it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{what}:"))


def ends_in_time(session: Session) -> float:
    """Seconds from SIGTERM to the end of the agent; an AssertionError where that is more than :data:`END_S`."""
    began = time.monotonic()
    session.process.send_signal(signal.SIGTERM)
    try:
        session.process.wait(END_S)
    except subprocess.TimeoutExpired:
        session.process.kill()
        raise AssertionError(f"the agent runs {END_S} s after SIGTERM") from None
    return time.monotonic() - began
