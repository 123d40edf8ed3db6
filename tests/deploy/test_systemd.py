"""deploy/systemd: as systemd reads the unit, and what it lets the agent do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from otelgpu.config import load_config
from otelgpu.kernel.privileges import capabilities
from tests.deploy.manifests import DEPLOY

UNIT = DEPLOY / "systemd/otelgpu.service"
MOST_EXPOSED = 3.5  # of 10; a unit that says nothing has 9.6

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd"
)


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for key, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found[key].append(value)
    return dict(found)


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@needs_systemd
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    program = tmp_path / "otelgpu"  # the program's own place is empty here
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "otelgpu.service"
    unit.write_text(UNIT.read_text().replace("/opt/otelgpu/bin/otelgpu", str(program)))
    verified = analyze("verify", unit)
    mine = [line for line in verified.stderr.splitlines() if "otelgpu" in line]
    assert (verified.returncode, mine) == (0, [])


@needs_systemd
def test_unit_is_hardened() -> None:
    judged = analyze("security", "--offline=true", "--no-pager", UNIT)
    reported = re.search(r"exposure level for otelgpu.service: ([\d.]+)", judged.stdout)
    assert reported is not None, judged.stderr
    assert float(reported[1]) <= MOST_EXPOSED


def test_unit_grants_what_the_agent_needs_and_no_more() -> None:
    needs = (
        capabilities.LOADING,
        capabilities.OTHER_PROCESSES,
        capabilities.OTHER_FILES,
        capabilities.REPLACED_FILES,
        capabilities.KERNEL_LOG,
    )
    needed = {str(each) for need in needs for each in need.capabilities}
    unit = settings()
    assert set(unit["AmbientCapabilities"][0].split()) == needed
    assert unit["AmbientCapabilities"] == unit["CapabilityBoundingSet"]


@needs_systemd
def test_unit_allows_each_system_call_of_the_seccomp_profile() -> None:
    allowed: set[str] = set()
    for value in settings()["SystemCallFilter"]:
        names = expand(*value.removeprefix("~").split())
        allowed = allowed - names if value.startswith("~") else allowed | names
    profile = json.loads((DEPLOY / "seccomp.json").read_text())
    wanted = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert wanted - allowed <= {"uprobe"}  # of Linux 6.18: systemd must be as new to know its name


def expand(*names: str) -> set[str]:
    """System calls of groups (@name) and of themselves."""
    found = {name for name in names if not name.startswith("@")}
    if groups := [name for name in names if name.startswith("@")]:
        lines = analyze("syscall-filter", "--no-pager", *groups).stdout.splitlines()
        members = [
            line.strip() for line in lines if line.startswith("    ") and not line.strip().startswith("#")
        ]
        found |= expand(*members)
    return found


def test_settings_of_the_image_and_of_the_unit_are_valid() -> None:
    assert settings()["ExecStart"][0].endswith("--config /etc/otelgpu/config.yaml")
    config = load_config(DEPLOY / "otelgpu.yaml", {}, {})
    assert config.health_address == "127.0.0.1:13134"
