"""The configuration of the model that a process runs, read where the process has it.

Source: proc(5) for its arguments, environment, folder and root. Each file is looked up in the process's own root, is
regular, and no more than so much of it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.diagnose.utilization.model_places import (
    CONFIG,
    NamedModel,
    folder_of,
    named_model,
    repository_of,
    snapshot_of,
)
from otelgpu.diagnose.utilization.model_shape import ModelShape, UnknownShape, parse_model
from otelgpu.errors import OtelgpuError
from otelgpu.processes.elf_files import open_regular

LARGEST_BYTES: Final = 1 << 20
"""Of a configuration."""
_LARGEST_REFERENCE: Final = 64


class FoundModel(Struct, frozen=True, kw_only=True):
    """``path``: as the process sees it; ``by``: what names the model: an option of its command, or its answer."""

    pid: int
    path: str
    by: str
    serves: bool
    shape: ModelShape

    @property
    def source(self) -> str:
        """In words."""
        return f"configuration: {self.path} ({self.by} of PID {self.pid})"


def given_model(path: Path) -> ModelShape:
    """That of ``--model-config``. Raises :class:`OtelgpuError`."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise OtelgpuError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > LARGEST_BYTES:
        raise OtelgpuError(f"{path} is larger than 1 MiB: no configuration of a model")
    try:
        return parse_model(content)
    except UnknownShape as error:
        raise OtelgpuError(
            f"{path}: {error}", "give the config.json that lies beside the model's weights"
        ) from error


def find_model(
    pid: int,
    command: tuple[str, ...],
    variables: Mapping[str, str],
    *,
    served: Sequence[NamedModel] = (),
    proc: Path = Path("/proc"),
) -> FoundModel | None:
    """What is ``served``, else what a process's command names, where it can be read and is a decoder's; else None."""
    named = named_model(command)
    for model in (*served, *((named,) if named is not None else ())):
        for path in _places(pid, model, variables, proc):
            with suppress(OSError, UnknownShape):
                shape = parse_model(_read(proc, pid, path, LARGEST_BYTES))
                return FoundModel(pid=pid, path=path, by=model.by, serves=model.serves, shape=shape)
    return None


def _places(pid: int, model: NamedModel, variables: Mapping[str, str], proc: Path) -> Iterator[str]:
    with suppress(OSError):
        if folder := folder_of(model, os.readlink(proc / str(pid) / "cwd")):
            yield f"{folder.rstrip('/')}/{CONFIG}"
    if repository := repository_of(model, variables):
        with suppress(OSError):
            reference = _read(proc, pid, f"{repository}/refs/{model.revision}", _LARGEST_REFERENCE)
            if path := snapshot_of(repository, reference):
                yield path


def _read(proc: Path, pid: int, path: str, most: int) -> bytes:
    """A file of a process's. Raises OSError, also for what is larger."""
    with open(open_regular(f"{proc}/{pid}/root{path}"), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"{path} is too large")
    return content
