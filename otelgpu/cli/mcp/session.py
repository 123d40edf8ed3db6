"""What one server has: its inputs, what was read of them, the known problems, and whether it may profile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.cli.mcp.answers import Found, Next
from otelgpu.cli.mcp.arguments import Limit, Offset, Word
from otelgpu.cli.mcp.inputs import Input, Inputs, contents
from otelgpu.cli.mcp.recordings import Recordings
from otelgpu.diagnose.rules.rule import Rule
from otelgpu.errors import OtelgpuError

MOST_LOOKED_INTO: Final = 100
"""Inputs of one answer."""


class Session(Struct, frozen=True, kw_only=True):
    """``folder``: private, for what is made here, and gone at the end."""

    inputs: Inputs
    recordings: Recordings
    rules: Sequence[Rule]
    folder: Path


class ListInputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments. ``containing``: only names with that."""

    containing: Word = ""
    limit: Limit = 50
    offset: Offset = 0


class InputRow(Struct, frozen=True, kw_only=True):
    """``kind``: folder, file, or store: tables in ClickHouse. ``holds``: what it is of, by how it begins."""

    name: str
    kind: str
    bytes: int
    modified_unix_s: float
    holds: list[str]


class InputList(Struct, frozen=True, kw_only=True):
    """``matching``: how many there are in all."""

    inputs: list[InputRow]
    matching: int


def list_inputs(session: Session, arguments: ListInputs) -> Found[InputList]:
    """What there is to look at."""
    known: list[Input | str] = [*session.inputs.stores, *session.inputs.listed().values()]
    matching = [
        each for each in known if arguments.containing in (each if isinstance(each, str) else each.name)
    ]
    page = matching[arguments.offset : arguments.offset + min(arguments.limit, MOST_LOOKED_INTO)]
    cut: list[str] = []
    rows = [_of_store(session, each, cut) if isinstance(each, str) else _row(each) for each in page]
    end = arguments.offset + len(page)
    if end < len(matching):
        cut.append(f"{len(matching) - end} more: offset={end}")
    if session.inputs.beyond:
        cut.append(f"{session.inputs.beyond} files beyond the most that are looked at; name a smaller folder")
    return Found(result=InputList(inputs=rows, matching=len(matching)), next=_next(rows), cut=cut)


def _of_store(session: Session, store: str, cut: list[str]) -> InputRow:
    holds: list[str] = []
    try:
        holds = session.recordings.of_store(store)
    except OtelgpuError as error:
        cut.append(error.message)
    return InputRow(name=store, kind="store", bytes=0, modified_unix_s=0.0, holds=holds)


def _row(one: Input) -> InputRow:
    try:
        status = one.path.stat()
        holds = [] if one.is_folder else contents(one.path)
    except OSError:  # gone since
        return InputRow(name=one.name, kind="gone", bytes=0, modified_unix_s=0.0, holds=[])
    kind = "folder" if one.is_folder else "file"
    size = 0 if one.is_folder else status.st_size
    return InputRow(name=one.name, kind=kind, bytes=size, modified_unix_s=status.st_mtime, holds=holds)


_FURTHER: Final = (
    ("operations", "list_jobs", "the training jobs in it"),
    ("profiles", "diagnose_stall", "what its programs stand still for"),
    ("profiles", "diagnose_utilization", "why its GPUs are little used, if it has calls of CUDA"),
    ("profiles", "diagnose_memory", "what holds its devices' memory, if it has the kind mem"),
    ("capture", "list_requests", "the slowest requests in it"),
    ("spans", "list_requests", "the slowest requests in it"),
    ("capture", "list_jobs", "the training jobs in it"),
    ("log", "explain", "known problems that its lines show"),
)
"""What an input holds → what to call with it."""


def _next(rows: Sequence[InputRow]) -> list[Next]:
    of_folders = [
        Next(tool="list_jobs", arguments={"input": row.name}, why="the training jobs in all of its files")
        for row in rows
        if row.kind == "folder"
    ]
    of_files = [
        Next(tool=tool, arguments={"input": row.name}, why=why)
        for what, tool, why in _FURTHER
        for row in rows
        if what in row.holds
    ]
    profiles = [row.name for row in rows if "profiles" in row.holds]
    of_pairs = [
        Next(
            tool="diff_profiles",
            arguments={"before": before, "after": after},
            why="what one has more of than the other",
        )
        for before, after in pairwise(profiles)
    ]
    return [*of_folders[:4], *of_files[:8], *of_pairs[:2]]
