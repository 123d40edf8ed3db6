"""The runtime context that publishes. Importing it needs the native part, built for this machine.

``attach``, ``detach`` and every switch of tasks are C (``publisher.c``); what happens once in a process is here.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar

from opentelemetry.context.context import Context, _RuntimeContext

from . import imports, process_context

if "t" in sys.abiflags:
    raise ImportError("a Python without a global interpreter lock is not supported")

from . import _publisher

_logger = logging.getLogger("otelgpu.bridge")

LIBRARIES = {"_asyncio", "uvloop.loop"}
"""The modules that enter Contexts in C: eager tasks of Python 3.12 and 3.13, and all that uvloop runs."""


class PublishingContext(_publisher.Publisher, _RuntimeContext):
    """Behaves as ``ContextVarsRuntimeContext`` does, its tokens and errors included, and publishes.

    RuntimeError when there is one in this process already, or when CPython is not as expected.
    """

    def __init__(self) -> None:
        nothing = Context()  # as ContextVarsRuntimeContext has it; a Context never changes
        current = ContextVar("current_context", default=nothing)
        _publisher.start(current, process_context.publish_provider, _failed)
        _warned(_publisher.follow_libraries)
        imports.after_import(LIBRARIES, lambda: _warned(_publisher.follow_libraries))
        _warned(process_context.publish_environment)
        os.register_at_fork(after_in_child=lambda: _warned(process_context.publish_again))


def _warned(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:
        _failed(error)


def _failed(error: BaseException) -> None:
    _logger.warning("otelgpu could not publish all of this process's context: %r", error)
