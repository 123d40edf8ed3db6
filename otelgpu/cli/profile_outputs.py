"""Files that profiles are written to: opened before anything is observed, written when it has ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Self

from otelgpu.cli.guidance import picture
from otelgpu.cli.page_files import page_files
from otelgpu.errors import OtelgpuError
from otelgpu.kernel.output_files import open_output
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.settings import captures_content
from otelgpu.model.spans import SpanColumns
from otelgpu.render.profile_totals import KindTotals, totals


class Output:
    """A file that is there, and open, before privileges are given up; what it holds stays until it is written.

    Where it is closed without having been written and was not there before, it is gone again.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        """``private``: for the owner's eyes only. Raises :class:`OtelgpuError` where it cannot be written."""
        self.path = path
        self._is_new = not os.path.exists(path)
        try:
            opened = open_output(path, 0o600 if private else 0o644, keep=True)
            self._file: BinaryIO = os.fdopen(opened, "wb", buffering=0)
        except OSError as error:
            raise OtelgpuError(f"cannot write {path}: {error.strerror}") from error

    def write(self, content: bytes) -> None:
        """In place of what it held. Raises :class:`OtelgpuError`."""
        try:
            self._file.truncate(0)
            self._file.seek(0)
            with os.fdopen(os.dup(self._file.fileno()), "wb") as file:
                file.write(content)
            self._is_new = False
        except OSError as error:
            raise OtelgpuError(f"cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Let it go."""
        self._file.close()
        if self._is_new:
            with suppress(OSError):
                self.path.unlink()


class Outputs:
    """All that a command was asked to write, each in the format that its name asks for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises :class:`OtelgpuError` for a name whose end says nothing, or a file that cannot be written."""
        from otelgpu.render.format import format_of  # not every command draws

        for path in paths:
            format_of(path.name)
        self._files: list[Output] = []
        try:
            for path in paths:
                self._files.append(Output(path, private=captures_content(os.environ)))
        except OtelgpuError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._files)

    @property
    def want_calls(self) -> bool:
        """Whether one of them is to show each call by itself: equal ones are not to be folded into one span."""
        from otelgpu.render.format import format_of

        return any(format_of(file.path.name).wants_calls for file in self._files)

    def __str__(self) -> str:
        return ", ".join(picture(file.path) for file in self._files)

    def write(self, profiles: Sequence[ProfileColumns], spans: Sequence[SpanColumns], title: str) -> None:
        """All of them. Raises :class:`OtelgpuError`."""
        from otelgpu.render.format import format_of, rendered

        parts = page_files()
        for file in self._files:
            file.write(rendered(format_of(file.path.name), profiles, spans, title, parts))

    def close(self) -> None:
        """Let them go."""
        for file in self._files:
            file.close()


def totals_of(profiles: Sequence[ProfileColumns]) -> list[KindTotals]:
    """Of every kind; what holds at a time, as memory in use, counts as it was last."""
    from otelgpu.render.stacks import by_type

    return totals(chain.from_iterable(by_type(profiles).values()))
