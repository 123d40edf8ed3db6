"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# How long an example takes says nothing on a machine that does other things as well. In CI the examples are the
# same each time: a change is judged by what it changed. Elsewhere they are drawn anew, and find what nobody thought of.
settings.register_profile("otelgpu", deadline=None, derandomize="CI" in os.environ)
# Before every commit, a fifth of the examples (make check); make test tries all of them.
settings.register_profile("quick", parent=settings.get_profile("otelgpu"), max_examples=20)
settings.load_profile("otelgpu")
