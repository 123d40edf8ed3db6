"""Every test here loads BPF programs into the running kernel; where that cannot work, each skip proves why."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.captured_connections import TrafficProgram, traffic_program
from tests.kernel.observing import Watch
from tests.rig import build_fakes, missing_compiler
from tests.rig.marks import mark_folder

_CAP_SYS_ADMIN = 21


def _proven_hindrance() -> str | None:
    """What stands in the way on this machine, shown by trying it; None when nothing does."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    if os.geteuid() != 0 or not int(effective, 16) >> _CAP_SYS_ADMIN & 1:
        return f"needs root with CAP_SYS_ADMIN: uid {os.geteuid()}, CapEff {effective}"
    try:
        Path("/sys/kernel/btf/vmlinux").read_bytes()
    except OSError as error:
        return f"needs a kernel with BTF: {error}"
    try:
        ctypes.CDLL("libbpf.so.1")
    except OSError as error:
        return f"needs libbpf: {error}"
    if tool := missing_compiler():
        return f"needs {tool}, which is not on PATH, to build the fake libraries"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_folder(items, Path(__file__).parent, pytest.mark.kernel)


@pytest.fixture(scope="session", autouse=True)
def kernel() -> None:
    """Skip when BPF programs cannot be loaded here, and build what is observed."""
    if hindrance := _proven_hindrance():
        pytest.skip(hindrance)
    build_fakes()


@pytest.fixture(scope="session")
def shared_watch(kernel: None) -> Iterator[Watch]:
    """A source with default settings for all tests that want no other: its probes are placed only once."""
    with Watch(families=("cuda", "http")) as watching:
        yield watching


@pytest.fixture
def watching(shared_watch: Watch) -> Iterator[Watch]:
    """The shared source, with nothing of the tests before in it."""
    shared_watch.start_anew()
    yield shared_watch


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    """Start a source of the test's own: ``watch(families=("cuda",), scope=Scope(…), …)``; ends with the test.

    Slower than ``watching``: the kernel takes tens of milliseconds to take each probe off, and who attaches
    next waits for it.
    """
    with ExitStack() as stack:

        def start(**options: object) -> Watch:
            return stack.enter_context(Watch(**options))  # type: ignore[arg-type]

        yield start


@pytest.fixture(scope="module")
def shared_talker(shared: Watch) -> Iterator[TrafficProgram]:
    """A program that holds captured_connections, observed by ``shared``: the module's own, of family http."""
    with traffic_program() as started:
        shared.pump(0.5)
        shared.observe(started.pid)
        yield started


@pytest.fixture
def overheard(shared: Watch, shared_talker: TrafficProgram) -> Watch:
    """``shared`` while the program talks, with nothing of the tests before in it."""
    shared.start_anew()
    return shared


@pytest.fixture
def do(overheard: Watch, shared_talker: TrafficProgram) -> Callable[..., Any]:
    """Hold a captured, and wait until all of it was seen."""
    return lambda *what: overheard.during(lambda: shared_talker.do(*what))


@pytest.fixture(scope="module")
def shared_nccl(kernel: None) -> Iterator[Watch]:
    """A source of family nccl for the tests of a module."""
    with Watch(families=("nccl",)) as watching:
        yield watching


@pytest.fixture
def nccl(shared_nccl: Watch) -> Watch:
    """The same, with nothing of the tests before in it."""
    shared_nccl.start_anew()
    return shared_nccl
