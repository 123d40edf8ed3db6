"""Nothing is run by a program that has privileges, but where it is named here and why."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.unit.test_layering import Module, imports, nodes, read_modules

ALLOWED = {
    ("child", "os.execvpe"): "the program that `run` is asked to start",
    (
        "families.rdma.discover.devices",
        "os.posix_spawn",
    ): "this interpreter, where a driver's library may crash; only if the kernel has RDMA devices",
    (
        "families.profiles.discover.unwinder",
        "subprocess",
    ): "our own program for unwind tables, at a fixed path, without capabilities, environment or system calls",
    (
        "cli.mcp.profiling",
        "subprocess",
    ): "this program's own `profile`, for an assistant, where `mcp --allow-profile` was asked for",
    (
        "cli.browser",
        "webbrowser",
    ): "`view` shows its page in the browser of who runs it, which no privilege is for",
}
_RUNS: Final = ("exec", "spawn", "posix_spawn", "system", "popen", "startfile")
_MODULES: Final = (
    "subprocess",
    "pty",
    "webbrowser",
    "multiprocessing",
    "asyncio.subprocess",
    "distutils",
    "ctypes.util",
)
_MAY_RUN: Final = re.compile("|".join((*_RUNS, *_MODULES, "ctypes")))  # what has none needs no parsing


def runs(module: Module) -> Iterator[str]:
    """What a module has that starts a program."""
    if not _MAY_RUN.search(module.source):
        return
    for name in imports(module):
        if any(name == each or name.startswith(f"{each}.") for each in _MODULES):
            yield name
        if name.startswith("os.") and name.removeprefix("os.").startswith(_RUNS):
            yield name
    for node in nodes(module):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name.startswith(_RUNS):
                yield f"os.{name}"


def breaches(module: Module) -> list[str]:
    return [name for name in runs(module) if (module.name, name) not in ALLOWED]


def test_no_module_starts_a_program() -> None:
    assert {module.name: found for module in read_modules() if (found := breaches(module))} == {}


def test_every_exception_is_in_use() -> None:
    named = {name for name, _ in ALLOWED}
    found = {
        (module.name, name) for module in read_modules() if module.name in named for name in runs(module)
    }
    assert found >= ALLOWED.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "from subprocess import run",
        "import os\nos.system('ls')",
        "import os\nos.posix_spawnp('ls', [], {})",
        "from os import execv",
        "from ctypes.util import find_library",
        "from ctypes import util",
        "from asyncio import subprocess",
    ],
)
def test_a_breach_is_found(source: str) -> None:
    assert breaches(Module("kernel.ring", source))


def test_libraries_that_would_run_something_or_start_threads_do_not() -> None:
    program = """
import os, sys
ran = []
sys.addaudithook(lambda event, args: ran.append(event) if event in
    ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork") else None)
before = dict(os.environ)
from otelgpu.cli.commands import cli
for name in ("agent", "check"):
    cli.get_command(None, name)
from otelgpu.symbols.demangle import demangle
assert demangle("_Z4axpyfPfS_") == "axpy(float, float*, float*)", demangle("_Z4axpyfPfS_")
assert dict(os.environ) == before
print(ran, len(os.listdir("/proc/self/task")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "[] 1\n", done
