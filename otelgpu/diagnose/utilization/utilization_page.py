"""The page of a diagnosis of utilisation: verdicts in words, figures, and what the host did while GPUs idled. Pure.

In: the report. Out: one HTML page that loads nothing.
"""

from __future__ import annotations

import msgspec

from otelgpu.diagnose.utilization.sentences import sentence, shown_figure
from otelgpu.diagnose.utilization.verdicts import UtilizationReport
from otelgpu.render.page_columns import clean
from otelgpu.view.page import Parts, data_element, page


def utilization_page(report: UtilizationReport, parts: Parts, *, title: str) -> bytes:
    """``parts``: the files of ``page/`` beside this module, and those that all diagnoses have."""
    made = page(parts, clean(title))
    data = {
        "report": msgspec.to_builtins(report),
        "sentences": [sentence(verdict) for verdict in report.verdicts],
        "figures": [shown_figure(each) for each in report.figures],
    }
    return f"{made.before}{data_element(data)}{made.after}".encode("utf-8", "replace")
