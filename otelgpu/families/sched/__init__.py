"""Family ``sched``: hand-offs of work between threads, which report for which request a worker works."""

from typing import Final

from otelgpu.engine.contract import Family
from otelgpu.families.sched.handler import SchedHandler

FAMILY: Final = Family(name="sched", open=SchedHandler)
