"""Requests of any protocol, from their first byte to their spans. Pure."""

from otelgpu.engine.contract import Family, Phase
from otelgpu.families.requests.answering.handler import RequestHandler

FAMILY = Family(name="requests", load=None, open=RequestHandler, phase=Phase.REQUESTS)
