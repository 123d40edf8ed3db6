"""Steps of training loops, and where their time went. Pure."""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.steps.training.handler import TrainingHandler

    return TrainingHandler(services)


FAMILY = Family(name="training", load=None, open=_open, phase=Phase.STEPS)
