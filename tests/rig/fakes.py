"""The fake vendor libraries and compiled example programs of tests/fakes/Makefile."""

from __future__ import annotations

import fcntl
import functools
import json
import shutil
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fakes"
_FAKES = ROOT / "tests" / "fakes"


def cuda_headers() -> Path | None:
    """The folder of cuda.h and cuda_runtime_api.h (nvidia-cuda-runtime-cu12); None when it is not installed."""
    folder = Path(sysconfig.get_path("purelib"), "nvidia", "cuda_runtime", "include")
    return folder if (folder / "cuda.h").exists() else None


def cuda_include_flags() -> list[str]:
    """Compiler options for programs that include CUDA's headers. Needs `cuda_headers`."""
    return ["-isystem", str(_FAKES / "include"), "-isystem", str(cuda_headers())]


def missing_compiler() -> str | None:
    """Name the first of what building needs and that is not installed; None when all are."""
    if cuda_headers() is None:
        return "nvidia-cuda-runtime-cu12 (CUDA's headers)"
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
            ["make", "-C", _FAKES, f"CUDA_INCLUDE={cuda_headers()}"],
            capture_output=True,
            text=True,
            check=False,
        )
    if made.returncode:
        raise RuntimeError(f"make -C tests/fakes failed:\n{made.stdout}{made.stderr}")
    return BUILD


def fake_cudart_path() -> Path:
    """The built fake libcudart.so.12."""
    return build_fakes() / "libcudart.so.12"


def fake_cuda_path() -> Path:
    """The built fake libcuda.so.1."""
    return build_fakes() / "libcuda.so.1"


def read_ledger(path: Path) -> Counter[str]:
    """Calls by function, of all processes that wrote to a FAKE_CUDART_LEDGER or FAKE_CUDA_LEDGER file."""
    counts: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        counts.update(json.loads(line)["calls"])
    return counts
