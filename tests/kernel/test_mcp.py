"""An assistant profiles a process that runs, and has what was recorded diagnosed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.rig import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

WRITES = """
import os, sys, time
while True:
    for step in range(5):
        sum(range(200_000))
        time.sleep(0.02)
    with open(sys.argv[1], "wb") as file:
        file.write(bytes(8 << 20))
        os.fsync(file.fileno())
"""


def test_a_running_process_is_profiled_and_diagnosed_by_what_the_answers_say(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="needs the MCP SDK: pip install 'otelgpu[mcp]'")
    # Two seconds to import, and this module is collected by every worker.
    from tests.unit.mcp.served import environment, given, over_streams

    async def run(pid: int) -> None:
        async with over_streams("--allow-profile") as client:
            taken = given(await client.call_tool("profile", {"pid": pid, "seconds": 4}))
            kinds = {each["type"]: each for each in taken["result"]["kinds"]}
            assert {"cpu", "off_cpu", "syscall_time"} <= set(kinds)
            listed = given(await client.call_tool("list_inputs", {}))["result"]["inputs"]
            assert [(each["name"], "profiles" in each["holds"]) for each in listed] == [("profile-1", True)]
            hint = taken["next"][0]
            told = given(await client.call_tool(hint["tool"], hint["arguments"]))["result"]
            thread = told["report"]["input"]["thread"]
            assert thread is not None and thread["pid"] == pid

    program = [sys.executable, "-c", WRITES, str(tmp_path / "checkpoint.bin")]
    with subprocess.Popen(program, cwd=ROOT, env=environment()) as running:
        try:
            anyio.run(run, running.pid)
            assert running.poll() is None
        finally:
            running.kill()
