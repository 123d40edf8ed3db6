"""What a thread did for a while, as the framework that it runs in says: rows of operations of kind STRETCH.

``start_ns`` and ``duration_ns`` say when, ``api`` which of :class:`Stretch`. They are no calls of an API and become no
spans: they say where in a step a thread was.
"""

from __future__ import annotations

from enum import IntEnum


class Stretch(IntEnum):
    """``enum gloo_stretch_of`` of ``bpf/gloo/gloo.h``."""

    DATA_LOADER = 1  # the program asked for its next batch, until it had it
    BACKWARD = 2  # a backward pass: on CPUs it computes gradients, on the thread that asked for them
    COMMUNICATION_WAIT = 3  # for collectives that other threads of the process run
