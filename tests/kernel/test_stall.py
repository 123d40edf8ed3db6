"""`diagnose stall` on live programs: the example, and the gallery of programs whose fault is known."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from otelgpu.cli.stall_surroundings import between, read
from tests.gallery.cases import CASES
from tests.gallery.run import diagnose
from tests.kernel.observing import OTELGPU
from tests.rig import ROOT
from tests.rig.priority import FIRST

pytestmark = [pytest.mark.long, pytest.mark.alone(reason="who waits for a CPU stands still indeed")]

LIVE = [name for name, case in CASES.items() if case.live]
"""One for each thing that the kernel has to report; for a write in Python it is the example below. Of all others
recordings are judged, in tests/unit/diagnose."""


@pytest.mark.parametrize("name", LIVE)
def test_the_cause_is_named_first_and_nothing_is_said_of_the_healthy(name: str) -> None:
    said = diagnose(name, CASES[name])
    # A gap more, of a busy machine, is no n-th step.
    faults = [each for each in said.faults(CASES[name]) if not each.startswith("not said: every")]
    assert faults == [], said.text


def test_the_example_is_explained_in_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    page = tmp_path / "report.html"
    example = [sys.executable, "examples/slow_ai_simulator.py", "--folder", str(tmp_path)]
    done = subprocess.run(
        [*FIRST, OTELGPU, "diagnose", "stall", "-o", str(page), "--", *example],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    sentence = done.stdout.splitlines()[0]
    assert sentence.startswith("Stall: python")
    for each in (
        "main thread (TID ",
        "writes 50.0 MB to checkpoint.bin at slow_ai_simulator.py:32 save, which takes ",
        " of 20 steps (every ",
        "vfs_write ← ksys_write",
        "write it in another thread",
    ):
        assert each in sentence
    assert page.read_text().count("checkpoint.bin") >= 2


def test_a_running_program_is_looked_at_until_somebody_says_enough(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.gallery.programs", "sleep", str(tmp_path)]
    with subprocess.Popen(program, cwd=ROOT) as running:
        command = [*FIRST, OTELGPU, "diagnose", "stall", "-p", str(running.pid), "-d", "60"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as looking:
            assert looking.stderr is not None and "profiling process" in looking.stderr.readline()
            time.sleep(1.5)
            looking.send_signal(signal.SIGINT)
            output, errors = looking.communicate(timeout=30)
            assert looking.returncode in (0, 3, 4), errors
            assert "Traceback" not in errors
            assert f"(PID {running.pid})" in output
        assert running.poll() in (None, 0)
        running.kill()


def test_the_kernel_charges_pages_to_who_makes_them_dirty(tmp_path: Path) -> None:
    """As they are made so: whoever writes them back, and whenever."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True)
    if kind.stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip(f"needs a folder on a disk: {tmp_path} is memory, which nobody writes back")
    source = (
        "import sys; sys.stdin.readline(); open(sys.argv[1], 'wb').write(bytes(int(sys.argv[2]) << 20)); "
        "print('done', flush=True); sys.stdin.readline()"
    )
    with ExitStack() as stack:
        programs = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", source, tmp_path / str(size), str(size)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for size in (48, 16)
        ]
        before = read(programs[0].pid)
        for each in programs:
            assert each.stdin is not None and each.stdout is not None
            each.stdin.write("\n")
            each.stdin.flush()
            assert each.stdout.readline() == "done\n"
        found = between(before, read(programs[0].pid), pid=programs[0].pid)
        for each in programs:
            each.communicate("\n")
    own, others = found.dirtied_bytes, {each.pid: each.dirtied_bytes for each in found.writers}
    assert own is not None and 0 <= own - (48 << 20) < 1 << 20  # and what the file system notes of the file
    assert 0 <= others[programs[1].pid] - (16 << 20) < 1 << 20


CLIENT = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for _ in range(48):
    batch = bytearray()
    while len(batch) < 100_000:
        batch += connection.recv(100_000 - len(batch))
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        pass
    time.sleep(0.004)
"""
SERVER = """
import socket, sys, time
sys.stdin.readline()
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
for step in range(48):
    time.sleep(0.45 if step % 8 == 2 else 0.001)
    connection.sendall(bytes(100_000))
sys.stdin.readline()
"""


def test_the_peer_that_is_late_is_named_in_another_network_namespace() -> None:
    """Two ends of a virtual cable, one of them with a process in a namespace of its own."""
    if shutil.which("ip") is None:
        pytest.skip("needs the program ip")
    near, far, addresses = f"o{os.getpid()}a", f"o{os.getpid()}b", ("10.231.77.1", "10.231.77.2")
    server = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", SERVER, addresses[1]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        while os.readlink(f"/proc/{server.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        inside = ["nsenter", "--target", str(server.pid), "--net"]
        for command in (
            ["ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", str(server.pid)],
            ["ip", "address", "add", f"{addresses[0]}/30", "dev", near],
            ["ip", "link", "set", near, "up"],
            [*inside, "ip", "address", "add", f"{addresses[1]}/30", "dev", far],
            [*inside, "ip", "link", "set", far, "up"],
        ):
            subprocess.run(command, check=True, capture_output=True)
        server.stdin.write("\n")
        server.stdin.flush()
        port = server.stdout.readline().strip()
        client = [sys.executable, "-c", CLIENT, addresses[1], port]
        done = subprocess.run(
            [*FIRST, OTELGPU, "diagnose", "stall", "--json", "--", *client],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        server.kill()
        server.communicate()
        subprocess.run(["ip", "link", "delete", near], capture_output=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    (verdict,) = (each for each in json.loads(done.stdout)["verdicts"] if each["cause"] == "network")
    (peer,) = (each for each in verdict["evidence"] if each["name"] == "peer")
    assert f"{addresses[1]}:{port}, " in peer["text"]
    assert peer["text"].endswith(f"(PID {server.pid}) in another network namespace") and peer["value"] == 1.0
