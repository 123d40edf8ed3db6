"""Family ``nccl``: collectives and point-to-point calls, groups, and the life of communicators.

``decode`` turns records into operations and what is known of communicators, ``signals`` and ``results`` are the
names that are exported; ``names`` those that others tell of collectives too.
"""

from otelgpu.families.base import Family, Load
from otelgpu.families.nccl.decode import NcclDecoder
from otelgpu.families.nccl.signals import SIGNALS

FAMILY = Family(name="nccl", open=lambda btf, _: NcclDecoder(btf), signals=SIGNALS, load=Load.FOUND)
