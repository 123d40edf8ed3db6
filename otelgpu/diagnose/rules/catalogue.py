"""What error codes are called: CUDA, its driver, NCCL, verbs and Xids, by number or name. Pure.

The tables are those that spans are named by; where one number means several things, all of them are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from otelgpu.families.gpu.cuda.results import DRIVER_RESULTS, RUNTIME_RESULTS
from otelgpu.families.nccl.signals import RESULTS as NCCL_RESULTS
from otelgpu.families.rdma.words import STATUSES
from otelgpu.families.rdma.xids import ACTIONS, XIDS

_TABLES: Final[Mapping[str, tuple[str, Mapping[int, str]]]] = {
    "cuda": ("an error of the CUDA runtime", RUNTIME_RESULTS),
    "cu": ("an error of the CUDA driver", DRIVER_RESULTS),
    "nccl": ("a result of NCCL", NCCL_RESULTS),
    "wc": ("the status of a work completion (ibv_wc_status)", dict(enumerate(STATUSES))),
}
"""Prefix → what it is, and its names by number."""

PREFIXES: Final = ("xid", *_TABLES)


class Meaning(Struct, frozen=True, kw_only=True):
    """``words``: what rules may know it by."""

    words: tuple[str, ...]
    text: str


def meanings(word: str) -> list[Meaning]:
    """Of ``79``, ``xid 79``, ``cuda:700``, ``cudaErrorIllegalAddress``; none where nothing is known of it."""
    prefix, _, rest = word.lower().replace(":", " ").strip().partition(" ")
    if rest and prefix in PREFIXES:
        return list(_of_table(prefix, rest.strip()))
    return [found for each in PREFIXES for found in _of_table(each, word.strip().lower())]


def names() -> Iterator[str]:
    """All names that are known."""
    for _, table in _TABLES.values():
        yield from table.values()
    yield from (xid.name for xid in XIDS.values())


def _of_table(prefix: str, word: str) -> Iterator[Meaning]:
    if prefix == "xid":
        yield from _xid(word)
        return
    what, table = _TABLES[prefix]
    for number, name in table.items():
        if word in (str(number), name.lower()):
            yield Meaning(words=(name, f"{prefix} {number}"), text=f"{name} ({number}): {what}")


def _xid(word: str) -> Iterator[Meaning]:
    for code, xid in XIDS.items():
        if word in (str(code), xid.name.lower()):
            yield Meaning(
                words=(f"xid {code}",),
                text=f"Xid {code} ({xid.name}): an error of kind {xid.kind} that NVIDIA's driver logged. "
                f"NVIDIA's action: {ACTIONS[xid.action]}",
            )
