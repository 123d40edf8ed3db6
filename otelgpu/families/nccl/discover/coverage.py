"""What ``otelgpu check`` says of communicators: whether it is known how a copy of NCCL lays them out."""

from __future__ import annotations

from collections.abc import Set
from typing import Final, Literal

from msgspec import Struct

from otelgpu.elf.image import ElfImage
from otelgpu.families.nccl.discover.communicators import known_layout
from otelgpu.processes.coverage import Blind, Findings, Inspection, Machine, Observed


class NcclCopy(Struct, frozen=True, kw_only=True):
    """What a file with NCCL in it shows. ``version``: "" where it has none; ``layout``: how communicators are known."""

    version: str
    layout: Literal["listed", "debug_info", "unknown"]


def examine_file(image: ElfImage, functions: Set[str]) -> NcclCopy | None:
    """Of a file that has some of the functions."""
    if not functions:
        return None
    version, layout, _ = known_layout(image)
    if layout is not None:
        return NcclCopy(version=version or "", layout="listed")
    described = image.section(".debug_info") is not None
    return NcclCopy(version=version or "", layout="debug_info" if described else "unknown")


def judge(process: Observed, machine: Machine) -> Findings:
    """Which communicator a call of NCCL is of: read of a structure that differs from version to version."""
    sees: list[str] = []
    blind: list[Blind] = []
    for shown in process.shown.get("nccl", ()):
        copy = shown.fact
        assert isinstance(copy, NcclCopy), "it is of examine_file"
        what = f"communicators of NCCL {copy.version or 'of no known version'} in {shown.path}"
        if copy.layout == "unknown":
            why = "how this version lays them out is not known, and the file has no debugging information"
            do = (
                "nothing where one is made while observed, which says the layout; "
                "else use a version of docs/reference/nccl.md"
            )
            blind.append(Blind(what=f"hash, rank and sequence of {what}", why=why, do=do))
        else:
            how = "" if copy.layout == "listed" else ", by the file's debugging information"
            sees.append(what + how)
    return Findings(sees, blind)


EXAMINATION: Final = Inspection(judge=judge, file=examine_file)
