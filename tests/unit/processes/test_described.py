"""What the pipeline hears of processes: once each, before what they do; of those that nothing is known of, a count."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from otelgpu.kernel import clock
from otelgpu.model.inputs import ProcessSeen, Records
from otelgpu.model.resource import unnamed
from otelgpu.processes.described import DescribedProcesses
from otelgpu.processes.process_context import ProcessContexts
from otelgpu.processes.resources import ResourceDetector

MACHINE = {"host.name": "gpu-1"}


@pytest.fixture
def counters() -> Counter[str]:
    return Counter()


@pytest.fixture
def renewed() -> list[int]:
    return []


@pytest.fixture
def described(counters: Counter[str], renewed: list[int]) -> DescribedProcesses:
    return DescribedProcesses(ResourceDetector(MACHINE), renewed.append, counters, ProcessContexts())


def heads(tgid: int) -> Records:
    """Of a record that was made now."""
    return np.array([(tgid, clock.monotonic_ns())], [("tgid", "<u4"), ("time_ns", "<u8")])


def ended() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_process_is_reported_before_its_first_records_and_once(
    described: DescribedProcesses, counters: Counter[str], renewed: list[int]
) -> None:
    (seen,) = described.with_records([os.getpid()], heads(os.getpid()))
    assert isinstance(seen, ProcessSeen)
    assert (seen.tgid, seen.parent, seen.same_program) == (os.getpid(), os.getppid(), False)
    assert described.with_records([os.getpid()], heads(os.getpid())) == []
    described.forget(os.getpid())
    assert len(described.with_records([os.getpid()], heads(os.getpid()))) == 1
    assert renewed == [os.getpid()] * 2
    assert not counters


def test_what_is_known_already_is_reported_first_and_once(described: DescribedProcesses) -> None:
    now_ns = clock.monotonic_ns()
    described.see(os.getpid(), now_ns)
    assert [each.time_ns for each in described.take() if isinstance(each, ProcessSeen)] == [now_ns]
    assert described.take() == described.with_records([os.getpid()], heads(os.getpid())) == []


def test_a_process_of_which_only_records_are_left_is_counted_once(
    described: DescribedProcesses, counters: Counter[str]
) -> None:
    gone = ended()
    described.see(gone, 1)
    assert not counters  # nothing is lost unless records of it turn up
    for _ in range(2):
        assert described.with_records([gone], heads(gone)) == []
    assert counters == {"process_not_described": 1}


def test_more_that_is_known_of_the_same_program_renews_nothing(
    described: DescribedProcesses, renewed: list[int]
) -> None:
    for again in (True, True):  # the first is not known yet, so it is not again
        described.see(os.getpid(), clock.monotonic_ns(), again=again)
    reported = [each.same_program for each in described.take() if isinstance(each, ProcessSeen)]
    assert reported == [False, True]
    assert renewed == [os.getpid()]


def test_of_a_number_that_is_given_again_and_of_which_nothing_is_known_that_much_is_reported(
    described: DescribedProcesses,
) -> None:
    gone = ended()
    described.begin(gone, 5)
    assert described.take() == []  # it is made up if records of it turn up
    described.forget(gone)
    described.begin(gone, 9)
    assert described.take() == [ProcessSeen(tgid=gone, time_ns=9, resource=unnamed(gone, MACHINE))]
    assert described.began_ns(gone) == 9


def test_who_has_a_number_later_is_not_described_as_who_had_it(described: DescribedProcesses) -> None:
    described.see(os.getpid(), 1)  # of somebody who ran long before this process
    assert described.take() == []
    old = heads(os.getpid())
    old["time_ns"] = 1
    assert described.with_records([os.getpid()], old) == []
