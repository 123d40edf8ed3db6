"""On which sockets threads were seen to wait: files of processes, and a thread that looks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otelgpu.cli.socket_waits import EVERY_S, SocketWaits
from otelgpu.diagnose.stall.surroundings import SocketWait
from tests.unit.processes.test_socket_peers import MINE, OTHER, OWN, THEIRS, Machine, row
from tests.unit.test_stall_surroundings import process

RECVFROM = "45 0x0 0x7ffc 0x1000 0x0 0x0 0x0 0x7ffc1 0x7f12\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.process(MINE, "1", row(OWN, OTHER, 500), 500, 501)
    made.process(THEIRS, "2", row(OTHER, OWN, 700), 700)
    process(made.proc, THEIRS, 1)
    return made


def stands_in(machine: Machine, call: str, tid: int = MINE) -> None:
    folder = machine.proc / str(MINE) / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "syscall").write_text(call)


def test_the_peer_of_the_socket_in_whose_call_a_thread_stands_is_named(machine: Machine) -> None:
    waits = SocketWaits(proc=machine.proc)
    for call in (RECVFROM, RECVFROM, "running\n", RECVFROM.replace("0x0", "0x1", 1), RECVFROM):
        stands_in(machine, call)
        waits.look(MINE)
    assert waits.seen(MINE) == [
        SocketWait(
            tid=MINE, looks=3, all_looks=4, address="10.9.0.2:8080", pid=THEIRS, name="a) b", elsewhere=True
        )
    ]
    assert waits.seen(THEIRS) == []


@pytest.mark.parametrize(
    "call",
    [
        "",
        "running\n",
        "-1 0x7ffc 0x7f12\n",
        "7 0x0 0x1\n",  # poll: of many
        "45 0x63 0x1\n",  # a descriptor that it has not
        "45 nonsense",
        "999999 0x0 0x1\n",
        "45 0xffffffffffffffff 0x1\n",
    ],
)
def test_a_thread_that_stands_in_none_is_not_counted(machine: Machine, call: str) -> None:
    waits = SocketWaits(proc=machine.proc)
    stands_in(machine, call)
    waits.look(MINE)
    waits.look(4)  # nobody
    assert waits.seen(MINE) == []


READS = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"


def test_a_thread_of_another_program_is_seen_to_wait_for_this_one() -> None:
    """Looked at by a thread of its own, as long as it takes."""
    waits, end_s = SocketWaits(), time.monotonic() + 60
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with subprocess.Popen([sys.executable, "-S", "-c", READS, str(address[1])]) as program:
            theirs, _ = listener.accept()
            waits.start([program.pid])
            while not waits._peers and time.monotonic() < end_s:
                time.sleep(EVERY_S)
            waits.stop()
            theirs.close()
    (found,) = waits.seen(program.pid)
    assert found.looks == found.all_looks >= 1
    assert (found.tid, found.pid, found.elsewhere) == (program.pid, os.getpid(), False)
    assert found.address == "{}:{}".format(*address)
