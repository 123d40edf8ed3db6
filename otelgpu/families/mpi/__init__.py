"""Family ``mpi``: collectives of MPI, sends and receives that block, and waits for those that do not.

``decode`` turns records into operations and stretches, ``handler`` says which communicator a call was made in, so that
calls of all ranks become one collective, and ``signals`` has the names that are exported of calls. What is reported of
whole collectives is as of those of NCCL.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family, Handler, Load, OperationFamily, Phase
from otelgpu.engine.services import Services
from otelgpu.families.mpi.decode import MpiDecoder
from otelgpu.families.mpi.signals import SIGNALS


def _open(services: Services) -> Handler:
    from otelgpu.families.mpi.handler import MpiHandler

    return MpiHandler(services)


FAMILY: Final = Family(
    name="mpi",
    load=Load.MAPPED,
    open=_open,
    phase=Phase.COLLECTIVES,
    operations=OperationFamily(decoder=lambda btf, _: MpiDecoder(btf), signals=SIGNALS),
)
