"""CPython interpreters on this machine: on PATH, of pyenv, and in folders that hold a root file system.

Out: :class:`Python`, one for each file that is a CPython from 3.9 on. The environment variable
``OTELGPU_PYTHON_ROOTS`` names root file systems (separated by colons) with an interpreter in ``/usr/bin``: it is run
in there, as in a container. Debian's packages unpacked into a folder are one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.rig.fakes import ROOT

PROGRAM: Final = ROOT / "tests" / "fakes" / "programs" / "python_stacks.py"
MINORS: Final = range(9, 15)
_QUESTION: Final = """
import json, os, sys, sysconfig
print(json.dumps([
    os.path.realpath(sys._base_executable),
    sys.version.split()[0],
    sys.implementation.name,
    sysconfig.get_path("include"),
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
]))
"""
TruthFrame = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """One of them. ``root``: the file system that it is run in, if it is not this one."""

    version: str
    path: Path
    include: Path
    root: Path | None = None

    @property
    def minor(self) -> int:
        """Of 3."""
        return int(self.version.split(".")[1])

    def __str__(self) -> str:
        where = "root" if self.root else self.path.parts[1]
        return f"{self.version}-{where}"

    def command(self, *arguments: str) -> list[str]:
        """What runs it."""
        into = ["chroot", str(self.root)] if self.root else []
        return [*into, str(self.path), *arguments]

    def run(self, source: str) -> str:
        """What a script writes."""
        done = subprocess.run(
            self.command("-c", source), capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def start(self, stack: str) -> tuple[subprocess.Popen[str], list[TruthFrame]]:
        """The program, in one of its stacks, and what that is, the leaf first."""
        program = str(PROGRAM)
        if self.root:
            shutil.copy(PROGRAM, self.root / PROGRAM.name)
            program = f"/{PROGRAM.name}"
        process = subprocess.Popen(self.command(program, stack), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        truth = json.loads(process.stdout.readline())
        return process, [(str(name), str(file), int(line)) for name, file, line in truth]


@cache
def pythons() -> Sequence[Python]:
    """By version; each file once."""
    names = [f"python3.{minor}" for minor in MINORS]
    paths = [Path("/usr/bin", name) for name in names]
    paths += [Path(found) for name in names if (found := shutil.which(name))]
    paths += [path for name in names for path in Path.home().glob(f".pyenv/versions/*/bin/{name}")]
    looked: dict[tuple[Path, Path | None], Python] = {}
    for path in dict.fromkeys(path.resolve() for path in paths if path.exists()):
        if not _is_script(path) and (python := _look(path, None)) is not None:
            looked[(python.path, None)] = python
    for root in filter(None, os.environ.get("OTELGPU_PYTHON_ROOTS", "").split(":")):
        for name in names:
            path = Path("/usr/bin", name)
            if (Path(root) / "usr/bin" / name).exists() and (python := _look(path, Path(root))):
                looked[(python.path, python.root)] = python
    return sorted(looked.values(), key=lambda each: (each.minor, str(each)))


def _is_script(path: Path) -> bool:
    """As pyenv's on PATH are: each takes 0.2 s to say which of its interpreters it runs, all of which are listed."""
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _look(path: Path, root: Path | None) -> Python | None:
    try:
        python = Python(version="3.0", path=path, include=Path(), root=root)
        real, version, name, include, free_threaded = json.loads(python.run(_QUESTION))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if name != "cpython" or free_threaded:
        return None
    headers = (root / include.lstrip("/")) if root else Path(include)
    return Python(version=version, path=Path(real), include=headers, root=root)
