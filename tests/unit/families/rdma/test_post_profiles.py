"""Work requests posted in profiles: how many, and their bytes, by stack."""

from __future__ import annotations

from typing import Any

from otelgpu.families.rdma.profile_rows import PostProfiles
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import SampleKind, Samples, samples


def taken(stack: int, value: int, size_bytes: int = 0) -> Samples:
    rows = samples(1)
    rows["kind"], rows["time_ns"], rows["tid"], rows["tgid"] = SampleKind.CALL, 100, 9, 1
    rows["stack"], rows["value"], rows["size_bytes"] = stack, value, size_bytes
    return rows


def reported(made: PostProfiles) -> dict[str, dict[int, int]]:
    found: dict[str, Any] = {}
    for part in made.take(500):
        assert part.kind == ProfileKind.VERBS
        of_type = found.setdefault(part.sample_type.type, {})
        for row in part.rows:
            of_type[int(row["stack"])] = of_type.get(int(row["stack"]), 0) + int(row["value"])
    return found


def test_a_sample_of_posts_stands_for_those_that_were_passed_over() -> None:
    made = PostProfiles()
    made.see_samples(taken(7, 16, 512), 500)
    made.see_samples(taken(7, 1), 500)
    assert reported(made) == {"verbs_posts": {7: 17}, "verbs_bytes": {7: 8192}}
    assert reported(made) == {} and made.held(500) == []


def test_absurd_numbers_stay_numbers() -> None:
    made = PostProfiles()
    made.see_samples(taken(7, 2**63 - 1, 2**64 - 1), 0)
    found = reported(made)
    assert all(value > 0 for values in found.values() for value in values.values())
