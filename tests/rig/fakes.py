"""The stand-in vendor libraries and compiled example programs of tests/fakes/Makefile."""

from __future__ import annotations

import fcntl
import functools
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fakes"


def missing_compiler() -> str | None:
    """Name the first of the tools that building needs and that is not installed; None when all are."""
    return next((tool for tool in ("make", "gcc", "g++") if shutil.which(tool) is None), None)


@functools.cache
def build_fakes() -> Path:
    """Build what is out of date, once per process, and give the folder.

    A lock keeps test processes that run side by side apart. Raises `RuntimeError` with the compiler's output.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "-C", ROOT / "tests" / "fakes"], capture_output=True, text=True, check=False
        )
    if made.returncode:
        raise RuntimeError(f"make -C tests/fakes failed:\n{made.stdout}{made.stderr}")
    return BUILD


def fake_cudart_path() -> Path:
    """The built stand-in libcudart.so.12."""
    return build_fakes() / "libcudart.so.12"


def read_ledger(path: Path) -> Counter[str]:
    """Calls by function, of all processes that wrote to a FAKE_CUDART_LEDGER file."""
    counts: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        counts.update(json.loads(line)["calls"])
    return counts
