"""Work requests posted, under the stacks that they were posted under → rows of profiles. Pure.

In: samples of kind CALL of family verbs, of every so many posts of a thread one. Out: rows of kind verbs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.engine.profile_rows import ProfileRows, profile_rows
from otelgpu.model.profiles import ValueType
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import Samples, concatenated

VERBS_POSTS: Final = ValueType(type="verbs_posts", unit="count")
VERBS_BYTES: Final = ValueType(type="verbs_bytes", unit="bytes")

_COLUMNS: Final = (
    *("tgid", "tid", "context_source", "trace_id", "span_id", "trace_flags"),
    *("time_ns", "stack", "value", "name"),
)


class PostProfiles:
    """One session's posts as a :class:`~otelgpu.engine.services.ProfileSource`."""

    def __init__(self) -> None:
        self._posts: list[Samples] = []

    def see_samples(self, samples: Samples, now_ns: int) -> None:
        """Samples of posts, as they come; they are no operations, so that nothing else is waited for."""
        self._posts.append(samples)

    def take(self, now_ns: int, *, final: bool = False) -> list[ProfileRows]:
        """What was posted since the last time: each sample stands for ``value`` posts, and has the bytes of one."""
        if not self._posts:
            return []
        samples, self._posts = concatenated(self._posts), []
        rows = profile_rows(len(samples))
        for name in _COLUMNS:
            rows[name] = samples[name]
        sized = rows.copy()
        posts = np.clip(samples["value"], 0, 1 << 15)
        sized["value"] = np.minimum(samples["size_bytes"], np.uint64(1 << 47)).astype(np.int64) * posts
        reported = [
            ProfileRows(kind=ProfileKind.VERBS, sample_type=VERBS_POSTS, rows=rows),
            ProfileRows(kind=ProfileKind.VERBS, sample_type=VERBS_BYTES, rows=sized[sized["value"] > 0]),
        ]
        return [each for each in reported if len(each)]

    def held(self, time_ns: int) -> list[ProfileRows]:
        """None: a post is no level."""
        return []
