"""Family ``file``: reads, writes and syncs of files that took long, for where the time of a step of training went."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Beside, Family, Handler
from otelgpu.engine.services import Services
from otelgpu.model.operations import OperationKind


def _open(services: Services) -> Handler:
    from otelgpu.families.profiles.storage.handler import FileHandler

    return FileHandler(services)


FAMILY: Final = Family(name="file", load=Beside(OperationKind.COLLECTIVE), open=_open)
