"""The memory ledger: what is held after which calls, and what is only counted."""

from __future__ import annotations

import doctest

import pytest

from otelgpu.engine.contract import ContextStep
from otelgpu.engine.memory_names import LEAK_WINDOWS
from otelgpu.families.gpu.memory import ledger as memory
from otelgpu.families.gpu.memory import mappings as memory_mappings
from otelgpu.families.gpu.memory import process as memory_process
from otelgpu.families.gpu.memory.ledger import COUNTERS, OWED_NS, WINDOW_NS, MemoryLedger
from otelgpu.model.operations import LARGEST_SIZE, Memory, OperationKind, concatenate, operations
from tests.unit.families.gpu.memory.memory_calls import (
    API,
    Decoder,
    allocation,
    call,
    counted,
    free,
    ledger_of,
    live,
    mapping,
    rows_of,
    step,
    total,
)

CONTEXT, OTHER_CONTEXT = 0xC0, 0xC1


def test_the_worked_examples_are_true() -> None:
    for module in (memory, memory_mappings):
        result = doctest.testmod(module, extraglobs={"rows_of": rows_of})
        assert (result.attempted > 3, result.failed) == (True, 0)


# -- allocations and frees ---------------------------------------------------------------------------


def test_what_is_allocated_is_held_until_it_is_freed() -> None:
    ledger = ledger_of(allocation(1, at=1, size=100), allocation(2, at=2, size=20), free(3, at=1))
    (account,) = ledger.processes[1].accounts.values()
    assert (account.live_bytes, account.live_allocations, account.peak_bytes) == (20, 1, 120)
    assert (account.allocated_bytes, account.allocations, account.freed_bytes, account.frees) == (
        120,
        2,
        100,
        1,
    )
    assert counted(ledger) == {}


def test_accounts_are_by_process_device_and_kind() -> None:
    ledger = ledger_of(
        allocation(1, at=1, size=1),
        allocation(2, at=2, size=20, device=1),
        allocation(3, at=3, size=300, memory=Memory.MANAGED),
        allocation(4, at=4, size=4000, device=-1),
        allocation(5, at=1, size=50_000, tgid=2),
    )
    assert live(ledger) == {(0, "DEVICE"): 1, (1, "DEVICE"): 20, (0, "MANAGED"): 300, (-1, "DEVICE"): 4000}
    assert live(ledger, 2) == {(0, "DEVICE"): 50_000}


@pytest.mark.parametrize("kind", ["DEVICE", "MANAGED", "POOL", "HOST", "IMPORTED"])
def test_any_free_frees_what_has_its_address(kind: str) -> None:
    ledger = ledger_of(allocation(1, memory=Memory[kind]), free(2, memory=Memory.DEVICE))
    assert (live(ledger), counted(ledger)) == ({}, {})


def test_registered_memory_is_not_freed_by_what_has_its_address() -> None:
    ledger = ledger_of(allocation(1, memory=Memory.REGISTERED), allocation(2, memory=Memory.HOST), free(3))
    assert live(ledger) == {(0, "REGISTERED"): 100}
    ledger.add(free(4, memory=Memory.REGISTERED))
    ledger.settle(10)
    assert (live(ledger), counted(ledger)) == ({}, {})


def test_address_ranges_are_no_memory() -> None:
    ledger = ledger_of(allocation(1, memory=Memory.ADDRESS), free(2, memory=Memory.ADDRESS))
    assert (live(ledger), counted(ledger)) == ({}, {})


def test_nothing_is_freed_by_freeing_nothing() -> None:
    ledger = ledger_of(allocation(1, at=0, size=0), free(2, at=0))
    assert (total(ledger), counted(ledger)) == (0, {})


def test_a_free_of_what_is_older_than_the_observation_is_counted() -> None:
    assert counted(ledger_of(free(1, at=5))) == {"free_unknown": 1}
    assert counted(ledger_of(free(1, at=5, memory=Memory.PHYSICAL))) == {"free_unknown": 1}


def test_a_failed_call_changes_nothing() -> None:
    ledger = ledger_of(allocation(1, at=1), allocation(2, at=2, status=2), free(3, at=1, status=1))
    (account,) = ledger.processes[1].accounts.values()
    assert (account.live_bytes, account.failures, account.requested_bytes) == (100, 1, 0)


