"""Family ``verbs``: RDMA by ibverbs and rdma_cm, as facts of queue pairs, memory and events.

``decode`` takes batches of records, ``words`` has the names of the numbers in them. What the facts mean together is
in ``families/rdma``, and what they are called in ``families/rdma/names.py``.
"""

from typing import Final

from otelgpu.engine.contract import Family, Load, Phase
from otelgpu.families.rdma.handler import VerbsHandler

FAMILY: Final = Family(name="verbs", load=Load.MAPPED, open=VerbsHandler, phase=Phase.CONNECTIONS)
