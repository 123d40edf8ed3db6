"""What the pipeline hears of processes: once each, before what they do; of those that nothing is known of, a count."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from otelgpu.model.inputs import ProcessSeen
from otelgpu.processes.described import DescribedProcesses
from otelgpu.processes.process_context import ProcessContexts
from otelgpu.processes.resources import ResourceDetector


@pytest.fixture
def counters() -> Counter[str]:
    return Counter()


@pytest.fixture
def renewed() -> list[int]:
    return []


@pytest.fixture
def described(counters: Counter[str], renewed: list[int]) -> DescribedProcesses:
    return DescribedProcesses(ResourceDetector(), renewed.append, counters, ProcessContexts())


def ended() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_process_is_reported_before_its_first_records_and_once(
    described: DescribedProcesses, counters: Counter[str], renewed: list[int]
) -> None:
    (seen,) = described.with_records([os.getpid()])
    assert isinstance(seen, ProcessSeen)
    assert (seen.tgid, seen.parent, seen.same_program) == (os.getpid(), os.getppid(), False)
    assert described.with_records([os.getpid()]) == []
    described.forget(os.getpid())
    assert len(described.with_records([os.getpid()])) == 1
    assert renewed == [os.getpid()] * 2
    assert not counters


def test_what_is_known_already_is_reported_first_and_once(described: DescribedProcesses) -> None:
    described.see(os.getpid(), 7)
    assert [each.time_ns for each in described.take() if isinstance(each, ProcessSeen)] == [7]
    assert described.take() == described.with_records([os.getpid()]) == []


def test_a_process_of_which_only_records_are_left_is_counted_once(
    described: DescribedProcesses, counters: Counter[str]
) -> None:
    gone = ended()
    described.see(gone, 1)
    assert not counters  # nothing is lost unless records of it turn up
    for _ in range(2):
        assert described.with_records([gone]) == []
    assert counters == {"process_not_described": 1}


def test_more_that_is_known_of_the_same_program_renews_nothing(
    described: DescribedProcesses, renewed: list[int]
) -> None:
    for again in (True, True):  # the first is not known yet, so it is not again
        described.see(os.getpid(), 1, again=again)
    reported = [each.same_program for each in described.take() if isinstance(each, ProcessSeen)]
    assert reported == [False, True]
    assert renewed == [os.getpid()]
