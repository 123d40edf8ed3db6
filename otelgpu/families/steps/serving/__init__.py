"""Steps of serving engines, and the requests that each served. Pure."""

from otelgpu.engine.contract import Family, Phase
from otelgpu.families.steps.serving.handler import ServingHandler

FAMILY = Family(name="steps", load=None, open=ServingHandler, phase=Phase.STEPS)
