"""Family ``verbs``: RDMA by ibverbs and rdma_cm, as facts of queue pairs, memory and events.

``decode`` takes batches of records, ``words`` has the names of the numbers in them. What the facts mean together is
in ``correlate/queue_pair*.py``, and what they are called in ``signals/queue_pair_names.py``.
"""

from typing import Final

from otelgpu.families.base import Family, Load
from otelgpu.families.verbs.decode import VerbsDecoder

FAMILY: Final = Family(name="verbs", open=lambda btf, _: VerbsDecoder(btf), signals=None, load=Load.MAPPED)
