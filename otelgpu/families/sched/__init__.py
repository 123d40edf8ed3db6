"""Family ``sched``: hand-offs of work between threads, which show the request that a worker works for."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family, Handler
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.sched.handler import SchedHandler

    return SchedHandler(services)


FAMILY: Final = Family(name="sched", open=_open)
