"""The real ``libnccl.so.2`` of four versions, from the packages nvidia-nccl-cu12, kept in the user's cache.

Four copies cannot be installed side by side, and each has 250 to 470 MB: they are fetched once, by pip. One that is
installed (PyTorch brings it) is taken as it is.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final

from tests.rig.isolation import machine_network

VERSIONS: Final = ("2.21.5", "2.27.5", "2.28.9", "2.32.3")
_FILES: Final = ("lib/libnccl.so.2", "include/nccl.h")
_FETCH_S: Final = 600


def nccl_library(version: str) -> Path:
    """The library. Raises RuntimeError with what pip said when it is not to be had."""
    if (installed := _installed(version)) is not None:
        return installed
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "otelgpu" / "nccl" / version
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        if not all((folder / Path(name).name).exists() for name in _FILES):
            with machine_network():
                _fetch(version, folder)
    return folder / "libnccl.so.2"


def _installed(version: str) -> Path | None:
    for package in ("nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        try:
            found = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue
        folder = Path(str(found.locate_file("nvidia/nccl")))
        if found.version == version and all((folder / name).exists() for name in _FILES):
            return folder / "lib" / "libnccl.so.2"
    return None


def _fetch(version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        said = subprocess.run(
            [*command, f"nvidia-nccl-cu12=={version}"], capture_output=True, text=True, timeout=_FETCH_S
        )
        wheels = list(Path(scratch).glob("*.whl"))
        if said.returncode or not wheels:
            raise RuntimeError(f"nvidia-nccl-cu12 {version} cannot be fetched: {said.stderr[-1000:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in _FILES:
                extracted = Path(scratch, Path(name).name)
                with wheel.open(f"nvidia/nccl/{name}") as packed, extracted.open("wb") as file:
                    shutil.copyfileobj(packed, file)
                extracted.replace(folder / extracted.name)


def parameters(version: str) -> dict[str, list[str]]:
    """Every function that ``nccl.h`` of a version declares → the names of its parameters, in order."""
    library = nccl_library(version)
    beside, of_package = library.with_name("nccl.h"), library.parent.parent / "include" / "nccl.h"
    text = (beside if beside.exists() else of_package).read_text()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    found = {}
    for name, listed in re.findall(r"ncclResult_t\s+(nccl\w+)\s*\(([^;]*?)\)\s*;", text):
        given = [part.strip() for part in listed.split(",") if part.strip() not in ("", "void")]
        found[name] = [re.sub(r"\[\]$", "", part).split()[-1].lstrip("*") for part in given]
    return found