def test_without_a_return_bytes_are_requested_and_not_held() -> None:
    ledger = ledger_of(allocation(1, at=0, size=70, returned=0), free(2, returned=0))
    (account,) = ledger.processes[1].accounts.values()
    assert (account.live_bytes, account.allocated_bytes, account.requested_bytes) == (0, 0, 70)
    assert counted(ledger) == {"result_unknown": 1}


@pytest.mark.parametrize("size", [LARGEST_SIZE + 1, 2**63, 2**64 - 1])
def test_an_absurd_size_is_left_out(size: int) -> None:
    ledger = ledger_of(allocation(1, size=size), mapping(2, 0x1000, size, handle=7))
    assert (total(ledger), counted(ledger)) == (0, {"size_absurd": 2})


def test_numbers_that_mean_nothing_are_taken_for_unknown() -> None:
    ledger = ledger_of(allocation(1, at=1, device=30_000), allocation(2, at=2, memory=99))
    assert live(ledger) == {(-1, "DEVICE"): 100, (0, "NONE"): 100}


def test_other_calls_are_none_of_its_business() -> None:
    rows = operations(50)
    rows["kind"], rows["tgid"] = OperationKind.LAUNCH, 1
    ledger = MemoryLedger([Decoder()])
    ledger.add(rows)
    ledger.settle(100)
    assert ledger.processes == {}


# -- time --------------------------------------------------------------------------------------------


def test_order_of_arrival_does_not_matter_within_a_tick() -> None:
    rows = [
        allocation(1, at=1),
        free(5, at=1),
        allocation(6, at=1, size=7),
        free(2, at=2),
        allocation(0, at=2),
    ]
    assert [total(ledger_of(*order)) for order in (rows, rows[::-1], rows[2:] + rows[:2])] == [7, 7, 7]


def test_an_allocation_takes_effect_at_its_end_and_a_free_at_its_start() -> None:
    # The free of the first lasts until 90; its address is given again at 50.
    ledger = ledger_of(allocation(1, 2), free(10, 90), allocation(5, 50, size=7), now=100)
    assert (total(ledger), counted(ledger)) == (7, {})


def test_a_free_that_is_reported_after_its_address_was_given_again_frees_what_was_there_before() -> None:
    ledger = ledger_of(allocation(1, 2), now=20)
    for row, now in ((allocation(30, 31, size=7), 40), (free(25, 99), 100)):
        ledger.add(row)
        ledger.settle(now)
    assert (total(ledger), counted(ledger)) == (7, {})
    ledger.add(free(110))
    ledger.settle(120)
    assert (total(ledger), counted(ledger)) == (0, {})


def test_a_late_free_is_paid_even_when_the_next_is_gone_already() -> None:
    ledger = ledger_of(allocation(1, 2), allocation(30, 31, size=7), free(40), now=50)
    ledger.add(free(25, 99))
    ledger.settle(100)
    assert (total(ledger), counted(ledger)) == (0, {})


def test_a_free_that_never_comes_is_counted_once_it_is_overdue() -> None:
    ledger = ledger_of(allocation(1), allocation(3, size=7), now=10)
    assert (total(ledger), counted(ledger)) == (7, {})
    ledger.settle(10 + WINDOW_NS + OWED_NS)
    assert (total(ledger), counted(ledger)) == (7, {"free_missed": 1})


def test_what_took_effect_after_the_tick_waits_for_the_next() -> None:
    ledger = ledger_of(allocation(5, 30), now=20)
    assert total(ledger) == 0
    ledger.settle(30)
    assert total(ledger) == 100


def test_at_the_end_nothing_waits() -> None:
    ledger = ledger_of(allocation(5, 30), now=20)
    ledger.settle(20, final=True)
    assert (total(ledger), counted(ledger)) == (100, {})


def test_a_call_in_the_future_is_left_out() -> None:
    ledger = ledger_of(allocation(10**18), now=20)
    ledger.settle(2 * 10**18)
    assert (total(ledger), counted(ledger)) == (0, {"time_absurd": 1})


# -- processes ---------------------------------------------------------------------------------------


def test_a_process_that_ended_holds_nothing_and_is_reported_once() -> None:
    ledger = ledger_of(allocation(1), allocation(1, tgid=2))
    ledger.end_process(1, 10**6)
    ledger.settle(10**6 + 1)
    (ended,) = ledger.take_ended()
    assert (ended.tgid, [account.live_bytes for account in ended.accounts.values()]) == (1, [0])
    assert (list(ledger.processes), ledger.take_ended()) == ([2], [])


