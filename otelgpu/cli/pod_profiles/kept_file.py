"""What was decided, in a file of the folder of profiles, so that it holds after a new start of the container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from otelgpu.cli.pod_profiles.requests import Kept
from otelgpu.errors import OtelgpuError
from otelgpu.kernel.output_files import open_output

NAME: Final = "decided.json"
LARGEST: Final = 1 << 18


class KeptFile:
    """In ``folder``. What is read of it is not believed: what is none is as if it were not there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._written = b""

    def read(self) -> Kept:
        """What was kept; nothing where there is no such file, or another one."""
        try:
            found = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return Kept()
        try:
            with os.fdopen(found, "rb") as file:
                return msgspec.json.decode(file.read(LARGEST), type=Kept)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Kept()

    def write(self, kept: Kept) -> None:
        """Where it has changed since it was tried last. Raises :class:`OtelgpuError`."""
        content = msgspec.json.encode(kept)
        if content == self._written:
            return
        self._written = content
        partial = self._path.with_name(f".{NAME}")
        try:
            with os.fdopen(open_output(partial, 0o600), "wb") as file:
                file.write(content)
            os.replace(partial, self._path)
        except OSError as error:
            raise OtelgpuError(f"cannot write {self._path}: {error.strerror}") from error
