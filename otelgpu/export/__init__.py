"""Spans and metrics out of the program: OTLP over gRPC or HTTP, OTLP/JSON lines in a file, a terminal.

Columns of finished spans (:mod:`otelgpu.model.spans`) and ``MetricsData`` messages come in; bytes go out.
Nothing here makes up, joins or renames telemetry. Each exporter is a package of its own, which ``registry`` finds;
heavy imports (grpcio, rich) happen only when a destination needs them.
"""
