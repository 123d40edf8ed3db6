"""Family ``verbs``: RDMA by ibverbs and rdma_cm, as facts of queue pairs, memory and events.

``decode`` takes batches of records, ``words`` has the names of the numbers in them. What the facts mean together is
in ``families/rdma``, and what they are called in ``families/rdma/names.py``.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family, Handler, Load, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.rdma.handler import VerbsHandler

    return VerbsHandler(services)


FAMILY: Final = Family(name="verbs", load=Load.MAPPED, open=_open, phase=Phase.CONNECTIONS)
