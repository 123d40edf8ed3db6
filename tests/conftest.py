"""What holds for every test."""

from __future__ import annotations

import errno
import os
import signal

import pytest
from hypothesis import settings

from tests.rig.isolation import isolate_worker

# How long an example takes says nothing on a machine that does other things as well. In CI the examples are the
# same each time, and half as many: a change is judged by what it changed. Elsewhere they are drawn anew, and find what
# nobody thought of.
IN_CI = "CI" in os.environ
settings.register_profile("otelgpu", deadline=None, derandomize=IN_CI, max_examples=50 if IN_CI else 100)
# Before every commit, a fifth of the examples (make check); make test tries all of them.
settings.register_profile("quick", parent=settings.get_profile("otelgpu"), max_examples=20)
settings.load_profile("otelgpu")


def pytest_configure(config: pytest.Config) -> None:
    """Workers that run side by side are kept apart, where that is allowed: elsewhere nothing is loaded anyway.

    Programs that a shell starts in the background ignore Ctrl-C, and what they start does too: not what is tested here.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        try:
            isolate_worker()
        except OSError as error:
            if error.errno != errno.EPERM:
                raise


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers begin with the modules that take longest, so that at the end none waits for another's."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("long") is None)