def test_another_program_in_the_process_begins_with_nothing() -> None:
    ledger = MemoryLedger([Decoder()])
    ledger.end_process(1, 10)  # reported before the calls of either, as live does
    ledger.add(concatenate([allocation(5, at=1), allocation(15, at=2, size=7), free(20, at=1)]))
    ledger.settle(30)
    assert (total(ledger), counted(ledger)) == (7, {"free_unknown": 1})


def test_the_end_of_a_process_that_held_nothing_is_nothing() -> None:
    ledger = MemoryLedger([Decoder()])
    ledger.end_process(9, 1)
    ledger.settle(2)
    assert (ledger.take_ended(), counted(ledger)) == ([], {})


# -- contexts ----------------------------------------------------------------------------------------


def test_the_reset_of_a_device_frees_what_was_on_it() -> None:
    ledger = ledger_of(
        allocation(1, at=1),
        allocation(2, at=2, memory=Memory.HOST),
        allocation(3, at=3, size=7, device=1),
        step(ContextStep.RESET_CURRENT, 10, 20),
        allocation(15, 16, at=1, size=3),
    )
    assert live(ledger) == {(0, "DEVICE"): 3, (1, "DEVICE"): 7}


def test_the_reset_of_a_primary_context_names_the_device() -> None:
    ledger = ledger_of(
        allocation(1, at=1), allocation(2, at=2, device=1), step(ContextStep.RESET_DEVICE, 5, other=1)
    )
    assert live(ledger) == {(0, "DEVICE"): 100}


def test_the_end_of_a_context_frees_what_was_allocated_in_it() -> None:
    ledger = ledger_of(
        allocation(1, at=1, size=1),
        step(ContextStep.CREATE, 2, handle=CONTEXT),
        allocation(3, at=2, size=20),
        allocation(4, at=3, size=300, tid=2),  # this thread has chosen no context
        step(ContextStep.SELECT, 5, tid=2, handle=CONTEXT),
        allocation(6, at=4, size=4000, tid=2),
        step(ContextStep.DESTROY, 7, handle=CONTEXT),
        allocation(8, at=5, size=50_000),
    )
    assert (total(ledger), counted(ledger)) == (50_301, {})


def test_contexts_are_pushed_and_popped() -> None:
    ledger = ledger_of(
        step(ContextStep.CREATE, 1, handle=CONTEXT),
        step(ContextStep.CREATE, 2, handle=OTHER_CONTEXT),
        step(ContextStep.POP, 3),
        allocation(4, at=1, size=1),
        step(ContextStep.PUSH, 5, handle=OTHER_CONTEXT),
        allocation(6, at=2, size=20),
        step(ContextStep.SELECT_DEVICE, 7, handle=0),
        allocation(8, at=3, size=300),
        step(ContextStep.DESTROY, 9, handle=OTHER_CONTEXT),
    )
    assert total(ledger) == 301


def test_a_context_reports_the_device_where_the_thread_does_not() -> None:
    ledger = ledger_of(step(ContextStep.CREATE, 1, handle=CONTEXT, other=3), allocation(2, device=-1))
    assert live(ledger) == {(3, "DEVICE"): 100}


def test_the_end_of_a_context_that_was_not_seen_to_be_made_is_counted() -> None:
    ledger = ledger_of(allocation(1), step(ContextStep.DESTROY, 2, handle=CONTEXT))
    assert (total(ledger), counted(ledger)) == (100, {"context_unknown": 1})


def test_the_last_release_of_a_primary_context_frees_what_it_held() -> None:
    retain = [step(ContextStep.RETAIN_DEVICE, t, handle=CONTEXT, other=1) for t in (1, 2)]
    release = [step(ContextStep.RELEASE_DEVICE, t, other=1) for t in (20, 21)]
    held = [step(ContextStep.SELECT, 3, handle=CONTEXT), allocation(4, device=1)]
    assert total(ledger_of(*retain, *held, release[0])) == 100
    assert total(ledger_of(*retain, *held, *release)) == 0


def test_a_primary_context_that_the_runtime_uses_outlives_its_releases() -> None:
    ledger = ledger_of(
        step(ContextStep.RETAIN_DEVICE, 1, handle=CONTEXT, other=0),
        allocation(2, api=API[ContextStep.KEEP]),
        step(ContextStep.RELEASE_DEVICE, 3, other=0),
    )
    assert total(ledger) == 100


