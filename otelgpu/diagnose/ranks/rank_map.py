"""The page of a diagnosis: verdicts in words, and a map of own time, a row for each rank, a column for each step. Pure.

In: the report and the facts that it was made of. Out: one HTML page that loads nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from otelgpu.diagnose.ranks.facts import F64, OWN, Facts
from otelgpu.diagnose.ranks.peers import median
from otelgpu.diagnose.ranks.sentences import sentence
from otelgpu.diagnose.ranks.verdicts import RanksReport
from otelgpu.render.page_columns import clean, column
from otelgpu.view.page import Parts, data_element, page

MOST_ROWS: Final = 1_024
MOST_COLUMNS: Final = 1_000
"""Beyond, a cell is several ranks or steps, with the largest of their values."""
MOST: Final = 0.995
"""Quantile of all values that has the darkest colour: one long step must not make all others pale."""


def rank_page(report: RanksReport, facts: Facts, parts: Parts, *, title: str) -> bytes:
    """``parts``: the files of ``page/`` beside this module."""
    made = page(parts, clean(title))
    data = {
        "report": msgspec.to_builtins(report),
        "sentences": [sentence(verdict) for verdict in report.verdicts],
        "map": _map(facts),
    }
    return f"{made.before}{data_element(data)}{made.after}".encode("utf-8", "replace")


def _map(facts: Facts) -> dict[str, Any]:
    if not facts.own.size:
        return {"kinds": [], "rows": [], "columns": 0, "steps": []}
    named = {"all kinds": facts.own.sum(axis=0)}
    named |= {kind: values for kind, values in zip(OWN, facts.own, strict=True) if np.nansum(values) > 0}
    rows = _bins(len(facts.ranks), MOST_ROWS)
    columns = _bins(len(facts.steps), MOST_COLUMNS)
    medians = np.nan_to_num([median(values, 0) for values in named.values()])  # (kind, rank)
    return {
        "kinds": [_kind(name, values, rows, columns) for name, values in named.items()],
        "columns": len(columns),
        "steps": [_span("step", facts.steps, columns, at) for at in range(len(columns))],
        "rows": [
            {
                "name": f"{_span('rank', facts.ranks, rows, at)} ({facts.hosts[begin] or 'unknown host'})",
                "label": _numbers(facts.ranks, rows, at),
                "median_s": medians[:, begin].tolist(),
            }
            for at, begin in enumerate(rows.tolist())
        ],
    }


def _bins(count: int, most: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Where each begins."""
    return np.unique(np.linspace(0, count, min(count, most), endpoint=False).astype(np.intp))


def _span(noun: str, numbers: np.ndarray[Any, Any], bins: np.ndarray[Any, np.dtype[np.intp]], at: int) -> str:
    text = _numbers(numbers, bins, at)
    return f"{noun}s {text}" if "–" in text else f"{noun} {text}"


def _numbers(numbers: np.ndarray[Any, Any], bins: np.ndarray[Any, np.dtype[np.intp]], at: int) -> str:
    first, last = bins[at], (bins[at + 1] if at + 1 < len(bins) else len(numbers)) - 1
    return f"{numbers[first]}" if first == last else f"{numbers[first]}–{numbers[last]}"


def _kind(
    name: str,
    values: F64,
    rows: np.ndarray[Any, np.dtype[np.intp]],
    columns: np.ndarray[Any, np.dtype[np.intp]],
) -> dict[str, Any]:
    known = np.nan_to_num(values)
    binned = np.maximum.reduceat(np.maximum.reduceat(known, columns, axis=0), rows, axis=1).T
    most = max(float(np.quantile(binned, MOST)), 1e-9)
    return {
        "name": name,
        "cells": column(np.round(np.minimum(binned / most, 1.0) * 255).ravel(), "B"),
        "most_s": most,
        "median_s": float(np.median(known)),
    }
