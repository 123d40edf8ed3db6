"""Structs of a tenant's debugging information: found by a worker, and whoever makes that dear pays for it alone."""

from __future__ import annotations

import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otelgpu.elf.struct_member import Member
from otelgpu.processes.reader.accounts import Owner
from otelgpu.processes.reader.client import Limits
from otelgpu.processes.struct_finder import Members, StructFinder
from tests.unit.elf.elf_builders import compile_c, compiler

TENANT, NEIGHBOUR = ("/tenant", 1000), ("/neighbour", 1000)
SOURCE = "struct wanted { int first; long second[3]; char third; } it; int use(void) { return it.first; }\n"
MEMBERS = {"first": Member(0, 1), "second": Member(8, 3), "third": Member(32, 1)}
UNITS = 2_000_000

Ask = Callable[[Owner, Path], tuple[Members | None, bool]]


@pytest.fixture
def ask() -> Iterator[Ask]:
    finder = StructFinder(Limits(busy_s=1.0, wall_s=10.0, failure_s=60.0))

    def asked(owner: Owner, path: Path) -> tuple[Members | None, bool]:
        answers: list[tuple[Members | None, bool]] = []
        answered = threading.Event()

        def done(members: Members | None, was_read: bool) -> None:
            answers.append((members, was_read))
            answered.set()

        with path.open("rb") as file:
            finder.find(owner, file.fileno(), "wanted", done)
        assert answered.wait(30)
        return answers[0]

    yield asked
    finder._reader.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return compile_c(tmp_path, "libdescribed.so", SOURCE, "-g", "-shared", "-fPIC")


@pytest.fixture
def bomb(tmp_path: Path, library: Path) -> Path:
    """Of two million units, each of which pyelftools remembers, before one mention of the name."""
    unit = struct.pack("<IHIBB", 8, 4, 0, 8, 0)
    (tmp_path / "info").write_bytes(unit * UNITS + struct.pack("<IHIBBI", 12, 4, 0, 8, 1, 1))
    (tmp_path / "strings").write_bytes(b"\0wanted\0")
    dear = tmp_path / "libdear.so"
    replace = [
        f"--update-section=.debug_info={tmp_path / 'info'}",
        f"--update-section=.debug_str={tmp_path / 'strings'}",
    ]
    subprocess.run([compiler("objcopy"), *replace, library, dear], check=True)
    return dear


def test_a_struct_is_found(ask: Ask, library: Path) -> None:
    assert ask(TENANT, library) == (MEMBERS, True)
    subprocess.run([compiler("strip"), "-g", library], check=True)
    assert ask(TENANT, library) == (None, True)  # without debugging information


def test_what_is_no_image_has_none(ask: Ask, tmp_path: Path) -> None:
    for content in (b"", b"#!/bin/sh\n" * 100):
        (tmp_path / "file").write_bytes(content)
        assert ask(TENANT, tmp_path / "file") == (None, True)


def test_units_without_end_are_given_up_at_their_owner_s_expense(ask: Ask, library: Path, bomb: Path) -> None:
    began = time.monotonic()
    assert ask(TENANT, bomb) == (None, False)
    assert time.monotonic() - began < 5
    assert ask(TENANT, library) == (None, False)
    assert ask(NEIGHBOUR, library) == (MEMBERS, True)