def test_a_failed_or_unseen_end_of_a_context_ends_nothing() -> None:
    for columns in ({"status": 1}, {"returned": 0}):
        assert total(ledger_of(allocation(1), step(ContextStep.RESET_CURRENT, 2, **columns))) == 100


# -- physical memory ---------------------------------------------------------------------------------


def created(start: int, handle: int = 7, size: int = 4096, **columns: object) -> object:
    return allocation(start, at=handle, size=size, memory=Memory.PHYSICAL, **columns)


def released(start: int, handle: int = 7) -> object:
    return free(start, at=handle, memory=Memory.PHYSICAL)


MAPPED = [mapping(2, 0x1000, 4096, 7)]


@pytest.mark.parametrize(
    ("calls", "held"),
    [
        ([], 4096),
        ([released(2)], 0),
        ([mapping(2, 0x1000, 4096, 7), released(3)], 4096),
        ([mapping(2, 0x1000, 4096, 7), mapping(3, 0x1000, 4096)], 4096),
        ([mapping(2, 0x1000, 4096, 7), released(3), mapping(4, 0x1000, 4096)], 0),
        ([mapping(2, 0x1000, 4096, 7), mapping(3, 0x1000, 4096), released(4)], 0),
        # Mapped twice, and unmapped in parts.
        (
            [mapping(2, 0x1000, 4096, 7), mapping(3, 0x9000, 4096, 7), released(4), mapping(5, 0x1000, 4096)],
            4096,
        ),
        ([mapping(2, 0x1000, 4096, 7), released(3), mapping(4, 0x1000, 1024), mapping(5, 0x1800, 512)], 4096),
        ([mapping(2, 0x1000, 4096, 7), released(3), mapping(4, 0, 0x1400), mapping(5, 0x1400, 0x9000)], 0),
        # References.
        ([*MAPPED, created(3, size=0, other=0x1000), released(4), mapping(5, 0x1000, 4096)], 4096),
        ([*MAPPED, created(3, size=0, other=0x1000), released(4), mapping(5, 0x1000, 4096), released(6)], 0),
        (
            [
                mapping(2, 0x1000, 4096, 7),
                released(3),
                created(4, 8, 0, other=0x1800),
                mapping(5, 0x1000, 4096),
            ],
            4096,
        ),
        (
            [
                *(mapping(2, 0x1000, 4096, 7), released(3), created(4, 8, 0, other=0x1800)),
                *(mapping(5, 0x1000, 4096), released(6, 8)),
            ],
            0,
        ),
    ],
)
def test_physical_memory_lives_while_it_is_referred_to_or_mapped(calls: list[object], held: int) -> None:
    ledger = ledger_of(created(1), *calls)  # type: ignore[arg-type]
    assert (live(ledger), counted(ledger)) == ({(0, "PHYSICAL"): held} if held else {}, {})


def test_a_late_unmap_does_not_unmap_what_came_after_it() -> None:
    ledger = ledger_of(created(1), mapping(2, 0x1000, 4096, 7), released(3), created(4, 8, 100), now=10)
    ledger.add(concatenate([mapping(20, 0x1000, 4096, 8), released(21, 8)]))  # type: ignore[list-item]
    ledger.settle(30)
    ledger.add(mapping(15, 0x1000, 4096))
    ledger.settle(40)
    assert (total(ledger), counted(ledger)) == (100, {})


def test_a_handle_that_is_given_again_before_its_release_was_reported() -> None:
    ledger = ledger_of(created(1), now=10)
    for row, now in ((created(20, size=5), 25), (released(15), 30)):
        ledger.add(row)  # type: ignore[arg-type]
        ledger.settle(now)
    assert (total(ledger), counted(ledger)) == (5, {})


def test_a_reference_by_a_handle_whose_release_was_not_reported_yet() -> None:
    ledger = ledger_of(created(1, 7), *MAPPED, created(3, 8, size=5), now=10)  # type: ignore[arg-type]
    ledger.add(created(20, 8, size=0, other=0x1000))  # type: ignore[arg-type]
    ledger.settle(30)
    assert total(ledger) == 4096
    ledger.add(concatenate([released(15, 8), released(40, 7), released(41, 8)]))  # type: ignore[list-item]
    ledger.settle(50)
    assert (total(ledger), counted(ledger)) == (4096, {})
    ledger.add(mapping(60, 0x1000, 4096))
    ledger.settle(70)
    assert (total(ledger), counted(ledger)) == (0, {})


