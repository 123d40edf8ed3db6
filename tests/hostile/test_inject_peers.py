"""Who fills the memory that it was given as fast as it can makes the agent neither large nor slow."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from otelgpu.kernel.injection.server import SOCKET_VARIABLE, read_library
from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import Session, probed, read_spans
from tests.kernel.test_linking import COUNTS, calls_of
from tests.rig import run_program

PEERS = 32
ATTACK = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from otelgpu.kernel.injection.server import read_library
from otelgpu.kernel.loader import read_image
from tests.rig.inject_client import InjectClient, launches

layout, btf = read_library().layout, read_image("cuda").btf
listener = SimpleNamespace(path=Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    if not os.fork():
        client = InjectClient(listener, layout, btf)
        records = launches(btf, 7000, ends_ns=time.monotonic_ns())
        size = len(records) * (8 + records.shape[1])
        for ring in range(len(client.rings)):
            client.fill(ring, records)
            client.threads["owner"][ring] = os.getpid()
        if not number:
            print("begun", flush=True)
        while True:  # the same again, as soon as it was read
            for ring in np.flatnonzero(client.threads["consumer"] == client.threads["producer"]):
                place = int(client.threads["producer"][ring]) % client.rings.shape[1]
                left = min(client.rings.shape[1] - place, size) // 136 * 136
                framed = np.zeros((left // 136, 136), np.uint8)
                framed[:, :4] = np.frombuffer(np.uint32(128).tobytes(), np.uint8)
                framed[:, 8:] = records[: len(framed)]
                client.rings[ring, place : place + left] = framed.reshape(-1)
                client.threads["producer"][ring] += left
            time.sleep(0.01)
time.sleep(600)
"""


@pytest.mark.alone(reason="writes memory as fast as it can, from 32 processes")
def test_peers_that_write_all_they_can_neither_stop_the_agent_nor_make_it_large(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        socket = Path(folder, "inject.sock")
        victims_environment = {SOCKET_VARIABLE: str(socket), "LD_PRELOAD": str(read_library().path)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTELGPU_SOURCE", "inject")
            patch.setenv("OTELGPU_INJECT_SOCKET", str(socket))
            agent = Session("agent", "--detail=all", "--families=cuda", traces=stage.traces)
        with agent:
            socket.chmod(0o777)
            stage.attack_with(ATTACK, str(socket), str(PEERS))
            time.sleep(5)
            victims = [
                run_program("shared", *COUNTS, prefix=stage.victim, env=victims_environment)[0]
                for _ in range(2)
            ]
            time.sleep(1)
            assert resident_bytes(agent.process.pid, "VmHWM") < MOST_RSS_BYTES
            ends_in_time(agent)
    spans = read_spans(stage.traces)
    for victim in victims:
        assert calls_of(spans, victim.pid) == probed(dict(victim.calls))
