"""otelgpu: zero-code OpenTelemetry traces and metrics for GPU services, from eBPF probes."""

__version__ = "0.1.0"
