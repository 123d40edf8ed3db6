"""Requests of any protocol, from their first byte to their spans. Pure."""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.requests.answering.handler import RequestHandler

    return RequestHandler(services)


FAMILY = Family(name="requests", load=None, open=_open, phase=Phase.REQUESTS)
