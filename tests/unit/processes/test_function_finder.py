"""Functions of a tenant's files: found by a worker, and whoever makes that dear pays for it alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.processes.function_finder import FoundFunctions, FunctionFinder
from otelgpu.processes.go_functions import GoFunction, GoFunctions
from otelgpu.processes.reader.client import Limits, ReaderError
from otelgpu.symbols.functions import FunctionTable
from otelgpu.symbols.registrations import Registrations, read_registrations
from tests.unit.elf.elf_builders import compile_library, registering_elf, synthetic_elf
from tests.unit.elf.go_builders import FUNCTION, go_elf
from tests.unit.symbols.cuda_programs import DATA, NAMES, compile_program

TENANT, NEIGHBOUR = ("/tenant", 1000), ("/neighbour", 1000)
WANTED = frozenset({"exported", "versioned", "absent"})


@pytest.fixture
def finder() -> Iterator[FunctionFinder]:
    made = FunctionFinder(Limits(busy_s=0.03, wall_s=1.0, failure_s=10.0))
    yield made
    made.close()


@pytest.fixture
def library(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(compile_library(tmp_path), os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def dear(tmp_path: Path) -> Iterator[int]:
    """Of 1,900,000 functions that are called almost like wanted ones."""
    path = tmp_path / "dear.so"
    path.write_bytes(
        synthetic_elf(1_900_000, names=[f"{name}{number}" for name in WANTED for number in range(999)])
    )
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_a_file_s_functions_are_found(finder: FunctionFinder, library: int) -> None:
    found = finder.find(TENANT, library, WANTED)
    assert found.offsets.keys() == {"exported", "versioned"} and not found.is_go
    assert finder.find(TENANT, library, frozenset({"absent"})).offsets == {}  # other names, the same worker


def test_functions_of_go_come_with_them(finder: FunctionFinder, tmp_path: Path) -> None:
    (tmp_path / "serve").write_bytes(go_elf({"a.b": FUNCTION, "c.d": FUNCTION}))
    with (tmp_path / "serve").open("rb") as file:
        found = finder.find(TENANT, file.fileno(), WANTED, {"a.b", "no.such"})
        assert found.is_go and found.go.found.keys() == {"a.b"}
        assert not finder.find(TENANT, file.fileno(), WANTED).go.found


def test_a_worker_that_answers_what_was_not_asked_is_not_believed(
    finder: FunctionFinder, library: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for go in ({"a.b": GoFunction(0, tuple(range(1 << 10)))}, {"c.d": GoFunction(0, (1,))}):
        answer = FoundFunctions({}, True, GoFunctions(go))
        monkeypatch.setattr(finder._reader, "ask", lambda *_, answer=answer: answer)
        assert finder.find(TENANT, library, WANTED, {"a.b"}).go == GoFunctions(unknown=True)


def test_what_is_no_image_is_told_as_such(finder: FunctionFinder, tmp_path: Path) -> None:
    for content in (b"", b"#!/bin/sh\n" * 100):
        (tmp_path / "file").write_bytes(content)
        with (tmp_path / "file").open("rb") as file, pytest.raises(ElfError):
            finder.find(TENANT, file.fileno(), WANTED)
    assert not any(finder.counters.values())


def test_a_file_made_to_be_dear_stops_its_owner_s_and_nobody_else_s(
    finder: FunctionFinder, library: int, dear: int
) -> None:
    with pytest.raises(ReaderError) as first:
        finder.find(TENANT, dear, WANTED)
    with pytest.raises(ReaderError) as second:
        finder.find(TENANT, library, WANTED)
    assert (first.value.reason, second.value.reason) == ("worker_timed_out", "owner_over_budget")
    assert finder.find(NEIGHBOUR, library, WANTED).offsets
    assert finder.counters["worker_timed_out"] == finder.counters["owner_over_budget"] == 1


def test_a_file_that_shrinks_ends_the_worker_only(
    finder: FunctionFinder, library: int, tmp_path: Path
) -> None:
    path = tmp_path / "cut.so"
    content = bytearray(synthetic_elf(400_000))
    path.write_bytes(content)
    with path.open("r+b") as file:
        child = os.fork()
        if not child:
            while True:  # until it is killed
                os.ftruncate(file.fileno(), 4096)
                os.ftruncate(file.fileno(), len(content))
        failures = 0
        for number in range(20):
            try:
                finder.find((f"/tenant{number}", 1000), file.fileno(), WANTED)
            except (ReaderError, ElfError):
                failures += 1
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert failures
    assert finder.find(NEIGHBOUR, library, WANTED).offsets


# -- Kernels that a stripped file registers ---------------------------------------------------------------


@pytest.mark.parametrize("device_code", ["lz4.fatbin", "zstd.fatbin"])
def test_a_worker_reads_the_same_registrations(
    finder: FunctionFinder, tmp_path: Path, device_code: str
) -> None:
    """With the packages that decompress device code, which a worker cannot load any more."""
    program = compile_program(tmp_path, "app", "-O2", fatbin=DATA / device_code)
    read_here = read_registrations(ElfImage(program.read_bytes()))
    assert len(read_here.stubs) == len(NAMES)
    with program.open("rb") as file:
        assert finder.registrations(TENANT, file.fileno()) == read_here


def test_code_made_to_look_like_registrations_is_given_up(
    finder: FunctionFinder, library: int, tmp_path: Path
) -> None:
    """16,384 places that look so, a millisecond each."""
    path = tmp_path / "dear.so"
    path.write_bytes(registering_elf(1 << 14))
    with path.open("rb") as file:
        began = time.monotonic()
        with pytest.raises(ReaderError) as raised:
            finder.registrations(TENANT, file.fileno())
        assert time.monotonic() - began < 4.5
    assert raised.value.reason == "worker_timed_out"
    assert finder.find(NEIGHBOUR, library, WANTED).offsets


def test_a_place_in_such_a_file_has_no_name_and_that_is_counted(tmp_path: Path) -> None:
    program = (DATA / "stripped.program").read_bytes()
    image = ElfImage(program)
    stub = image.offset_of(next(iter(read_registrations(image).stubs))) or 0

    def refused() -> Registrations:
        raise ReaderError("worker_timed_out", "registrations_in")

    table = FunctionTable(image, "app", registrations=refused)
    assert table.name_at(stub) == (f"app+{stub:#x}", False)
    assert table.counters == {"device_code_not_read": 1}
