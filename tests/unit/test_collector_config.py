"""collector-config/ says what it is for, names what the agent sends, and has its settings in its page of the manual."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FILES: Final = sorted((ROOT / "collector-config").rglob("*.yaml"))
DOCS: Final = (ROOT / "docs" / "reference" / "collector.md").read_text()
_SETTING: Final = re.compile(r"\$\{env:(\w+):-([^}]*)\}")
_NAMED: Final = re.compile(r'attributes\["([^"]+)"\]|^ +- name: ([a-z]+[.][a-z._]+)$', re.MULTILINE)
_ROW: Final = re.compile(r"^\| `(\w+)` \| (.*?) \|", re.MULTILINE)


def body(file: Path) -> str:
    """Without comments."""
    return "\n".join(line.partition(" #")[0] for line in file.read_text().splitlines() if line[:1] != "#")


def settings() -> dict[str, set[str]]:
    """The defaults of every setting of the files."""
    found: dict[str, set[str]] = {}
    for file in FILES:
        for name, default in _SETTING.findall(body(file)):
            found.setdefault(name, set()).add(default)
    return found


def test_a_setting_has_one_default_or_one_for_each_place() -> None:
    """What differs between sidecar, DaemonSet and gateway is in the table in this order."""
    several = {name: values for name, values in settings().items() if len(values) > 1}
    assert several == {
        "COLLECTOR_LISTEN": {"127.0.0.1", "0.0.0.0"},
        "COLLECTOR_MEMORY_MIB": {"200", "400", "1500"},
    }


def test_the_table_has_every_setting_with_its_default() -> None:
    shown = {name: set(re.findall(r"`([^`]*)`", default)) for name, default in _ROW.findall(DOCS)}
    assert shown == {name: values - {"", "[]"} for name, values in settings().items()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_in_the_documentation(file: Path) -> None:
    assert f"`{file.relative_to(ROOT / 'collector-config')}`" in DOCS


def test_every_attribute_that_is_named_is_one_that_the_agent_sends() -> None:
    gateway = body(ROOT / "collector-config" / "gateway.yaml")
    named = {first or second for first, second in _NAMED.findall(gateway)}
    assert {"gen_ai.latency.time_to_first_token", "nccl.arrival.skew", "otelgpu.hw.error.code"} <= named
    documented = "".join(
        (ROOT / "docs" / f"{page}.md").read_text()
        for page in ("reference/signals", "explanation/collectives", "reference/fabric")
    )
    added = {"k8s.namespace.name"}  # by daemonset.yaml
    assert {name for name in named - added if f"`{name}`" not in documented} == set()
