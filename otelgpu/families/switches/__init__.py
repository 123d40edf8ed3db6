"""More detail for a pod and for a while, because somebody asked for it from outside: an annotation of the pod."""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.switches.handler import SwitchHandler

    return SwitchHandler(services)


FAMILY = Family(name="switches", load=None, open=_open, phase=Phase.CONNECTIONS)
