"""The versions of what a server is made of, from what is installed and from lock files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from tests.servers.stacks import BUILT, PROGRAMS, Stack, node


def versions(stack: Stack) -> str:
    """As ``uvicorn 0.54.0, starlette 1.10.0``."""
    program = stack.command[0]
    found = [_node_version()] if program == "{node}" else []
    if program.endswith("go_server"):
        found.append(_go_version(program.format(built=BUILT)))
    if "{built}/ollama" in stack.command:
        found.append(f"Ollama {_said(str(BUILT / 'ollama'), '--version').rpartition(' ')[2]}")
    known = _python_versions(stack) if program == "{python}" else _locked_versions(program)
    return ", ".join(found + [f"{name} {known[name]}" for name in stack.packages])


def _python_versions(stack: Stack) -> dict[str, str]:
    folders = [] if stack.quick else (BUILT / stack.environment / "lib").glob("python3*/site-packages")
    found = distributions() if stack.quick else distributions(path=[str(folder) for folder in folders])
    return {each.metadata["Name"].lower(): each.version for each in found}


def _locked_versions(program: str) -> dict[str, str]:
    """Of Go modules, crates and Express."""
    crates = PROGRAMS / Path(program).name.removesuffix("_server") / "Cargo.lock"
    if program.endswith("/grpc_go_server"):
        modules = (PROGRAMS / "grpc_go" / "go.mod").read_text()
        return dict(re.findall(r"^\t(\S+) v(\S+)$", modules, re.MULTILINE))
    if crates.exists():
        return {crate["name"]: crate["version"] for crate in tomllib.loads(crates.read_text())["package"]}
    npm = json.loads((PROGRAMS / "express" / "package-lock.json").read_text())["packages"]
    return {"express": npm["node_modules/express"]["version"]}


def _node_version() -> str:
    return f"Node {_said(node(), '--version').removeprefix('v')}"


def _go_version(program: str) -> str:
    go = shutil.which("go") or "/usr/local/go/bin/go"
    return _said(go, "version", program).rpartition(" ")[2].replace("go", "Go ")


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
