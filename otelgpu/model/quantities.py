"""Durations and sizes as people read them. Pure."""

from __future__ import annotations


def duration(ns: float) -> str:
    """A length of time with three digits."""
    for unit, size in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)):
        if ns < 999.5 * size or unit == "s":
            value = ns / size
            digits = 0 if value >= 99.95 or unit == "ns" else 1 if value >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("unreachable")


def size(count: float) -> str:
    """A number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
