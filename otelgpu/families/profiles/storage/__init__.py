"""Family ``file``: reads, writes and syncs of files that took long, for where the time of a step of training went."""

from typing import Final

from otelgpu.engine.contract import Beside, Family
from otelgpu.families.profiles.storage.handler import FileHandler

FAMILY: Final = Family(name="file", load=Beside("nccl"), open=FileHandler)
