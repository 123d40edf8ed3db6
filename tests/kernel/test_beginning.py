"""Programs are loaded while the rest of a session is imported, and nothing of them is left where that fails."""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from otelgpu.engine.registry import with_records
from otelgpu.kernel.scope import Scope
from otelgpu.sources.live import LiveSettings, LiveSource


def programs_and_maps() -> int:
    """Descriptors of them in this process."""
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{entry}").startswith("anon_inode:bpf-")
    return found


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def open_source(meanwhile: object) -> LiveSource:
    families = {name: family for name, family in with_records().items() if name == "cuda"}
    return LiveSource(families, Scope(), LiveSettings(meanwhile=meanwhile))  # type: ignore[arg-type]


def test_programs_are_loaded_while_the_rest_is_imported() -> None:
    before = programs_and_maps()
    seen: list[float] = []

    def meanwhile() -> None:
        until = time.monotonic() + 60
        while not seen and time.monotonic() < until:
            time.sleep(0.01)
            if programs_and_maps() > before:
                seen.append(time.monotonic())

    with closing(open_source(meanwhile)):
        pass
    assert seen


def test_an_import_that_fails_leaves_neither_programs_nor_processes() -> None:
    with closing(open_source(lambda: None)):
        pass  # the session's forker is there from now on
    before, processes = programs_and_maps(), children()

    def meanwhile() -> None:
        raise RuntimeError("no such module")

    with pytest.raises(RuntimeError, match="no such module"):
        open_source(meanwhile)
    assert programs_and_maps() == before
    assert children() == processes
