"""The real ``libc10.so`` and ``libc10_cuda.so`` of several versions of PyTorch, kept in the user's cache.

A wheel has 500 to 900 MB and these two files 2 to 4: pip says where a pinned wheel is, and only those parts of it are
read. Each part's checksum is in the wheel's directory.
"""

from __future__ import annotations

import fcntl
import functools
import io
import os
import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path
from typing import Final

from tests.rig.isolation import machine_network

VERSIONS: Final = ("1.13.1", "2.1.2", "2.10.0", "2.15.0")
WITH_CUDA_12: Final = ("2.1.2", "2.10.0")
"""Those whose libc10_cuda.so is linked to libcudart.so.12, as the fake is called."""

_FILES: Final = ("libc10.so", "libc10_cuda.so")
_FOR: Final = ("--python-version=311", "--platform=manylinux1_x86_64", "--platform=manylinux_2_28_x86_64")
_FETCH_S: Final = 300
_READ_BYTES: Final = 1 << 20


def torch_libraries(version: str) -> Path:
    """The folder with both. Raises RuntimeError with what was said when they are not to be had."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "otelgpu" / "torch" / version
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        if not all((folder / name).exists() for name in _FILES):
            try:
                with machine_network():
                    _fetch(_address(version), folder)
            except (OSError, zipfile.BadZipFile) as error:
                raise RuntimeError(f"parts of torch {version} cannot be fetched: {error}") from error
    return folder


def _address(version: str) -> str:
    """Where the index that pip is set up with has the wheel."""
    found = re.search(
        rf"Found link (\S+\.whl)\S* .*, version: {re.escape(version)}(?:\+\S+)?$", _wheels(), re.MULTILINE
    )
    if found is None:
        raise RuntimeError(
            f"torch {version} is not to be had: the index has no wheel of it for {' '.join(_FOR)}"
        )
    return found[1]


@functools.cache
def _wheels() -> str:
    """What pip says of each: to install one, even with --dry-run, it reads all of it."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", "-vv", "--only-binary=:all:", *_FOR]
    said = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S)
    if said.returncode:
        raise RuntimeError(f"torch is not to be had: {said.stderr[-1000:]}")
    assert "Found link " in said.stdout, f"this pip says otherwise where wheels are: {said.stdout[-1000:]}"
    return said.stdout


def _fetch(address: str, folder: Path) -> None:
    with zipfile.ZipFile(io.BufferedReader(_Remote(address), _READ_BYTES)) as wheel:
        for name in _FILES:
            half = folder / f"{name}.new"
            half.write_bytes(wheel.read(f"torch/lib/{name}"))
            half.replace(folder / name)


class _Remote(io.RawIOBase):
    """A file behind an address, read in ranges (RFC 9110, section 14). Raises OSError where there are none."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._at = 0
        _, self._bytes = self._read("-1")

    def _read(self, wanted: str) -> tuple[bytes, int]:
        request = urllib.request.Request(self._address, headers={"Range": f"bytes={wanted}"})
        with urllib.request.urlopen(request, timeout=_FETCH_S) as answer:
            if answer.status != 206:
                raise OSError("the index does not give parts of files")
            return answer.read(), int(answer.headers["Content-Range"].rpartition("/")[2])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def report(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._bytes}[whence]
        return self._at

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(into), self._bytes - self._at)
        if wanted <= 0:
            return 0
        part, _ = self._read(f"{self._at}-{self._at + wanted - 1}")
        into[: len(part)] = part
        self._at += len(part)
        return len(part)
