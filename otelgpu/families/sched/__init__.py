"""Family ``sched``: hand-offs of work between threads, which tell for which request a worker works."""

from typing import Final

from otelgpu.families.base import Family
from otelgpu.families.sched.decode import SchedDecoder

FAMILY: Final = Family(name="sched", open=lambda btf, _: SchedDecoder(), signals=None)
