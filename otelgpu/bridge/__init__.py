"""The bridge: an OpenTelemetry service in Python shows which span is active on each of its threads.

``OTEL_PYTHON_CONTEXT=otelgpu`` makes opentelemetry-api load :func:`runtime_context` (entry-point group
``opentelemetry_context``). Contexts behave as without it; besides, every thread's active span is published
as OTEP 4947 has it and the service's resource as OTEP 4719 has it, for any reader outside of the process.

This package runs inside the observed service: it imports nothing but opentelemetry-api and the standard
library, and whatever fails in it costs one warning and no more. It imports itself relatively: the distribution
``otelgpu-bridge`` has the same files as ``otelgpu_bridge``, without the agent.
"""

from __future__ import annotations

import logging

from opentelemetry.context.context import _RuntimeContext
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

_logger = logging.getLogger(__name__)


def runtime_context() -> _RuntimeContext:
    """The runtime context that publishes, or where that is impossible opentelemetry-api's own, and a warning."""
    try:
        from .publishing import PublishingContext

        return PublishingContext()
    except Exception as error:
        _logger.warning("otelgpu does not publish the active spans of this process: %s", error)
        return ContextVarsRuntimeContext()
