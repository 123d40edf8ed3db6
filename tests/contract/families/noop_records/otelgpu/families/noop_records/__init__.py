"""Family ``noop_records``: takes its records and makes nothing of them."""

from typing import Final

from otelgpu.families.noop_records.handler import NoopHandler

from otelgpu.engine.contract import Family, Load

FAMILY: Final = Family(name="noop_records", load=Load.FOUND, open=NoopHandler)
