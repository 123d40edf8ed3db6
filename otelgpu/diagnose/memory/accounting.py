"""A snapshot of a process's device memory by category: each byte of the ledger is in one, and none in two. Pure.

The driver's gives (level ``device``) are what there is. Those that a framework's caching allocator took are divided
among the tensors that hold pieces of them (level ``tensor``), by what these are for; what no tensor holds is the
allocator's cache. All others are what their own frames say. Hence, at every time and for each device,

    sum of the categories = bytes of the ledger + ``older``

where ``older`` is what the allocator took before it was observed: known by its own total, and by tensors that must lie
somewhere. Tensors that are older than the observation hold part of it for what is unknown.

Example: the driver gave 100 to the allocator and 10 to cuBLAS; tensors hold 60 for weights; the allocator says that it
has 140 and tensors 80 of it: weights 60, workspace 10, unknown 20, allocator cache 60; ledger 110, older 40.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from otelgpu.diagnose.memory.categories import CACHE, CATEGORIES, UNKNOWN, is_of_allocator, purpose_of
from otelgpu.diagnose.memory.observations import DEVICE, Place, Snapshot

TENSORS_NOT_SEEN: Final = "a framework's allocator has it, and its tensors are not seen"
OLDER_TENSORS: Final = "tensors that are older than the observation"

Category = Callable[[Place], str]


class Accounted(Struct, frozen=True, kw_only=True):
    """One device's. ``categories``: bytes; ``ledger``: what was seen to be given; ``older``: what was not."""

    device: int
    ledger: int
    older: int
    categories: Mapping[str, int]
    reserved: int  # that the framework's allocator has
    remarks: Sequence[str] = ()

    @property
    def total(self) -> int:
        """All that is known to be held."""
        return self.ledger + self.older


def category_of(place: Place) -> str:
    """By the frames of a place alone."""
    return purpose_of(place.frames).category


def devices_of(snapshots: Iterable[Snapshot]) -> list[int]:
    """Those that anything was held of."""
    return sorted({place.device for each in snapshots for place in each.sizes})


def account(
    snapshot: Snapshot,
    device: int,
    *,
    reserved: int | None = None,
    allocated: int | None = None,
    category: Category = category_of,
) -> Accounted:
    """``reserved``, ``allocated``: as the framework's allocator says; None: it says nothing."""
    found: Counter[str] = Counter()
    ledger = pooled = tensors = 0
    of_tensors: Counter[str] = Counter()
    for place, size in snapshot.sizes.items():
        if place.device != device:
            continue
        if place.level == DEVICE:
            ledger += size
            if is_of_allocator(place.frames):
                pooled += size
            else:
                found[category(place)] += size
        else:
            tensors += size
            of_tensors[category(place)] += size
    pool = max(pooled, tensors, reserved or 0)
    remarks = []
    if tensors or allocated is not None:
        rest = pool - tensors
        unseen = min(max((allocated or 0) - tensors, 0), rest)
        found.update(of_tensors)
        found[UNKNOWN] += unseen
        found[CACHE] += rest - unseen
        if unseen:
            remarks.append(OLDER_TENSORS)
    else:
        found[UNKNOWN] += pool
        if pool:
            remarks.append(TENSORS_NOT_SEEN)
    return Accounted(
        device=device,
        ledger=ledger,
        older=pool - pooled,
        categories={name: found[name] for name in CATEGORIES if found[name]},
        reserved=pool,
        remarks=remarks,
    )
