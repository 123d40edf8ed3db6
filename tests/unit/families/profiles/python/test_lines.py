"""Line tables, compared with what each interpreter says of its own code, and damaged ones."""

from __future__ import annotations

import dis
import json
import types
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.profiles.python.lines import MAX_LINE, Range, line_table, ranges
from tests.rig.examples import examples
from tests.rig.pythons import Python, pythons

# Tables of all code in some modules: (table, first line, bytes of code, [(offset, line), ...] where lines begin).
DUMP = """
import dis, json, sys
import ast, argparse, asyncio.base_events, collections, functools, typing, threading
def codes(code):
    yield code
    for each in code.co_consts:
        if hasattr(each, "co_code"):
            yield from codes(each)
out = []
for name in ("ast", "argparse", "asyncio.base_events", "collections", "functools", "typing", "threading"):
    file = sys.modules[name].__file__
    for code in codes(compile(open(file, encoding="utf-8").read(), file, "exec")):
        if hasattr(code, "co_lines"):
            lines = [[a, b, line] for a, b, line in code.co_lines()]
        else:
            starts = list(dis.findlinestarts(code)) + [(len(code.co_code), None)]
            lines = [[a, b, line] for (a, line), (b, _) in zip(starts, starts[1:])]
        table = code.co_linetable if hasattr(code, "co_linetable") else code.co_lnotab
        out.append([table.hex(), code.co_firstlineno, len(code.co_code), lines])
print(json.dumps(out))
"""


@pytest.mark.slow
@pytest.mark.parametrize("python", pythons(), ids=str)
def test_each_instruction_has_the_line_that_its_interpreter_says(python: Python) -> None:
    tables = json.loads(python.run(DUMP))
    assert len(tables) > 500
    for hexadecimal, first, size, lines in tables:
        table = line_table(bytes.fromhex(hexadecimal), first, python.minor)
        for start, end, line in lines:
            if line is None:
                continue
            for offset in range(start, min(end, size), 2):
                assert table.line_at(offset) == line, (hexadecimal, first, offset)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from codes(each)


def joined(found: Iterable[Range]) -> list[Range]:
    """With one range where neighbours are of one line, as some versions' ``co_lines()`` has them."""
    out: list[Range] = []
    for start, end, line in found:
        if out and out[-1][2] == line:
            start = out.pop()[0]
        out.append((start, end, line))
    return out


statements = st.recursive(
    st.sampled_from(
        ["x = 1", "f(x,\n  y,\n  z)", "return x", "'text\\\n'", "x = [i for i\n in y]", "lambda: (\n\n 1)"]
    ),
    lambda inner: st.one_of(
        inner.map(lambda text: "if x:\n" + indented(text)),
        inner.map(lambda text: "for x in y:\n\n" + indented(text)),
        inner.map(lambda text: "try:\n" + indented(text) + "\nfinally:\n" + indented(text)),
        inner.map(lambda text: "with x:\n" + indented(text)),
        inner.map(lambda text: "def g():\n" + indented(text)),
        st.tuples(inner, inner).map(lambda pair: "\n" * 3 + "\n".join(pair)),
        inner.map(lambda text: text + "\n" * 300 + "x"),
    ),
    max_leaves=6,
)


def indented(text: str) -> str:
    return "\n".join(f" {line}" if line else line for line in text.split("\n"))


@given(statements)
@examples(150)
def test_ranges_are_those_of_co_lines(text: str) -> None:
    for code in codes(compile(f"def f(x, y, z):\n{indented(text)}\n", "generated", "exec")):
        found = ranges(code.co_linetable, code.co_firstlineno, 11)
        assert joined(found) == joined(code.co_lines())
        starts = dict(dis.findlinestarts(code))
        table = line_table(code.co_linetable, code.co_firstlineno, 11)
        assert {at: table.line_at(at) for at in starts} == starts


def test_an_instruction_before_the_first_is_of_the_first_line() -> None:
    def function() -> None:
        raise AssertionError

    code = function.__code__
    table = line_table(code.co_linetable, code.co_firstlineno, 11)
    assert table.line_at(-2) == code.co_firstlineno


def test_code_of_no_line_has_the_line_before() -> None:
    # 3.10: 4 bytes of line 7, 4 of none, 4 of line 9
    table = line_table(bytes((4, 0, 4, 0x80, 4, 2)), 7, 10)
    assert [table.line_at(offset) for offset in (0, 4, 8, 100)] == [7, 7, 9, 9]


@given(st.binary(max_size=300), st.integers(0, MAX_LINE), st.integers(9, 14), st.integers(-4, 5000))
def test_damaged_tables_give_some_line(table: bytes, first: int, minor: int, offset: int) -> None:
    assert 0 <= line_table(table, first, minor).line_at(offset) <= MAX_LINE
