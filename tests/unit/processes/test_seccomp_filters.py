"""Seccomp filters, run on calls that are not made: as the kernel runs them, and what they mean for a library."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otelgpu.processes.live_injection import needed_calls, seccomp
from otelgpu.processes.live_injection.needed_calls import why_not_allowed
from otelgpu.processes.live_injection.seccomp import BadFilter, NotKnown, result_of
from tests.rig.examples import examples
from tests.rig.seccomp_answers import PROBE, Kernel

ENOSYS = 38
Instruction = tuple[int, int, int, int]

LOAD_NUMBER: Instruction = (0x20, 0, 0, 0)
TO_8_BITS: list[Instruction] = [
    *((0x07, 0, 0, 0), (0x74, 0, 0, 16), (0xAC, 0, 0, 0)),  # A ^= A >> 16
    *((0x07, 0, 0, 0), (0x74, 0, 0, 8), (0xAC, 0, 0, 0)),
    *((0x54, 0, 0, 0xFF), (0x44, 0, 0, seccomp.ERRNO), (0x16, 0, 0, 0)),
]


def assembled(instructions: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("<HBBI", *each) for each in instructions)


def returning(result: int) -> Instruction:
    return (0x06, 0, 0, result)


def answering(**results: int) -> bytes:
    """A filter with a result for each name, and ``rest`` for all others."""
    numbers = {name: number for name, number, _ in (*needed_calls.NEEDED, *needed_calls.TOLERATED)}
    code = [LOAD_NUMBER]
    for name, result in results.items():
        if name != "rest":
            code += [(0x15, 0, 1, numbers[name]), returning(result)]
    return assembled([*code, returning(results.get("rest", seccomp.ALLOW))])


# -- as the kernel runs them ------------------------------------------------------------------------

words = st.one_of(st.integers(0, 40), st.integers(0, 0xFFFF_FFFF))
known = st.sampled_from([0, 4, *range(16, 64, 4)])
moves: st.SearchStrategy[Instruction] = st.one_of(
    st.tuples(st.just(0x20), st.just(0), st.just(0), known),
    st.tuples(st.sampled_from([0x00, 0x01]), st.just(0), st.just(0), words),
    st.tuples(st.sampled_from([0x80, 0x81, 0x07, 0x87, 0x84]), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.sampled_from([0x02, 0x03, 0x60, 0x61]), st.just(0), st.just(0), st.integers(0, 15)),
    st.tuples(st.sampled_from([0x04, 0x14, 0x24, 0x44, 0x54, 0xA4]), st.just(0), st.just(0), words),
    st.tuples(st.sampled_from([0x64, 0x74]), st.just(0), st.just(0), st.integers(0, 31)),
    st.tuples(st.just(0x34), st.just(0), st.just(0), st.integers(1, 0xFFFF_FFFF)),
    st.tuples(
        st.sampled_from([0x0C, 0x1C, 0x2C, 0x3C, 0x4C, 0x5C, 0x6C, 0x7C, 0xAC]),
        *(st.just(0), st.just(0), st.just(0)),
    ),
    st.tuples(
        st.sampled_from([0x15, 0x25, 0x35, 0x45, 0x1D, 0x2D, 0x3D, 0x4D]),
        *(st.integers(0, 3), st.integers(0, 3), words),
    ),
    st.tuples(st.just(0x05), st.just(0), st.just(0), st.integers(0, 3)),
)
FILLED: list[Instruction] = [(0x02, 0, 0, index) for index in range(16)]
"""The kernel refuses to load what was not stored."""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with Kernel() as asked:
        yield asked


SHIFTED_FAR: list[Instruction] = [(0x00, 0, 0, 0xDEADBEEF), (0x01, 0, 0, 37), (0x7C, 0, 0, 0)]
DIVIDED_BY_NOTHING: list[Instruction] = [(0x00, 0, 0, 7), (0x01, 0, 0, 0), (0x3C, 0, 0, 0)]


@examples(80)
@example(SHIFTED_FAR, [0] * 6)
@example(DIVIDED_BY_NOTHING, [0] * 6)
@example([(0x20, 0, 0, 60), (0x2C, 0, 0, 0), (0x84, 0, 0, 0)], [2**63] * 6)
@given(st.lists(moves, max_size=24), st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6))
def test_a_filter_gives_what_the_kernel_gives(
    kernel: Kernel, body: list[Instruction], arguments: list[int]
) -> None:
    slack: list[Instruction] = [(0x44, 0, 0, 0)] * 4  # what jumps of the last ones may skip: A |= 0
    own = [LOAD_NUMBER, (0x15, 1, 0, PROBE), returning(seccomp.ALLOW)]
    program = assembled([*own, *FILLED, *body, *slack, *TO_8_BITS])
    expected = kernel.answer(program, arguments)
    result = result_of([program], PROBE, arguments)
    if expected is None:
        assert result == seccomp.KILL_THREAD
    else:
        assert result == seccomp.ERRNO | expected


def test_of_several_filters_the_one_that_allows_least_decides() -> None:
    order = [
        *(seccomp.KILL_PROCESS, seccomp.KILL_THREAD, seccomp.TRAP, seccomp.ERRNO | 5),
        *(seccomp.USER_NOTIF, seccomp.TRACE, seccomp.LOG, seccomp.ALLOW),
    ]
    programs = [assembled([returning(each)]) for each in order]
    for index, result in enumerate(order):
        assert result_of(programs[index:][::-1], PROBE) == result
    assert result_of([], PROBE) == seccomp.ALLOW


def test_what_is_not_known_of_a_call_is_not_guessed() -> None:
    on_first = assembled([(0x20, 0, 0, 16), (0x16, 0, 0, 0)])
    assert result_of([on_first], PROBE, (7,)) == 7
    with pytest.raises(NotKnown):
        result_of([on_first], PROBE)
    with pytest.raises(NotKnown):  # where it is made from
        result_of([assembled([(0x20, 0, 0, 8), (0x16, 0, 0, 0)])], PROBE, (7,) * 6)


@given(st.lists(st.tuples(*(st.integers(0, 0xFFFF), *[st.integers(0, 255)] * 2, words)), max_size=20))
def test_any_bytes_have_a_result_or_an_error(program: list[Instruction]) -> None:
    try:
        assert 0 <= result_of([assembled(program)], PROBE, (1,) * 6) <= 0xFFFF_FFFF
    except (BadFilter, NotKnown):
        pass
    with pytest.raises(BadFilter):
        result_of([assembled(program) + b"\0"], PROBE)


# -- what they mean for a library -------------------------------------------------------------------


def test_a_filter_that_allows_all_that_is_needed_is_no_hindrance() -> None:
    assert why_not_allowed([answering()]) is None
    needed = {name: seccomp.ALLOW for name, _, _ in needed_calls.NEEDED}
    assert why_not_allowed([answering(**needed, rest=seccomp.ERRNO | ENOSYS)]) is None
    assert why_not_allowed([answering(rest=seccomp.LOG)]) is None


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ({"socketpair": seccomp.ERRNO | 1}, "system call socketpair is refused to it"),
        ({"socketpair": seccomp.KILL_PROCESS}, "system call socketpair would end it"),
        ({"clone3": seccomp.ERRNO | 1}, "system call clone3 is refused to it"),
        ({"readlink": seccomp.TRAP}, "system call readlink would end it"),
        ({"openat": seccomp.USER_NOTIF}, "another process decides about system call openat"),
        ({"openat": seccomp.TRACE}, "another process decides about system call openat"),
    ],
)
def test_the_call_that_stands_in_the_way_is_named(results: dict[str, int], why: str) -> None:
    assert why_not_allowed([answering(), answering(**results)]) == why


def test_a_filter_that_ends_a_process_for_what_it_does_not_list_is_a_hindrance() -> None:
    listed = {name: seccomp.ALLOW for name, _, _ in (*needed_calls.NEEDED, *needed_calls.TOLERATED)}
    del listed["of a number that no call has"]
    why = why_not_allowed([answering(**listed, rest=seccomp.KILL_PROCESS)])
    assert why == "system call of a number that no call has would end it"


def test_code_that_may_not_become_executable_and_other_conditions_are_seen() -> None:
    no_code = assembled(
        [
            *(LOAD_NUMBER, (0x15, 0, 3, 9)),
            *((0x20, 0, 0, 32), (0x45, 0, 1, 4), returning(seccomp.ERRNO | 1)),
            returning(seccomp.ALLOW),
        ]
    )
    assert why_not_allowed([no_code]) == "system call mmap is refused to it"
    by_descriptor = assembled(
        [LOAD_NUMBER, (0x15, 0, 3, 0), (0x20, 0, 0, 16), (0x15, 0, 1, 5), *[returning(seccomp.ALLOW)] * 2]
    )
    assert "system call read depends on what is not known" in (why_not_allowed([by_descriptor]) or "")
    assert "not understood" in (why_not_allowed([b"\0"]) or "")
