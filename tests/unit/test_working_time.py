"""What a thread computes is its own; what the garbage collector takes of its time is nobody's."""

from __future__ import annotations

import gc
import threading
import time

from otelgpu.kernel.clock import WorkingTime

BUSY_NS = 20_000_000


def compute(ns: int) -> None:
    until = time.thread_time_ns() + ns
    while time.thread_time_ns() < until:
        pass


def test_work_counts_and_collections_do_not() -> None:
    held = [[number] for number in range(300_000)]  # for the collector to look at
    working = WorkingTime()
    try:
        began, began_ns = working(), time.thread_time_ns()
        for _ in range(5):
            gc.collect()
        collected_ns = time.thread_time_ns() - began_ns
        assert working() - began < collected_ns / 4
        compute(BUSY_NS)
        assert BUSY_NS <= working() - began < BUSY_NS + collected_ns / 2
        assert len(held) == 300_000
    finally:
        gc.callbacks.remove(working._collects)


def test_collections_of_other_threads_change_nothing() -> None:
    working = WorkingTime()
    try:
        began, began_ns = working(), time.thread_time_ns()
        other = threading.Thread(target=gc.collect)
        other.start()
        other.join()
        assert abs((working() - began) - (time.thread_time_ns() - began_ns)) < 1_000_000
    finally:
        gc.callbacks.remove(working._collects)


def test_in_a_hurry_time_without_a_processor_counts_too_and_it_goes_on_from_there() -> None:
    working = WorkingTime()
    try:
        began = working()
        with working.hurried():
            assert working() - began < BUSY_NS
            time.sleep(0.05)
            waited = working() - began
        assert 50_000_000 <= waited < 1_000_000_000
        time.sleep(0.05)
        assert waited <= working() - began < waited + BUSY_NS
    finally:
        gc.callbacks.remove(working._collects)
