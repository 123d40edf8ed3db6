"""What is found in the files of a process is read once, and the program comes before what it has mapped."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.processes import program_files
from otelgpu.processes.maps import Mapping, executable_mappings
from otelgpu.processes.program_files import FileAnswers, base_of, program_and_interpreters

OWN = os.getpid()
PROGRAM = str(Path(os.readlink(f"/proc/{OWN}/exe")))


def own_mappings() -> list[Mapping]:
    return program_and_interpreters(OWN, executable_mappings(OWN))


def test_the_program_comes_first_and_only_interpreters_after_it() -> None:
    first, *others = own_mappings()
    assert first.path == PROGRAM
    renamed = [
        replace(each, path="/usr/lib/libpython3.11.so.1.0", inode=1) for each in executable_mappings(OWN)[:1]
    ]
    found = program_and_interpreters(OWN, [*renamed, replace(first, path="/lib/libm.so.6", inode=2), first])
    assert [each.path for each in found] == [PROGRAM, "/usr/lib/libpython3.11.so.1.0"]
    assert all("python" in each.path for each in others)


def test_a_file_is_looked_into_once_and_again_once_it_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def look(image: ElfImage, name: str) -> str:
        looked.append(name)
        return name

    monkeypatch.setattr(program_files, "MAX_FILES", 1)
    answers = FileAnswers(look)
    program = own_mappings()[0]
    other = next(each for each in executable_mappings(OWN) if "/libc" in each.path)
    assert [answers.of(OWN, program), answers.of(OWN, program)] == [Path(PROGRAM).name] * 2
    assert len(looked) == 1
    answers.of(OWN, other)
    answers.of(OWN, program)
    assert len(looked) == 3


def test_a_file_that_cannot_be_read_is_tried_again() -> None:
    answers = FileAnswers(lambda image, name: name)
    ended = subprocess.Popen(["true"])
    ended.wait()
    for _ in range(2):
        with pytest.raises((OSError, ElfError)):
            answers.of(ended.pid, replace(own_mappings()[0], path="/nowhere/python3"))


def test_the_base_of_a_program_is_where_its_code_says() -> None:
    mapping = own_mappings()[0]
    bases = FileAnswers(lambda image, name: base_of(image.loads, mapping))
    base = bases.of(OWN, mapping)
    assert base is not None and base % os.sysconf("SC_PAGE_SIZE") == 0 and base <= mapping.start
