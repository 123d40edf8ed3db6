"""A copy of the source tree under git, to which a test adds what somebody would add, and sees what that changed.

In: the tree that the tests run from. Out: a folder with its tracked files and those that git does not ignore, all
committed, and what is built of them; the interpreter that runs here, with the copy's `otelgpu` and `tests`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rig.fakes import ROOT

FAMILIES: Final = ROOT / "tests" / "contract" / "families"
"""Folders with what somebody adds who adds a family."""

_BUILT: Final = (
    *("otelgpu/_bpf", "otelgpu/_inject", "otelgpu/_native", "otelgpu/bridge/_publisher.abi3.so"),
    *("build/bpf", "build/inject.json", "build/bridge.json", "build/unwinder.json"),
    *("build/libcut_files.json", "build/libbpf_messages.json", "build/libcore_btf.json"),
    "build/libspanwriter.json",
)
"""Ignored by git; with the stamps of `build`, hatch_build.py sees that it is current."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """The copy at `root`."""

    root: Path

    def add(self, tree: Path) -> list[str]:
        """Put the files of a folder at the same places of the copy; their names, relative to it.

        Raises `FileExistsError` for one that is there.
        """
        added = sorted(
            str(path.relative_to(tree))
            for path in tree.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )
        for name in added:
            to = self.root / name
            if to.exists():
                raise FileExistsError(to)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / name, to)
        return added

    def status(self) -> dict[str, str]:
        """What differs from the tree that was copied: name → the two letters of `git status --short`."""
        lines = _git(self.root, "status", "--porcelain", "-z", "--untracked-files=all").split("\0")
        return {line[3:]: line[:2] for line in lines if line}

    def python(self, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run this interpreter in the copy."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        """What makes this interpreter import the copy."""
        return {**os.environ, "PYTHONPATH": str(self.root)}


def missing_for_checkout() -> str | None:
    """Name the first of what a copy with another family needs and that is not here; None when all is."""
    if not (ROOT / ".git").exists():
        return f"a clone: {ROOT} is none"
    return next((tool for tool in ("git", "clang", "gcc") if shutil.which(tool) is None), None)


def with_families(to: Path, *names: str) -> Checkout:
    """A copy to which families were added, built. Raises `RuntimeError` with the compiler's output."""
    made = check_out(to)
    for name in names:
        made.add(FAMILIES / name)
    done = made.python("hatch_build.py")
    if done.returncode:
        raise RuntimeError(f"hatch_build.py: {done.stdout}{done.stderr}")
    return made


def check_out(to: Path) -> Checkout:
    """Copy the tree to a folder that is made. Raises `subprocess.CalledProcessError` where it is no clone."""
    for name in _git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).exists():  # a tracked file may have been deleted
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    _git(to, "init", "--quiet")
    _git(to, "add", "--all")
    _git(
        to,
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@localhost",
        "commit",
        "--quiet",
        "--message=As it was",
    )
    for name in _BUILT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name)
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, to / name)
    return Checkout(to)


def _git(folder: Path, *arguments: str) -> str:
    # Root may look at a user's clone.
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
