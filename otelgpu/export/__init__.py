"""Spans and metrics out of the program: OTLP over gRPC or HTTP, OTLP/JSON lines in a file, a terminal.

Columns of finished spans (:mod:`otelgpu.model.spans`) and ``MetricsData`` messages come in; bytes go out.
Nothing here makes up, joins or renames telemetry. Start with :func:`parse_destination` and
:func:`open_exporter`; heavy imports (grpcio, rich) happen only when a destination needs them.
"""

from otelgpu.export.base import Exporter, ExportError
from otelgpu.export.destination import Destination, open_exporter, parse_destination

__all__ = ["Destination", "ExportError", "Exporter", "open_exporter", "parse_destination"]
