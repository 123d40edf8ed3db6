"""The page of a diagnosis of memory: verdicts in words, bars of categories at the peak and now, places. Pure.

In: the report. Out: one HTML page that loads nothing.
"""

from __future__ import annotations

import msgspec

from otelgpu.diagnose.memory.categories import CATEGORIES
from otelgpu.diagnose.memory.sentences import sentence
from otelgpu.diagnose.memory.verdicts import MemoryReport
from otelgpu.render.page_columns import clean
from otelgpu.view.page import Parts, data_element, page


def memory_page(report: MemoryReport, parts: Parts, *, title: str) -> bytes:
    """``parts``: the files of ``page/`` beside this module, and those that all diagnoses have."""
    made = page(parts, clean(title))
    data = {
        "report": msgspec.to_builtins(report),
        "sentences": [sentence(verdict) for verdict in report.verdicts],
        "categories": CATEGORIES,
    }
    return f"{made.before}{data_element(data)}{made.after}".encode("utf-8", "replace")
