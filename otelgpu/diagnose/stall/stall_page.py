"""The page of a diagnosis of stalls: verdicts in words, and a bar for each step with what it went into. Pure.

In: the report and what it was made of. Out: one HTML page that loads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from otelgpu.diagnose.stall.activities import Activity
from otelgpu.diagnose.stall.causes import IDLE
from otelgpu.diagnose.stall.diagnosis import Judged
from otelgpu.diagnose.stall.sentences import sentence
from otelgpu.diagnose.stall.verdicts import StallReport
from otelgpu.render.page_columns import clean
from otelgpu.view.page import Parts, data_element, page

MOST_STEPS: Final = 500
"""Beyond, the first are drawn."""
MOST_PARTS: Final = 20_000
_SECOND_NS: Final = 1_000_000_000


def stall_page(report: StallReport, judged: Sequence[Judged], parts: Parts, *, title: str) -> bytes:
    """``parts``: the files of ``page/`` beside this module, and those that all diagnoses have."""
    made = page(parts, clean(title))
    data = {
        "report": msgspec.to_builtins(report),
        "sentences": [sentence(verdict) for verdict in report.verdicts],
        "steps": _steps(judged[0]) if judged else {"lengths": [], "parts": [], "causes": [], "noun": "step"},
    }
    return f"{made.before}{data_element(data)}{made.after}".encode("utf-8", "replace")


def _steps(judged: Judged) -> dict[str, Any]:
    """Of the first thread; where no steps are known, seconds are taken for them."""
    if judged.steps is not None:
        begins, ends = judged.steps.begins_ns, judged.steps.ends_ns
    else:
        until = min(max(judged.end_ns, judged.begin_ns + 1), judged.begin_ns + MOST_STEPS * _SECOND_NS)
        begins = np.arange(judged.begin_ns, until, _SECOND_NS)
        ends = np.minimum(begins + _SECOND_NS, judged.end_ns)
    begins, ends = begins[:MOST_STEPS], ends[:MOST_STEPS]
    causes = list(dict.fromkeys(each.cause for each in judged.activities))
    shown = [
        part for each in judged.activities for part in _parts(each, begins, ends, causes.index(each.cause))
    ]
    return {
        "noun": "step" if judged.steps is not None else "second",
        "lengths": ((ends - begins) / 1e9).tolist(),
        "causes": ["idle or not known" if cause == IDLE else cause for cause in causes],
        "parts": shown[:MOST_PARTS],
    }


def _parts(each: Activity, begins: Any, ends: Any, cause: int) -> list[tuple[int, float, float, int]]:
    """(step, begin in it in s, length in s, cause)."""
    found = []
    first = max(int(np.searchsorted(begins, each.begin_ns, side="right")) - 1, 0)
    for step in range(first, len(begins)):
        begin, end = int(begins[step]), int(ends[step])
        if begin >= each.end_ns:
            break
        since, until = max(begin, each.begin_ns), min(end, each.end_ns)
        if until > since:
            found.append((step, (since - begin) / 1e9, (until - since) / 1e9, cause))
    return found
