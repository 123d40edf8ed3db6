"""Programs that are known to concern nobody wake nobody, unless they come to; none of those that do is passed over."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otelgpu.model.inputs import ProcessSeen
from otelgpu.sources.process_events import YOUNG_NS
from tests.kernel.observing import WAIT_S, Watch
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
