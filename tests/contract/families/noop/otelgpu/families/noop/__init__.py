"""Family ``noop``: has no records, and nothing to do."""

from typing import Final

from otelgpu.engine.contract import Family

FAMILY: Final = Family(name="noop", load=None, open=lambda services: None)
