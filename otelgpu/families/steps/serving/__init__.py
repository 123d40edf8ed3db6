"""Steps of serving engines, and the requests that each served. Pure."""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.steps.serving.handler import ServingHandler

    return ServingHandler(services)


FAMILY = Family(name="steps", load=None, open=_open, phase=Phase.STEPS)
