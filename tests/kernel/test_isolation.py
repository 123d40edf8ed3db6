"""Workers that run side by side share neither ports, nor pinned maps, nor the files that probes are on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.rig import BUILD, ROOT, build_fakes

LIBRARY = "libcudart.so.12"
WORKER = """
import json, os, socket, subprocess, sys
from pathlib import Path
from tests.rig import BUILD
from tests.rig.isolation import isolate_worker, machine_network

def network():
    return os.readlink("/proc/thread-self/ns/net")

before = network()
isolate_worker()
within = subprocess.run(["readlink", "/proc/self/ns/net"], capture_output=True, text=True, check=True).stdout.strip()
with machine_network():
    fetching = network()
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    socket.create_connection(server.getsockname()).close()
Path("/sys/fs/bpf/mine").mkdir()
print(json.dumps({
    "before": before, "within": within, "fetching": fetching, "after": network(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "pinned": [name for name in os.listdir("/sys/fs/bpf") if not name.endswith(".debug")],  # the kernel's own
    "fakes": sorted(os.listdir(BUILD)),
    "inode": os.stat(BUILD / sys.argv[2]).st_ino, "device": os.stat(BUILD / sys.argv[2]).st_dev,
}), flush=True)
sys.stdin.read()
"""


def worker(port: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(port), LIBRARY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def reported(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def test_two_workers_and_the_machine_do_not_meet() -> None:
    built = {name for name in os.listdir(build_fakes()) if not name.startswith("cuda_client_")}
    own = os.readlink("/proc/self/ns/net")
    with worker(4317) as first, worker(4317) as second:
        pair = reported(first), reported(second)
        for each in pair:
            assert each["before"] == each["fetching"] == own
            assert each["within"] == each["after"] != own
            assert each["interfaces"] == ["lo"]
            assert each["pinned"] == ["mine"]
            assert built <= set(each["fakes"])
        here = os.stat(BUILD / LIBRARY)
        files = {(each["device"], each["inode"]) for each in pair}
        assert len(files | {(here.st_dev, here.st_ino)}) == 3
        assert not Path("/sys/fs/bpf/mine").exists()
