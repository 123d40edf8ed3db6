"""Family ``probe``: functions, USDT and tracepoints that a user names in a file (docs/how-to/probes.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.engine.contract import Family, Load, OperationFamily
from otelgpu.engine.services import Services
from otelgpu.families.user_probes.decode import ProbeDecoder
from otelgpu.families.user_probes.signals import signals_of
from otelgpu.model.user_probes import UserProbe


def family_of(probes: Sequence[UserProbe]) -> Family:
    """The family of a session with these probes."""

    def opened(services: Services) -> None:
        from otelgpu.families.user_probes.handler import follow_probes

        follow_probes(services, probes)

    return Family(
        name="probe",
        load=Load.ASKED,
        operations=OperationFamily(decoder=lambda btf, _: ProbeDecoder(probes), signals=signals_of(probes)),
        open=opened,
    )


FAMILY: Final = family_of(())
