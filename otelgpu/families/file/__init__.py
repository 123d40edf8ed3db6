"""Family ``file``: reads, writes and syncs of files that took long, for where the time of a step of training went."""

from typing import Final

from otelgpu.families.base import Beside, Family
from otelgpu.families.file.decode import FileDecoder

FAMILY: Final = Family(name="file", open=lambda btf, _: FileDecoder(), signals=None, load=Beside("nccl"))
