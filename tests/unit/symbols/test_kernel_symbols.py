"""/proc/kallsyms as a table: true, small, and without what is hidden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.symbols import kernel_symbols
from otelgpu.symbols.kernel_symbols import KernelSymbols, probe_frames

BASE = 0xFFFFFFFF81000000
TEXT = f"""\
{BASE:016x} T _stext
{BASE + 0x100:016x} t helper
{BASE + 0x200:016x} D some_data
{BASE + 0x300:016x} t local_alias
{BASE + 0x300:016x} T vfs_write
{BASE + 0x400:016x} W weak_one
{BASE + 0x1000000:016x} t uvm_ioctl\t[nvidia_uvm]
{BASE + 0x1000800:016x} t bpf_prog_6deef7357e7b4530_cpu_sample\t[bpf]
"""


def test_a_function_reaches_to_the_next() -> None:
    symbols = KernelSymbols(TEXT.encode())
    assert symbols.name_at(BASE + 0x100) == ("helper", "kernel")
    assert symbols.name_at(BASE + 0x2FF) == ("helper", "kernel")  # data is no function
    assert symbols.name_at(BASE + 0x1000000 + 5) == ("uvm_ioctl", "nvidia_uvm")
    assert symbols.name_at(BASE + 0x1000801) == ("bpf_prog_6deef7357e7b4530_cpu_sample", "bpf")
    assert not symbols.is_hidden


def test_of_two_names_the_global_one_counts() -> None:
    assert KernelSymbols(TEXT.encode()).name_at(BASE + 0x310) == ("vfs_write", "kernel")


def test_what_lies_before_the_first_or_far_behind_has_no_name() -> None:
    symbols = KernelSymbols(TEXT.encode())
    assert symbols.name_at(BASE - 1) is None
    assert symbols.name_at(BASE + 0x400 + (2 << 20)) is None
    assert symbols.name_at(2**64 - 1) is None
    assert symbols.name_at(0) is None


def test_modules_in_any_order_and_far_apart_are_found() -> None:
    text = "ffffffffa0000000 t late\t[m]\nffff800008000000 T early\nffff800008000100 T other\n"
    symbols = KernelSymbols(text.encode())
    assert symbols.name_at(0xFFFF800008000010) == ("early", "kernel")
    assert symbols.name_at(0xFFFFFFFFA0000001) == ("late", "m")


def test_hidden_addresses_are_reported_and_give_no_names() -> None:
    symbols = KernelSymbols(b"0000000000000000 T _stext\n0000000000000000 t helper\n")
    assert symbols.is_hidden and len(symbols) == 0
    assert symbols.name_at(0) is None and symbols.name_at(BASE) is None


@pytest.mark.slow
def test_a_large_kernel_stays_below_six_mebibytes() -> None:
    rows = [
        f"{BASE + 16 * n:016x} t some_subsystem_function_{n:x}_{n * 7919 % 65537}\n" for n in range(300_000)
    ]
    symbols = KernelSymbols("".join(rows).encode())
    assert symbols.size_bytes < 6 << 20
    assert symbols.name_at(BASE + 16 * 299_999) == (rows[-1].split()[2], "kernel")
    assert symbols.name_at(BASE + 16 * 255 + 15) == (rows[255].split()[2], "kernel")


def test_no_more_are_read_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_symbols, "MAX_SYMBOLS", 100)
    assert len(KernelSymbols("".join(f"{BASE + n:x} t f{n}\n" for n in range(200)).encode())) == 100


@given(st.lists(st.binary(max_size=60), max_size=30).map(b"\n".join), st.integers(0, 2**64))
def test_any_text_is_read(text: bytes, address: int) -> None:
    KernelSymbols(text).name_at(address)


@given(st.dictionaries(st.integers(1, 2**64 - 1), st.from_regex(r"[a-z_]{1,20}", fullmatch=True), min_size=1))
def test_every_function_is_found_at_its_own_address(functions: dict[int, str]) -> None:
    symbols = KernelSymbols("".join(f"{at:016x} t {name}\n" for at, name in functions.items()).encode())
    for address, name in functions.items():
        assert symbols.name_at(address) == (name, "kernel")


def test_the_program_that_took_a_stack_is_no_part_of_it() -> None:
    way_in = [
        "bpf_prog_6deef7357e7b4530_offcpu_switch",
        "bpf_trampoline_6442536467",
        "__bpf_trace_sched_switch",
    ]
    assert probe_frames([*way_in, "vfs_read", "bpf_prog_6deef7357e7b4530_offcpu_switch"]) == 3
    assert probe_frames(["bpf_prog_0_walk", *way_in]) == 4
    assert probe_frames(way_in) == 3


def test_the_scheduler_is_no_part_of_what_a_thread_waits_for() -> None:
    way_in = ["bpf_prog_6deef7357e7b4530_offcpu_switch", "bpf_trace_run4", "__traceiter_sched_switch"]
    waiting = ["__schedule", "schedule", "schedule_hrtimeout_range_clock", "do_epoll_wait"]
    assert probe_frames([*way_in, *waiting]) == len(way_in) + 3
    assert probe_frames([*way_in, "__schedule", "preempt_schedule_irq", "irqentry_exit"]) == len(way_in) + 2
    assert probe_frames(waiting) == 0  # on the processor: somebody is just scheduling


def test_a_program_of_somebody_else_is_part_of_what_a_thread_did() -> None:
    assert probe_frames(["bpf_prog_6deef7357e7b4530_their_program", "bpf_trampoline_1", "vfs_read"]) == 0
    assert probe_frames(["vfs_read", "bpf_prog_6deef7357e7b4530_offcpu_switch"]) == 0
    assert probe_frames([]) == 0
