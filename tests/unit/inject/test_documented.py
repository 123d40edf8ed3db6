"""docs/explanation/inject.md explains every reason that the in-process source counts."""

from __future__ import annotations

import re

import pytest

from otelgpu.kernel.injection.server import InjectError, read_library
from tests.rig.fakes import ROOT

INJECTION = ROOT / "otelgpu" / "kernel" / "injection"


def counted_in_python() -> set[str]:
    text = "".join((INJECTION / name).read_text() for name in ("server.py", "shared_memory.py"))
    found = re.findall(r'counters\["(\w+)"\] \+=|(?:return|reason =) "(\w+)"$', text, re.MULTILINE)
    return {reason for pair in found for reason in pair if reason}


def test_every_reason_is_documented() -> None:
    try:
        enumerators = read_library().layout.enumerators("inject_counter")
    except InjectError as error:
        pytest.skip(str(error))
    counted = {name.removeprefix("INJECT_").lower() for name in enumerators} - {"submitted", "counter_count"}
    counted |= counted_in_python()
    assert {"record_malformed", "library_of_another_version", "ring_corrupt", "ring_full"} <= counted
    section = (ROOT / "docs" / "explanation" / "inject.md").read_text().partition("## Counters")[2]
    assert counted - set(re.findall(r"`(\w+)`", section)) == set()
