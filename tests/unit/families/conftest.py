"""The fake NVML, loaded: the binding's dlopen finds a library of that soname that is there already."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import subprocess
from pathlib import Path

import pytest

from tests.rig.fakes import BUILD, ROOT, missing_compiler
from tests.unit.families.gpu.devices.nvml_script import Script


@functools.cache
def fake_nvml() -> Path:
    """Build it if it is out of date, it alone."""
    path = BUILD / "libnvidia-ml.so.1"
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "-C", ROOT / "tests" / "fakes", path], capture_output=True, text=True, check=False
        )
    if made.returncode:
        raise RuntimeError(f"{made.stdout}{made.stderr}")
    return path


@pytest.fixture
def library() -> Path:
    tool = missing_compiler()
    if tool is not None:
        pytest.skip(f"the fake NVML needs {tool} to be built")
    return fake_nvml()


@pytest.fixture
def script(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    ctypes.CDLL(str(library))
    path = tmp_path / "nvml.txt"
    monkeypatch.setenv("FAKE_NVML", str(path))
    return Script(path)
