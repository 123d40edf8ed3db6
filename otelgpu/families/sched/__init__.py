"""Family ``sched``: hand-offs of work between threads, which show the request that a worker works for."""

from typing import Final

from otelgpu.engine.contract import Family
from otelgpu.families.sched.handler import SchedHandler

FAMILY: Final = Family(name="sched", open=SchedHandler)
