"""Family ``profile``: samples of where threads were. It costs something all the time, so it has to be asked for."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family, Handler, Load
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.profiles.handler import ProfileHandler

    return ProfileHandler(services)


FAMILY: Final = Family(name="profile", load=Load.ASKED, open=_open)
