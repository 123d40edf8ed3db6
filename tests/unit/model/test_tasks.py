"""Streams as tasks: the number that user space makes is the one that BPF makes."""

from __future__ import annotations

import pytest

from otelgpu.model.tasks import stream_task
from tests.unit.families.records import btf


@pytest.mark.parametrize(("reader", "stream"), [(1, 1), (5, 7), ((1 << 32) - 1, (1 << 31) - 1)])
def test_a_stream_has_the_number_that_bpf_gives_it(reader: int, stream: int) -> None:
    shifts = btf("http").enumerators("go_stream_task")
    made = 1 << shifts["GO_STREAM_TASK"] | reader << shifts["GO_STREAM_READER"] | stream
    assert stream_task(reader, stream) == made < 1 << 64


@pytest.mark.parametrize(("reader", "stream"), [(0, 1), (1 << 32, 1), (5, 0)])
def test_what_bpf_makes_no_number_of_has_none(reader: int, stream: int) -> None:
    assert stream_task(reader, stream) == 0
