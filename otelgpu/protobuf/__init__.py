"""Protocol Buffers messages that others wrote. Pure.

Where OpenTelemetry's packages have a generated message, that reads it. Where none has, but the schema is known,
``messages`` makes the class of it; what has no schema that could be held to, ``fields`` walks. What is written at a
rate is encoded by ``otelgpu.export`` in columns.
"""
