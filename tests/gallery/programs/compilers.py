"""Programs that compile while they work."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

from tests.gallery.programs.steps import EVERY, STEPS, pause, work

_FUNCTION = "double f{n}(double x) {{ for (int i = 0; i < 100; i++) x += i * x / {n}.0; return x; }}\n"
_COMPILER = """\
import time, zlib

def compile(source):
    until = time.thread_time() + 0.12
    while time.thread_time() < until:
        zlib.compress(source)
"""


def extension(folder: Path) -> None:
    """A C compiler is started for each new shape, as by ``torch.utils.cpp_extension``."""
    source = folder / "kernel.c"
    source.write_text("".join(_FUNCTION.format(n=number) for number in range(1, 40)), encoding="ascii")
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", folder / "kernel.so", source], check=True)


def just_in_time(folder: Path) -> None:
    """Python code of a compiler runs in the process: a package with the names of Triton's."""
    package = folder / "site-packages" / "triton" / "compiler"
    package.mkdir(parents=True)
    (package / "compiler.py").write_text(_COMPILER, encoding="ascii")
    sys.path.insert(0, str(folder / "site-packages"))
    compiler = importlib.import_module("triton.compiler.compiler")
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            compiler.compile(bytes(range(256)) * 256)
