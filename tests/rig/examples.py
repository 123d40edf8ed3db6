"""How many examples a property test tries: as many as it asks for, or the profile's share of that.

In: a number. Out: Hypothesis' settings. The profiles are in ``tests/conftest.py``; ``make check`` takes the quick one,
``make test`` all that is asked for, in CI half.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import settings

ALL: Final = 100  # what a profile without a number of its own has for a test that asks for none


def examples(count: int, **others: Any) -> settings:
    """Settings for ``count`` examples; ``others``: as Hypothesis takes them."""
    share = settings().max_examples  # the profile's, of ALL
    return settings(max_examples=-(-count * share // ALL), **others)
