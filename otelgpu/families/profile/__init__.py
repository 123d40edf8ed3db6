"""Family ``profile``: samples of where threads were. It costs something all the time, so it has to be asked for."""

from typing import Final

from otelgpu.families.base import Family, Load
from otelgpu.families.profile.decode import ProfileDecoder

FAMILY: Final = Family(name="profile", open=lambda btf, _: ProfileDecoder(), signals=None, load=Load.ASKED)
