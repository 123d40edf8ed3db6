"""Family ``profile``: samples of where threads were. It costs something all the time, so it has to be asked for."""

from typing import Final

from otelgpu.engine.contract import Family, Load
from otelgpu.families.profiles.handler import ProfileHandler

FAMILY: Final = Family(name="profile", load=Load.ASKED, open=ProfileHandler)
