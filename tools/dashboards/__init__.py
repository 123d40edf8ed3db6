"""The dashboards of ``deploy/grafana/dashboards``: what each panel asks Prometheus, and why one looks at it.

``python -m tools.document`` writes the files. Names are those that Prometheus makes of the metrics; a test compares
them with what is declared, and asks a real Prometheus every question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tools.dashboards.agent import AGENT
from tools.dashboards.engine import ENGINE
from tools.dashboards.gpu import GPU
from tools.dashboards.nccl import NCCL
from tools.dashboards.rdma import RDMA
from tools.dashboards.requests import REQUESTS

DASHBOARDS: Final = (REQUESTS, ENGINE, GPU, NCCL, RDMA, AGENT)


def files() -> Mapping[str, str]:
    """File name → the dashboard that Grafana imports."""
    return {f"{each.uid}.json": each.text() for each in DASHBOARDS}
