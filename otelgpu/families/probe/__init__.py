"""Family ``probe``: functions, USDT and tracepoints that a user names in a file (docs/probes.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.families.base import Family, Load
from otelgpu.families.probe.decode import ProbeDecoder
from otelgpu.families.probe.signals import signals_of
from otelgpu.model.user_probes import UserProbe


def family_of(probes: Sequence[UserProbe]) -> Family:
    """The family of a session with these probes."""
    return Family(
        name="probe",
        open=lambda btf, _: ProbeDecoder(probes),
        signals=signals_of(probes),
        load=Load.ASKED,
    )


FAMILY: Final = family_of(())
