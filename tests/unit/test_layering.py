"""DESIGN.md section 3 as a test: data flows one way, and I/O stays in the packages that own it.

A *package* here is one, or a module, directly under otelgpu/. This file lists every one of them; a new one is a
design decision, taken here and in DESIGN.md together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "otelgpu"

# Top to bottom: a package may import from the rows above its own, and from itself.
ROWS = (
    ("__init__", "model", "errors", "typing"),
    ("elf", "protobuf", "spanwriter"),
    ("symbols", "kernel", "bridge"),
    ("processes",),
    ("engine",),
    ("families",),
    ("otlp_json",),
    ("export", "view"),
    ("sources",),
    ("render",),
    ("store",),
    ("check", "config", "diagnose", "topology"),
    ("session", "child", "memory_limit", "rest", "pace"),
    ("self_telemetry",),
    ("agent",),
    ("cli",),
    ("__main__",),
)
ROW = {package: row for row, packages in enumerate(ROWS) for package in packages}

# Rooms that run on a capture file without root, clang or a GPU: no I/O, no clock, no thread, and no import
# of a package that has them. Of a family its modules ``discover`` and ``poll`` are not.
PURE = {
    *("model", "errors", "typing", "elf", "symbols", "spanwriter", "engine", "families"),
    *("diagnose", "otlp_json", "protobuf", "topology", "view", "render"),
}
PEERS_WITH_IO = {"kernel", "processes", "bridge", "export", "sources", "store", "check"}

BANNED_IN_PURE = {
    *("asyncio", "concurrent", "fcntl", "glob", "http.client", "http.server", "mmap", "multiprocessing"),
    *("os", "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "ssl"),
    *("subprocess", "tempfile", "threading", "time", "urllib.request", "uuid"),
    *("grpc", "requests", "opentelemetry.sdk", "opentelemetry.exporter"),
}
ALLOWED_IN_PURE = {
    *("os.path", "os.PathLike", "os.fspath", "os.fsdecode", "os.fsencode"),  # they work on text
    *("socket.AF_INET", "socket.AF_INET6", "socket.AF_UNIX"),  # numbers
}
READERS = {"read_bytes", "read_text", "write_bytes", "write_text"}
CLOCKS = {"now", "utcnow", "today"}

LONGEST_MODULE = 600
LONGEST_FUNCTION = 80
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


@dataclass(frozen=True)
class Module:
    """A source file, named by its dotted path below otelgpu: ``families.cuda.decode``."""

    name: str
    source: str
    is_package: bool = False

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_pure(self) -> bool:
        """A family looks at processes and devices in ``discover`` and ``poll``, and nowhere else."""
        looks_out = self.package == "families" and {"discover", "poll"} & set(self.name.split("."))
        return self.package in PURE and not looks_out


@cache
def read_modules() -> Sequence[Module]:
    modules = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__" and len(parts) > 1
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return modules


@lru_cache(maxsize=1)  # the rules ask one after the other
def nodes(module: Module) -> Sequence[ast.AST]:
    """All that its source consists of."""
    return list(ast.walk(ast.parse(module.source)))


def imports(module: Module) -> Iterator[str]:
    """Every name that the module imports, absolute: ``from .a import b`` in package x gives ``otelgpu.x.a.b``.

    Those under ``if TYPE_CHECKING`` count: a type is a dependency.
    """
    package = ["otelgpu", *module.name.split(".")]
    if not module.is_package:
        package.pop()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """Name and lines of each."""
    for node in nodes(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def is_within(name: str, banned: str) -> bool:
    return name == banned or name.startswith(f"{banned}.")


def calls_with_io(module: Module) -> Iterator[str]:
    """Calls that need no reporting import: ``open(…)``, ``path.read_text()``, ``datetime.now()``."""
    for node in nodes(module):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open" | "input" | "print" as name):
                yield f"{name}()"
            case ast.Attribute(attr=name) if name in READERS:
                yield f".{name}()"
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name) if name in CLOCKS:
                yield f"datetime.{name}()"


def violations(module: Module) -> list[str]:
    """Each rule that the module breaks, as a line that says what to do."""
    package, found = module.package, []
    if package not in ROW:
        return [
            f"{module.name}: unknown package {package!r}; place it in ROWS here and in DESIGN.md section 3"
        ]

    if module.name.rpartition(".")[2] in VAGUE_NAMES:
        found.append(f"{module.name}: name the noun that it holds")
    lines = module.source.count("\n")
    if lines > LONGEST_MODULE:
        found.append(f"{module.name}: {lines} lines; split it below {LONGEST_MODULE}")
    found += [
        f"{module.name}: {name}() has {lines} lines; a screen has {LONGEST_FUNCTION}"
        for name, lines in functions(module)
        if lines > LONGEST_FUNCTION
    ]

    for name in imports(module):
        where = f"{module.name}: imports {name}"
        if is_within(name, "ctypes") and package not in {"kernel", "spanwriter"}:
            found.append(f"{where}, but the only ctypes is in kernel and spanwriter")
        if module.is_pure and name not in ALLOWED_IN_PURE and not name.startswith("os.path."):
            found += [
                f"{where}, but {package} is pure" for banned in BANNED_IN_PURE if is_within(name, banned)
            ]
        if not is_within(name, "otelgpu"):
            continue
        _, _, below = name.partition(".")
        target = below.partition(".")[0] or "__init__"
        if target.startswith("__") and target.endswith("__"):
            target = "__init__"  # from otelgpu import __version__
        if target == package:
            found += other_family(module, below, where)
        elif target not in ROW:
            found.append(f"{where}, an unknown package")
        elif ROW[target] >= ROW[package]:
            found.append(f"{where}, which is not above {package}")
        elif module.is_pure and target in PEERS_WITH_IO:
            found.append(f"{where}, which does I/O, but {package} is pure")
    if module.is_pure:
        found += [f"{module.name}: calls {call}, but {package} is pure" for call in calls_with_io(module)]
    return found


def other_family(module: Module, below: str, where: str) -> list[str]:
    """Families share the engine and the model, never each other: adding one edits no other."""
    if module.package != "families":
        return []
    own = module.name.split(".")[1:2]
    theirs = below.split(".")[1:2]
    families = [path.name for path in (PACKAGE / "families").iterdir() if path.is_dir()]
    if own != theirs and theirs and theirs[0] in families:
        return [f"{where}, another family"]
    return []


# Joined by hand until the contract joins them: each leaves this list when it keeps to the rules.
STILL_JOINED = {
    "engine.registry",
}


def test_modules_keep_to_their_packages() -> None:
    found = {module.name: broken for module in read_modules() if (broken := violations(module))}
    assert {name: broken for name, broken in found.items() if name not in STILL_JOINED} == {}
    assert found.keys() >= STILL_JOINED, "these keep to the rules now and leave the list"


@pytest.mark.parametrize(
    ("name", "source", "complaint"),
    [
        ("engine.join", "from otelgpu.sources import live", "not above engine"),
        ("model.ids", "import otelgpu.elf.btf", "not above model"),
        ("kernel.ring", "from otelgpu.processes import maps", "not above kernel"),
        ("export.otlp", "from ..agent import Agent", "not above export"),
        ("engine.spans", "if TYPE_CHECKING:\n    from otelgpu.cli import main", "not above engine"),
        ("families.gpu.cuda.decode", "from otelgpu.kernel.ring import Ring", "does I/O"),
        ("families.gpu.cuda.decode", "from otelgpu.families.requests import decode", "another family"),
        ("families.gpu.cuda.decode", "from ...requests.decode import feed", "another family"),
        ("symbols.elf", "import socket", "symbols is pure"),
        ("elf.btf", "from os import open", "elf is pure"),
        ("engine.join", "from time import monotonic_ns", "engine is pure"),
        ("diagnose.report", "import urllib.request", "diagnose is pure"),
        ("diagnose.report", "from otelgpu.store.database import Store", "which does I/O"),
        ("view.page", "from pathlib import Path\nPath('index.html').read_text()", "calls .read_text()"),
        ("engine.names", "table = open('names.csv')", "calls open()"),
        ("elf.btf", "from pathlib import Path\nPath('x').read_bytes()", "calls .read_bytes()"),
        ("model.spans", "from datetime import datetime\ndatetime.now()", "calls datetime.now()"),
        ("export.batch", "from ctypes import CDLL", "only ctypes is in kernel"),
        ("gadgets.thing", "", "unknown package 'gadgets'"),
        ("model.ids", "from otelgpu import gadgets", "unknown package"),
        ("export.utils", "", "name the noun"),
        ("cli.main", "\n" * (LONGEST_MODULE + 1), "split it"),
        ("cli.main", "def run():\n" + "    f()\n" * LONGEST_FUNCTION, "run() has 81 lines"),
    ],
)
def test_a_breach_is_reported(name: str, source: str, complaint: str) -> None:
    assert any(complaint in line for line in violations(Module(name, source)))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "families.gpu.cuda.decode",
            "from otelgpu.engine.contract import Family\nfrom os.path import basename",
        ),
        ("processes.files", "import os\nfrom otelgpu.symbols.elf import read\nfrom otelgpu.elf import btf"),
        ("kernel.libbpf", "import ctypes\nfrom otelgpu.errors import OtelgpuError"),
        ("cli.main", "from otelgpu import __version__\nfrom otelgpu.agent import Agent"),
        ("engine.spans", "from otelgpu.model import spans\nfrom . import names"),
        ("families.requests.decode", "from socket import AF_INET, AF_INET6"),
    ],
)
def test_what_the_design_allows_passes(name: str, source: str) -> None:
    assert violations(Module(name, source)) == []
