"""What a Collector's Prometheus exporter shows of its service graph → calls of services. Pure.

In: one answer in Prometheus' text format. Out: samples of the four series of a pair of services that are looked at; the
rest, which is a thousand times as much where histograms are many, is passed over unread.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format (version 0.0.4).
"""

from __future__ import annotations

import re
from typing import Final

from otelgpu.otlp_json.reader import METRICS, SkippedAt, Skips
from otelgpu.topology.services import FAILED, MOST_SERIES, REQUESTS, SECONDS, TIMED, Services

CONTENT_TYPE: Final = "text/plain; version=0.0.4"
_MOST_SAMPLES: Final = 4 * MOST_SERIES
"""That are read: more series than are kept would cost time and give nothing."""
_COUNTS: Final = {name.encode(): name for name in (REQUESTS, FAILED)}
_DURATIONS: Final = {name.encode(): name for name in (SECONDS, TIMED)}
_LINE: Final = re.compile(rb"\n(traces_service_graph_request_\w+)([^\n]*)")
"""It begins with text, which is what makes it fast: a line's start is a line's end before it."""
_LABEL: Final = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))', re.ASCII)
_FIRST: Final = re.compile(rb"\s*(#|[a-zA-Z_:][\w:]*\s*(\{|[-+.\d]|NaN)|\Z)")
_ESCAPED: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n", "\\": "\\", '"': '"'}


class NoMetrics(ValueError):
    """A text of something else."""


def take(text: bytes, services: Services, skips: Skips, source: str, at_ns: int) -> int:
    """Samples into ``services``; how many there were. What is none is counted in ``skips``.

    ``source``: whose text it is; what another one counted is added. ``at_ns``: when it was made, in Unix nanoseconds.

    Raises :class:`NoMetrics`.
    """
    if not _FIRST.match(text):
        raise NoMetrics
    text, found = b"\n" + text, 0
    for wanted in _COUNTS, _DURATIONS:  # in this order, for there is a bound; in the text it is the other one
        at, line = 0, 1
        for sample in _LINE.finditer(text):
            if sample[1] not in wanted:
                continue
            found += 1
            if found > _MOST_SAMPLES:
                services.beyond += 1
                continue
            try:
                labels, value = labels_and_value(sample[2].decode())
                services.take_sample(wanted[sample[1]], labels, value, at_ns=at_ns, source=source)
            except ValueError as error:
                line, at = line + text.count(b"\n", at, sample.start()), sample.start()
                skips.add(METRICS, SkippedAt(source, line, str(error)[:200]))
    return found


def labels_and_value(text: str) -> tuple[dict[str, str], float]:
    """Labels and the value of a line after its name: ``{client="a",server="b"} 7``. Raises ValueError."""
    labels: dict[str, str] = {}
    if not text.startswith("{"):
        raise ValueError("it has no labels")
    at = 1
    while not text.startswith("}", at):
        label = _LABEL.match(text, at)
        if label is None:
            raise ValueError("its labels cannot be read")
        labels[label[1]] = _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[0]), label[2])
        at = label.end()
    value = text[at + 1 :].split()
    if not value:
        raise ValueError("it has no value")
    return labels, float(value[0])
