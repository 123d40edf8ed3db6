"""The one table of context sources: complete, in order, and the same as what the BPF programs write."""

from __future__ import annotations

import numpy as np
import pytest

from otelgpu.kernel.loader import read_image
from otelgpu.model.context_sources import IS_PUBLISHED, PUBLISHED, SOURCES, ContextSource


def test_every_source_is_described_once_and_the_least_trusted_is_none() -> None:
    assert sorted(each.source for each in SOURCES) == sorted(ContextSource)
    assert SOURCES[-1].source is ContextSource.NONE
    assert all(each.description and each.links for each in SOURCES)


def test_they_are_in_the_order_of_trust_that_design_has() -> None:
    order = ("thread_context", "obi", "task", "thread", "wakeup", "message", "step", "none")
    assert tuple(each.source.exported for each in SOURCES) == order


@pytest.mark.parametrize("family", ["cuda", "nccl", "verbs", "http", "profile"])
def test_the_numbers_in_records_are_those_of_the_programs(family: str) -> None:
    written = {f"CONTEXT_{each.source.name}": int(each.source) for each in SOURCES if each.in_record}
    assert read_image(family).btf.enumerators("context_source") == written


def test_published_sources_are_reported_from_those_found_in_user_space() -> None:
    assert PUBLISHED == (ContextSource.THREAD_CONTEXT, ContextSource.OBI)
    codes = np.array([list(ContextSource), list(reversed(ContextSource))], dtype=np.uint8)
    assert IS_PUBLISHED[codes].tolist() == np.isin(codes, PUBLISHED).tolist()
