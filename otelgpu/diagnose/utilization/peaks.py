"""What a device can do at most, by its model: the one table, ``peaks.json``. Pure.

Dense figures: data sheets give twice as much for tensor cores, with structured sparsity, which no model has unless it
was made for it. NVLink and PCIe: of all lanes, both directions together, as data sheets have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct


class Peak(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a model. ``models``: as NVML calls it, without the vendor; ``tflops``: dense, by data type, 10¹²/s.

    ``sms``: streaming multiprocessors; bandwidths in 10⁹ bytes/s, None: it has none. ``source``: the vendor's page.
    """

    models: Sequence[str]
    sms: int
    tflops: Mapping[str, float]
    memory_gb_per_s: float
    nvlink_gb_per_s: float | None
    pcie_gb_per_s: float
    source: str


def parse_peaks(content: bytes) -> list[Peak]:
    """The table. Raises :class:`msgspec.DecodeError` and :class:`msgspec.ValidationError` for what is none."""
    return msgspec.json.decode(content, type=list[Peak])


def peak_of(model: str, peaks: Sequence[Peak]) -> Peak | None:
    """By the whole name, ``NVIDIA H100 80GB HBM3``: parts that share a chip differ in memory; None: not known."""
    name = model.strip().lower().removeprefix("nvidia ").removeprefix("tesla ")
    return next((each for each in peaks if name in (known.lower() for known in each.models)), None)
