"""`otelgpu check -p` on programs with NCCL and with RDMA devices open: what it sees in them is what is there."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.kernel.observing import OTELGPU
from tests.rig.fakes import build_fakes
from tests.rig.verbs_client import VerbsClient

pytestmark = pytest.mark.usefixtures("kernel")


def report(pid: int, families: str) -> dict[str, Any]:
    command = [OTELGPU, "check", "--json", "--families", families, "-p", str(pid)]
    reported = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120).stdout)
    (found,) = reported["processes"]
    return dict(found)


def test_a_copy_of_nccl_reports_its_version_and_whether_its_layout_is_known() -> None:
    path = build_fakes() / "libnccl.so.2"
    waiting = f"import ctypes; ctypes.CDLL({str(path)!r}); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", waiting], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        found = report(process.pid, "nccl")
        process.stdin.write("\n")
    reported = [line for line in found["sees"] if "communicators of NCCL" in line]
    assert len(reported) == 1 and str(path) in reported[0]
    assert found["blind"] == []


def test_the_provider_of_an_open_device_is_named() -> None:
    if not (build_fakes() / "verbs" / "verbs_client").exists():
        pytest.skip("the headers of libibverbs are not installed (Debian: libibverbs-dev)")
    with VerbsClient() as client:
        before = report(client.pid, "verbs")["sees"]
        client.do("open")
        after = report(client.pid, "verbs")["sees"]
        client.do("pair", "hijack")
        refused = report(client.pid, "verbs")["blind"]
    unopened, opened = "none was found open", "RDMA posts and polls by "
    assert [(unopened in line, line.startswith(opened)) for line in before].count((True, False)) == 1
    assert [(unopened in line, line.startswith(opened)) for line in after].count((False, True)) == 1
    assert not any(line.startswith(opened) for line in before if unopened not in line)
    assert not any(unopened in line for line in after)
    assert len([one for one in refused if "in several files" in one["why"]]) == 1