def test_memory_of_other_processes_is_mapped_and_released_without_being_ours() -> None:
    ledger = ledger_of(
        allocation(1, at=9, size=0, memory=Memory.IMPORTED), mapping(2, 0x1000, 4096, 9), released(3, 9)
    )  # type: ignore[arg-type]
    assert (total(ledger), counted(ledger)) == (0, {})


def test_a_mapping_of_a_handle_that_was_not_seen_is_counted() -> None:
    ledger = ledger_of(mapping(1, 0x1000, 4096, 9), created(2, 9, 0))  # type: ignore[arg-type]
    assert (total(ledger), counted(ledger)) == (0, {"handle_unknown": 2})


def test_physical_memory_outlives_contexts() -> None:
    ledger = ledger_of(created(1), step(ContextStep.RESET_CURRENT, 2))  # type: ignore[arg-type]
    assert live(ledger) == {(0, "PHYSICAL"): 4096}


# -- sites and leaks ---------------------------------------------------------------------------------


def windows(*calls_of: list[object], now: int = 0) -> MemoryLedger:
    """One list of calls in each window."""
    ledger = MemoryLedger([Decoder()])
    ledger.settle(now)
    for number, rows in enumerate(calls_of):
        for row in rows:
            row["start_ns"] += now + number * WINDOW_NS  # type: ignore[index]
            ledger.add(row)  # type: ignore[arg-type]
        ledger.settle(now + (number + 1) * WINDOW_NS)
    return ledger


def growth(ledger: MemoryLedger) -> dict[int, tuple[int, int]]:
    return {site.caller: (site.growing_windows, site.grown_bytes) for site in ledger.processes[1].sites}


def test_a_site_that_allocates_in_every_window_and_frees_nothing_is_a_suspect() -> None:
    leaking = [[allocation(1, at=1 + n, caller=0xA)] for n in range(LEAK_WINDOWS)]
    assert growth(windows(*leaking)) == {0xA: (LEAK_WINDOWS, LEAK_WINDOWS * 100)}


def test_what_was_allocated_before_the_first_tick_begins_no_window_of_its_own() -> None:
    ledger = ledger_of(allocation(1, caller=0xA), now=10)
    ledger.settle(10 + WINDOW_NS)
    assert growth(ledger) == {0xA: (1, 100)}


def test_one_free_clears_the_site_and_only_it() -> None:
    rows = [[allocation(1, at=1 + n, caller=0xA), allocation(1, at=100 + n, caller=0xB)] for n in range(4)]
    rows[3].append(free(9, at=1))
    assert growth(windows(*rows)) == {0xA: (0, 0), 0xB: (4, 400)}


def test_a_window_without_allocations_clears_the_site() -> None:
    rows = [[allocation(1, at=1, caller=0xA)], [], [allocation(1, at=2, caller=0xA)]]
    assert growth(windows(*rows)) == {0xA: (1, 100)}


# -- bounds ------------------------------------------------------------------------------------------


def test_allocations_beyond_the_bound_are_counted() -> None:
    ledger = ledger_of(*(allocation(n, at=n) for n in range(1, 6)), limit=3)
    assert (total(ledger), counted(ledger)) == (300, {"allocation_not_kept": 2})
    ledger.add(concatenate([free(10, at=1), allocation(11, at=6)]))
    ledger.settle(10**6)
    assert total(ledger) == 300


def test_mappings_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_process, "PIECES", 3)
    rows = [created(1), *(mapping(1 + n, 0x1000 * n, 0x1000, 7) for n in range(1, 4)), created(9, 8)]
    ledger = ledger_of(*rows)  # type: ignore[arg-type]
    assert (total(ledger), counted(ledger)) == (4096, {"allocation_not_kept": 2})


def test_sites_beyond_the_bound_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_process, "SITES", 2)
    ledger = ledger_of(*(allocation(n, at=n, caller=n) for n in range(1, 6)))
    assert {site.caller: site.live_bytes for site in ledger.processes[1].sites} == {1: 100, 2: 100, 0: 300}
    assert counted(ledger) == {"site_not_kept": 3}


def test_every_counter_has_words() -> None:
    ledger = ledger_of(call(OperationKind.FREE, 1, handle=1, returned=0))
    assert set(ledger.counters) == set(COUNTERS)
