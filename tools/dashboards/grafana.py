"""What Grafana calls a dashboard, made from panels that say what they ask: the model of its schema version 39.

In: :class:`Dashboard`. Out: JSON, the same for the same panels. Every number comes from the Prometheus that the reader
chooses (variable ``datasource``), every trace from the Tempo (variable ``traces``); what the JSON must be is Grafana's
own schema, which ``tests/backends/grafana`` has in Go. Knows nothing of otelgpu's metrics.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

SCHEMA_VERSION: Final = 39
PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
TEMPO: Final = {"type": "tempo", "uid": "${traces}"}
_COLUMNS: Final = 24
_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and how the legend names each of its series (``{{label}}``)."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Lines over time, of one unit (Grafana's name for it), a third of the page wide."""

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    exemplars: bool = False
    """Whether the queries are of a histogram whose buckets have exemplars: dots that lead to a trace."""

    def json(self) -> dict[str, Any]:
        """Without its place."""
        targets = [
            {
                "refId": chr(ord("A") + position),
                "datasource": PROMETHEUS,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                "range": True,
                "exemplar": self.exemplars,
            }
            for position, query in enumerate(self.queries)
        ]
        return {
            "type": "timeseries",
            "title": self.title,
            "description": self.description,
            "datasource": PROMETHEUS,
            "targets": targets,
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "min": 0,
                    "custom": {"fillOpacity": 10, "showPoints": "auto"},
                },
                "overrides": [],
            },
            "options": {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
                "tooltip": {"mode": "multi", "sort": "desc"},
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """A table of the traces that TraceQL finds, newest first, over the whole width; a click opens one."""

    title: str
    description: str
    query: str

    def json(self) -> dict[str, Any]:
        """Without its place."""
        return {
            "type": "table",
            "title": self.title,
            "description": self.description,
            "datasource": TEMPO,
            "targets": [
                {
                    "refId": "A",
                    "datasource": TEMPO,
                    "queryType": "traceql",
                    "query": self.query,
                    "limit": 20,
                    "tableType": "traces",
                    "filters": [],
                }
            ],
            "fieldConfig": {"defaults": {}, "overrides": []},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A heading and what is under it."""

    title: str
    panels: Sequence[Panel | Traces]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """``uid``: what links and later imports know it by; ``jobs``: the series whose jobs can be chosen."""

    uid: str
    title: str
    description: str
    jobs: str
    rows: Sequence[Row]

    def text(self) -> str:
        """The file to import."""
        model = {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["otelgpu"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,  # one crosshair for all panels
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "links": [_LINK],
            "templating": {"list": list(self._variables())},
            "annotations": {"list": []},
            "panels": list(_placed(self.rows)),
        }
        return json.dumps(model, indent=2) + "\n"

    def _variables(self) -> Iterator[dict[str, Any]]:
        yield {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}
        if any(isinstance(panel, Traces) for row in self.rows for panel in row.panels):
            yield {"type": "datasource", "name": "traces", "label": "Tempo", "query": "tempo"}
        yield {
            "type": "query",
            "name": "job",
            "label": "Service",
            "datasource": PROMETHEUS,
            "query": {"query": f"label_values({self.jobs}, job)", "refId": "job"},
            "refresh": 2,  # when the time range changes
            "sort": 1,
            "includeAll": True,
            "multi": True,
            "allValue": ".+",
            "current": {"text": "All", "value": "$__all"},
        }


_LINK: Final = {
    "type": "dashboards",
    "title": "otelgpu",
    "icon": "external link",
    "tooltip": "",
    "url": "",
    "tags": ["otelgpu"],
    "asDropdown": True,
    "targetBlank": False,
    "includeVars": False,
    "keepTime": True,
}


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Each row's heading and panels, with their identities and where they are on the page."""
    identity, top = 1, 0
    for row in rows:
        heading = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {
            "id": identity,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": heading,
        }
        identity, top, left = identity + 1, top + 1, 0
        for panel in row.panels:
            width = _COLUMNS if isinstance(panel, Traces) else _COLUMNS // 3
            if left + width > _COLUMNS:
                top, left = top + _HEIGHT, 0
            yield {
                "id": identity,
                **panel.json(),
                "gridPos": {"x": left, "y": top, "w": width, "h": _HEIGHT},
            }
            identity, left = identity + 1, left + width
        top += _HEIGHT
