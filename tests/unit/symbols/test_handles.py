"""Handles and registrations → what a launch stands for."""

from __future__ import annotations

import numpy as np
import pytest

from otelgpu.symbols import handles
from otelgpu.symbols.handles import MAX_CHAIN, KernelHandles, Meaning

A, B = 100, 200  # processes


def column(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def test_an_address_that_nobody_mentioned_stands_for_itself() -> None:
    assert KernelHandles().meaning(A, 0x1189) == Meaning(address=0x1189)


def test_a_registered_stub_has_the_address_of_its_name() -> None:
    known = KernelHandles()
    known.learn_registrations(A, column(0x30, 0x10, 0x20), column(0x3000, 0x1000, 0x2000))
    assert known.meaning(A, 0x20) == Meaning(address=0x20, name_address=0x2000)
    assert known.meaning(A, 0x21) == Meaning(address=0x21)
    assert known.meaning(B, 0x20) == Meaning(address=0x20)


def test_a_stub_that_is_registered_again_has_the_later_name() -> None:
    known = KernelHandles()
    known.learn_registrations(A, column(0x10, 0x20), column(1, 2))
    assert known.meaning(A, 0x10).name_address == 1
    known.learn_registrations(A, column(0x10), column(9))
    assert known.meaning(A, 0x10).name_address == 9
    assert known.meaning(A, 0x20).name_address == 2


def test_a_chain_of_handles_leads_to_the_registered_stub() -> None:
    known = KernelHandles()
    known.learn_registrations(A, column(0x1189), column(0x2050))
    known.learn(A, 0x7000, 1, 0x1189)
    known.learn(A, 0x8000, 2, 0x7000)
    assert known.meaning(A, 0x8000) == Meaning(address=0x1189, name_address=0x2050)


def test_a_handle_has_the_name_that_it_was_asked_for_by() -> None:
    known = KernelHandles()
    known.learn(A, 0x7000, 1, "triton_poi_fused_add_0")
    known.learn(A, 0x8000, 2, 0x7000)
    assert known.meaning(A, 0x8000) == Meaning(text="triton_poi_fused_add_0")


def test_what_was_said_last_counts_in_whatever_order_it_is_read() -> None:
    known = KernelHandles()
    known.learn(A, 0x7000, 5, "new")
    known.learn(A, 0x7000, 3, "old")
    assert known.meaning(A, 0x7000).text == "new"
    known.learn(A, 0x7000, 7, "newest")
    assert known.meaning(A, 0x7000).text == "newest"


def test_a_circle_of_handles_ends() -> None:
    known = KernelHandles()
    known.learn(A, 1, 0, 2)
    known.learn(A, 2, 0, 1)
    assert known.meaning(A, 1) == Meaning(address=1)
    assert known.counters == {"handle_chain_too_long": 1}


def test_the_longest_chain_is_followed() -> None:
    known = KernelHandles()
    for number in range(MAX_CHAIN - 1):
        known.learn(A, number, 0, number + 1)
    assert known.meaning(A, 0).address == MAX_CHAIN - 1


def test_a_child_has_what_its_parent_had_and_goes_its_own_way() -> None:
    known = KernelHandles()
    known.learn_registrations(A, column(0x10, 0x20), column(1, 2))
    known.learn(A, 0x7000, 1, 0x10)
    known.learn(A, 0x8000, 1, "kernel")
    known.learn_registrations(B, column(0x20), column(9))
    known.learn(B, 0x8000, 2, "other")
    known.inherit(A, B)
    assert known.meaning(B, 0x7000) == known.meaning(A, 0x7000) == Meaning(address=0x10, name_address=1)
    assert known.meaning(B, 0x20).name_address == 9 and known.meaning(A, 0x20).name_address == 2
    assert known.meaning(B, 0x8000).text == "other" and known.meaning(A, 0x8000).text == "kernel"
    known.forget(A)
    known.forget(B)
    assert (known._handles, known._registered) == (0, 0)


def test_a_process_that_is_forgotten_leaves_nothing() -> None:
    known = KernelHandles()
    known.learn_registrations(A, column(0x10), column(1))
    known.learn(A, 0x7000, 1, 0x10)
    known.forget(A)
    assert known.meaning(A, 0x10) == Meaning(address=0x10)
    assert (known._handles, known._registered) == (0, 0)


def test_handles_beyond_the_bound_push_out_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_HANDLES", 3)
    known = KernelHandles()
    for handle in (1, 2, 3, 1, 4):
        known.learn(A, handle, handle, f"kernel_{handle}")
    assert [known.meaning(A, handle).text for handle in (1, 2, 3, 4)] == [
        "kernel_1",
        "",
        "kernel_3",
        "kernel_4",
    ]
    assert known.counters == {"handles_full": 1} and known._handles == 3


def test_registrations_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_REGISTRATIONS", 3)
    known = KernelHandles()
    known.learn_registrations(A, column(1, 2), column(10, 20))
    known.learn_registrations(A, column(3, 4, 5), column(30, 40, 50))
    assert known.counters == {"registrations_full": 2}
    assert [known.meaning(A, stub).name_address for stub in (1, 3, 4)] == [10, 30, 0]


def test_all_processes_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_REGISTRATIONS_IN_ALL", 3)
    monkeypatch.setattr(handles, "MAX_HANDLES_IN_ALL", 1)
    known = KernelHandles()
    known.learn_registrations(A, column(1, 2), column(10, 20))
    known.learn(A, 7, 0, "seven")
    known.inherit(A, B)
    assert known.meaning(B, 1).name_address == 0 and known.meaning(B, 7).text == ""
    assert known.counters == {"handles_full": 1, "registrations_full": 2}
