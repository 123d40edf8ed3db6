"""What the tools may read: the files, folders and stores of the command line, and nothing else.

A tool names an input by its name in :meth:`Inputs.listed`, never by a path: names are looked up, not opened. A folder's
files are found anew each time; of links only those count that lead to a place within what was named. What is read is
the place that a link led to when it was looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.cli.mcp.untrusted import name
from otelgpu.cli.profile_inputs import is_capture
from otelgpu.errors import OtelgpuError
from otelgpu.export.file.line_file import rotated
from otelgpu.model.text import did_you_mean
from otelgpu.store.clickhouse.address import address_of
from otelgpu.store.files import beginning
from otelgpu.store.inputs import is_remote

MOST_FILES: Final = 20_000
"""Of all inputs together; what is beyond is not looked at, and counted."""
_LOOKED_AT: Final = 1 << 20
_OPERATIONS: Final = (b'"otelgpu.training"', b'"otelgpu.nccl"', b'"otelgpu.step"')
_TABLES: Final = re.compile(
    rb'PAR1|\x80[\x02-\x05]|\s*\{.{0,4000}?"(?:schemaVersion|traceEvents|deviceProperties|coll_perf|pg_config|entries)"',
    re.DOTALL,
)


class Input(Struct, frozen=True, kw_only=True):
    """``path``: without links. ``given``: it was named on the command line, or was recorded here, by itself."""

    name: str
    path: Path
    is_folder: bool
    given: bool


class Inputs:
    """``stores``: addresses of tables in ClickHouse by the names that they are shown under, without what is secret."""

    def __init__(self, given: Sequence[str | Path]) -> None:
        """What the command line names.

        Raises :class:`OtelgpuError` for what is not there, or is neither a file nor a folder, and for what is no
        address of tables.
        """
        self.stores: dict[str, str] = {}
        self._given: list[tuple[str, Path]] = []
        self.beyond = 0
        for each in given:
            if isinstance(each, str) and is_remote((each,)):
                self.stores[name(address_of(each, os.environ).shown)] = each
                continue
            path = Path(each)
            if not (path.is_file() or path.is_dir()):
                why = "no file or folder" if path.exists() else "no such file or folder"
                raise OtelgpuError(f"{path}: {why}")
            self._given.append((str(path), path.resolve()))

    def add(self, name: str, path: Path) -> None:
        """A recording that was made here."""
        self._given.append((name, path.resolve()))

    def remove(self, name: str) -> None:
        """One that was added."""
        self._given = [each for each in self._given if each[0] != name]

    def listed(self) -> dict[str, Input]:
        """All files and folders that there are now, by name: what was named, and the files in folders."""
        found: dict[str, Input] = {}
        self.beyond = 0
        for shown, path in self._given:
            _put(found, shown, path, is_folder=path.is_dir(), given=True)
            if path.is_dir():
                for below in self._files(path):
                    if len(found) < MOST_FILES:
                        _put(found, f"{shown}/{below.relative_to(path)}", below, given=False)
                    else:
                        self.beyond += 1
        return found

    def of(self, named: str) -> Input:
        """The input of that name. Raises :class:`OtelgpuError`."""
        if named in self.stores:
            raise OtelgpuError(
                f"{named!r} is no file",
                hint="list_requests and get_trace read spans of a store, list_jobs and diagnose_ranks operations",
            )
        listed = self.listed()
        if named not in listed:
            known = [*self.stores, *listed]
            raise OtelgpuError(
                f"there is no input {name(named)!r}{did_you_mean(named[:200], known[:500])}",
                hint="list_inputs names them; others are not read",
            )
        return listed[named]

    def files(self, named: str) -> list[Path]:
        """Of an input all files, rotated ones too. Raises :class:`OtelgpuError`."""
        one = self.of(named)
        if one.is_folder:
            return self._files(one.path)
        parts = map(Path, rotated(str(one.path)))  # of a link's place no other is followed
        return [part for part in parts if part == one.path or not part.is_symlink()]

    def file(self, named: str) -> Path:
        """Of an input the one file. Raises :class:`OtelgpuError` for a folder."""
        one = self.of(named)
        if one.is_folder:
            raise OtelgpuError(
                f"{one.name!r} is a folder", hint="name one of its files: list_inputs has them"
            )
        return one.path

    def _files(self, folder: Path) -> list[Path]:
        """Without links that lead out of it."""
        found: dict[Path, None] = {}
        for parent, folders, files in os.walk(folder, followlinks=False):
            folders.sort()
            for each in sorted(files):
                path = Path(parent, each)
                place = Path(os.path.realpath(path)) if path.is_symlink() else path
                if place.is_relative_to(folder) and place.is_file() and place.suffix != ".part":
                    found[place] = None
                if len(found) > MOST_FILES:
                    return list(found)
        return list(found)


def contents(path: Path) -> list[str]:
    """What a file holds, by how it begins: ``spans``, ``profiles``, ``operations`` (of ranks), ``capture``, ``log``."""
    if is_capture(path):
        return ["capture"]
    begun = beginning(path, _LOOKED_AT)
    if b'"resource' in begun[:4096]:
        found = [
            what
            for what, mark in (("spans", b'"resourceSpans"'), ("profiles", b'"resourceProfiles"'))
            if mark in begun
        ]
        return [*found, *(["operations"] if any(mark in begun for mark in _OPERATIONS) else [])]
    if _TABLES.match(begun):
        return ["operations"]
    if path.name.endswith((".pb.gz", ".pb", ".pprof", ".folded")):
        return ["profiles"]
    return ["log"] if begun and b"\0" not in begun else []


def _put(found: dict[str, Input], shown: str, path: Path, *, is_folder: bool = False, given: bool) -> None:
    """Under a name that can be shown; two that look the same are told apart by a number."""
    plain, number = name(shown), 2
    while plain in found and found[plain].path != path:
        plain, number = f"{name(shown)[:190]} ({number})", number + 1
    found.setdefault(plain, Input(name=plain, path=path, is_folder=is_folder, given=given))
