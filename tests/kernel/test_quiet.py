"""Programs that are known to concern nobody wake nobody, unless they come to; none of those that do is passed over."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otelgpu.model.inputs import ProcessSeen
from otelgpu.sources.process_events import YOUNG_NS
from tests.kernel.observing import WAIT_S, Watch, wait_until
from tests.rig import fake_cudart_path

LONG_S = 20.0


class Shell:
    """A shell that runs what it is told, and nothing else."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, command: str) -> str:
        """Its output, to the end of the line."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{command}; echo\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def shell() -> Iterator[Shell]:
    with subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Shell(process)
        process.communicate()


def wakes(watch: Watch, work: Callable[[], object]) -> bool:
    """Whether family ``process`` wakes its reader for what the work does; it is handled then."""
    source = watch.source
    source.collect()
    source._events.poll(0)
    work()
    woken = source._loaded["process"].ring.fd in {descriptor for descriptor, _ in source._events.poll(0)}
    watch.inputs += source.collect()
    return woken


def run_until_known(watch: Watch, shell: Shell, program: str) -> None:
    """Programs end before they are looked at, but not all of them."""
    until = time.monotonic() + WAIT_S
    while wakes(watch, lambda: shell.run(program)):
        assert time.monotonic() < until, f"{program} does not become known"
        watch.during(lambda: shell.run(f"{program}; sleep 0.05"))


def know_a_copy(watch: Watch, shell: Shell, program: Path) -> None:
    """Of a program that concerns nobody."""
    shutil.copy("/bin/true", program)
    watch.observe(shell.process.pid)
    run_until_known(watch, shell, str(program))


def seen(watch: Watch) -> set[int]:
    return {item.tgid for item in watch.inputs if isinstance(item, ProcessSeen)}


def test_a_known_program_that_begins_and_ends_is_not_looked_at(
    watch: Callable[..., Watch], shell: Shell
) -> None:
    watching = watch()
    watching.observe(shell.process.pid)
    run_until_known(watching, shell, "/bin/true")
    watching.start_anew()
    assert not wakes(watching, lambda: shell.run("/bin/true; /bin/true; /bin/true"))
    assert not seen(watching)
    assert not watching.total("probes", "process_vanished"), "it would have been found to have ended"
    shell.run("sleep 60 & echo $!")
    watching.pump(YOUNG_NS / 1e9 + 0.3)
    assert seen(watching), "who lives on is looked at in time"
    shell.run("kill $!")


def test_a_program_that_loads_what_has_functions_wakes_and_is_looked_at(
    watch: Callable[..., Watch], shell: Shell, tmp_path: Path
) -> None:
    watching, program = watch(), tmp_path / "program"
    know_a_copy(watching, shell, program)
    library = tmp_path / "libcudart.so.12"
    shutil.copy(fake_cudart_path(), library)
    assert wakes(watching, lambda: shell.run(f"LD_PRELOAD={library} {program}"))


def test_a_file_that_was_written_over_is_not_the_known_one(
    watch: Callable[..., Watch], shell: Shell, tmp_path: Path
) -> None:
    watching, program = watch(), tmp_path / "program"
    know_a_copy(watching, shell, program)
    number = program.stat().st_ino
    program.write_bytes(Path("/bin/false").read_bytes())
    assert program.stat().st_ino == number
    assert wakes(watching, lambda: shell.run(str(program)))


SPAWNING = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
for path in sys.stdin:
    opens = [(os.POSIX_SPAWN_OPEN, 3, path.strip(), os.O_RDONLY, 0)]
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=opens), 0)
    print("done", flush=True)
"""


def test_what_a_process_of_concern_spawns_is_left_alone_if_it_is_a_known_program(
    watch: Callable[..., Watch], shell: Shell, tmp_path: Path
) -> None:
    """Also where the agent comes round before it has become that program: it waits for the other end of a pipe then."""
    watching, pipe = watch(), tmp_path / "pipe"
    os.mkfifo(pipe)
    watching.observe(shell.process.pid)
    run_until_known(watching, shell, "/bin/true")
    command = [sys.executable, "-c", SPAWNING, str(fake_cudart_path())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"LD_LIBRARY_PATH": ""}
    ) as spawning:
        assert spawning.stdin is not None and spawning.stdout is not None
        assert spawning.stdout.readline() == "ready\n"
        watching.observe(spawning.pid)
        watching.pump(0.1)
        watching.start_anew()
        spawning.stdin.write(f"{pipe}\n")
        spawning.stdin.flush()
        try:
            wait_until(lambda: bool(children_of(spawning.pid)), "it has spawned")
            watching.pump(0.1)
        finally:
            pipe.write_bytes(b"")
        assert seen(watching) <= {spawning.pid}
        assert spawning.stdout.readline() == "done\n"
        watching.pump(0.1)
        assert seen(watching) <= {spawning.pid}
        assert not watching.total("probes", "process_vanished")
        spawning.stdin.close()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


ASKING = """
use IO::Socket::INET;
my $server = IO::Socket::INET->new("127.0.0.1:$ARGV[0]") or exit;
syswrite($server, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
syswrite(STDOUT, "$$\n");
sysread($server, my $answer, 1);
"""


def test_a_known_program_that_makes_a_request_is_described_though_nothing_else_wakes(
    watch: Callable[..., Watch], shell: Shell, tmp_path: Path
) -> None:
    program = tmp_path / "asking.pl"
    program.write_text(ASKING)
    watching = watch(families=("http",))
    watching.observe(shell.process.pid)
    run_until_known(watching, shell, f"perl {program} 1")  # where nobody listens
    with socket.create_server(("127.0.0.1", 0)) as server:
        watching.start_anew()
        watching.source._events.poll(0)
        asked: list[int] = []
        asking = threading.Thread(
            target=lambda: asked.append(int(shell.run(f"perl {program} {server.getsockname()[1]} & wait")))
        )
        asking.start()
        began = time.monotonic()
        assert watching.source.wait(LONG_S) == {watching.source._loaded["http"].ring.fd}
        assert time.monotonic() - began < LONG_S / 2
        watching.inputs += watching.source.collect()
        server.accept()[0].close()
        asking.join()
    described = {item.tgid: item for item in watching.inputs if isinstance(item, ProcessSeen)}
    attributes = dict(described[asked[0]].resource.attributes)
    assert attributes["process.executable.name"] == "perl"
