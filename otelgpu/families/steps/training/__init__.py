"""Steps of training loops, and where their time went. Pure."""

from otelgpu.engine.contract import Family, Phase
from otelgpu.families.steps.training.handler import TrainingHandler

FAMILY = Family(name="training", load=None, open=TrainingHandler, phase=Phase.STEPS)
