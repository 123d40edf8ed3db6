"""How durations are written side by side, and what is summed of a span with very many others under it."""

from __future__ import annotations

import json

import pytest

from tests.unit.view.page_program import PageProgram

MANY = """(() => {
  const rows = Array.from({ length: 300000 }, (_, row) => row);
  const model = { trace: () => 0, rowsOfTrace: [rows], parent: (row) => (row ? 0 : NO_ROW), start: (row) => row };
  return [rowsUnder(model, 0).length, rowsUnder(model, 0, 10, 19).length, rowsUnder(model, 7).length];
})()"""


def test_as_many_spans_as_there_may_be_are_summed(program: PageProgram) -> None:
    assert program.ask(MANY) == [300_000, 10, 1]


@pytest.mark.parametrize(
    ("durations", "shown"),
    [
        ([950_000, 12_000_000], ["0.950 ms", "12.0 ms"]),
        ([0, 5], ["0", "5.00 ns"]),
        ([100, 9_000_000_000], ["100 ns", "9.00 s"]),  # nobody reads 0.000000100 s
        ([], []),
    ],
)
def test_durations_side_by_side_have_one_unit_while_that_can_be_read(
    program: PageProgram, durations: list[int], shown: list[str]
) -> None:
    given = json.dumps(durations)
    assert program.ask(f"{given}.map(formatTogether({given}))") == shown


@pytest.mark.parametrize(
    ("longest", "step", "times", "shown"),
    [
        (5_000_000_000, 1_000_000_000, [0, 2_000_000_000], ["0 s", "2 s"]),
        (30_000_000, 5_000_000, [5_000_000], ["5 ms"]),
        (1_500_000, 500_000, [500_000, 1_000_000], ["0.5 ms", "1.0 ms"]),
        (612_345_678_901, 1, [612_345_678_901], ["612.345678901 s"]),
    ],
)
def test_ticks_have_the_digits_that_tell_them_apart(
    program: PageProgram, longest: int, step: int, times: list[int], shown: list[str]
) -> None:
    assert program.ask(f"{json.dumps(times)}.map(formatTicks({longest}, {step}))") == shown
