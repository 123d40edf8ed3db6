"""What stands out in profiles, and what changed between two."""

from __future__ import annotations

from typing import Any

import numpy as np

from otelgpu.model.profiles import FrameType, Function, Line, Location, ProfileColumns, ValueType
from otelgpu.model.spans import Attribute, Text
from otelgpu.render.profile_changes import changes
from otelgpu.render.profile_totals import UNKNOWN, KindTotals, SpentAt, totals
from tests.unit.export.profile_builders import samples

CPU = ValueType(type="cpu", unit="nanoseconds")
FUNCTIONS = (
    Function(name="train", system_name="", file_name="/srv/loop.py"),
    Function(name="write", system_name="write", file_name=""),
    Function(name="matmul", system_name="_Z6matmulv", file_name=""),
)
PYTHON = Location(frame_type=FrameType.PYTHON, mapping=None, address=0, lines=(Line(function=0, line=12),))
WRITE = Location(frame_type=FrameType.NATIVE, mapping=None, address=1, lines=(Line(function=1, line=0),))
MATMUL = Location(frame_type=FrameType.NATIVE, mapping=None, address=2, lines=(Line(function=2, line=0),))
NAMELESS = Location(frame_type=FrameType.NATIVE, mapping=None, address=0xABC, lines=())


def cpu(values: list[int], stacks: list[tuple[int, ...]], **columns: Any) -> ProfileColumns:
    """Row i is ``values[i]`` under ``stacks[i]``, positions in (PYTHON, WRITE, MATMUL, NAMELESS)."""
    return samples(
        len(values),
        **{
            "sample_type": CPU,
            "value": np.array(values, dtype=np.int64),
            "stack": np.arange(len(values)),  # a stack beyond them is not used
            "stacks": tuple(stacks),
            "locations": (PYTHON, WRITE, MATMUL, NAMELESS),
            "functions": FUNCTIONS,
            **columns,
        },
    )


def test_a_place_is_the_innermost_frame_and_the_innermost_python_line() -> None:
    (kind,) = totals([cpu([30, 10], [(1, 0), (2, 0)])])
    assert kind.places == [
        SpentAt(leaf="write", line="loop.py:12 train", value=30, samples=1),
        SpentAt(leaf="matmul", line="loop.py:12 train", value=10, samples=1),
    ]


def test_waits_at_one_place_are_parted_by_the_state_of_the_thread() -> None:
    words = Text.of(["interruptible", "runnable", "interruptible", "new to us"])
    state = Attribute(key="otelgpu.thread.state", values=words)
    (kind,) = totals([cpu([5, 30, 2, 1], [(1,), (1,), (1,), (1,)], attributes=(state,))])
    assert [(place.state, place.value, place.samples) for place in kind.places] == [
        *(("runnable", 30, 1), ("sleeping", 7, 2), ("", 1, 1))
    ]


def test_batches_of_one_kind_are_summed_and_the_largest_comes_first() -> None:
    (kind,) = totals([cpu([5, 1], [(1,), (2,)]), cpu([9], [(2,)])])
    assert (kind.value, kind.samples) == (15, 3)
    assert [(place.leaf, place.value) for place in kind.places] == [("matmul", 10), ("write", 5)]


def test_kinds_are_kept_apart() -> None:
    wait = ValueType(type="off_cpu", unit="nanoseconds")
    kinds = totals([cpu([1], [(1,)]), cpu([2], [(1,)], sample_type=wait)])
    assert [(kind.type, kind.value) for kind in kinds] == [("cpu", 1), ("off_cpu", 2)]


def test_what_has_no_stack_and_what_has_no_name_are_said() -> None:
    (kind,) = totals([cpu([2, 1], [(), (3,)])])
    assert [place.leaf for place in kind.places] == [UNKNOWN, "0xabc"]


def test_sums_are_exact_beyond_what_a_float_holds() -> None:
    (kind,) = totals([cpu([2**60, 1], [(1,), (1,)])])
    assert kind.value == 2**60 + 1


def test_stacks_that_no_row_uses_are_no_places() -> None:
    (kind,) = totals([cpu([4], [(1,), (2,)])])
    assert [place.leaf for place in kind.places] == ["write"]


def kind_totals(**values: int) -> list[KindTotals]:
    places = [SpentAt(leaf=leaf, line="", value=value, samples=1) for leaf, value in values.items()]
    return [KindTotals(type="cpu", unit="nanoseconds", value=sum(values.values()), samples=1, places=places)]


def test_a_longer_session_is_no_change_when_normalised() -> None:
    (kind,) = changes(kind_totals(a=10, b=30), kind_totals(a=20, b=60), normalise=True)
    assert [change.difference for change in kind.changes] == [0, 0]
    assert (kind.before, kind.after) == (40, 80)


def test_as_measured_it_is() -> None:
    (kind,) = changes(kind_totals(a=10, b=30), kind_totals(a=20, b=60), normalise=False)
    assert [(change.leaf, change.difference) for change in kind.changes] == [("b", 30), ("a", 10)]


def test_what_is_new_and_what_is_gone_are_changes() -> None:
    (kind,) = changes(kind_totals(a=10), kind_totals(b=10), normalise=True)
    assert {change.leaf: change.difference for change in kind.changes} == {"a": -10, "b": 10}


def test_a_kind_that_only_one_has_is_reported() -> None:
    (kind,) = changes([], kind_totals(a=10), normalise=True)
    assert (kind.before, kind.after) == (0, 10)


def test_rows_under_one_stack_are_added_up() -> None:
    (kind,) = totals([cpu([3, 4, 5], [(1,), (2,)], stack=np.array([0, 1, 0]))])
    assert [(place.leaf, place.value, place.samples) for place in kind.places] == [
        ("write", 8, 2),
        ("matmul", 4, 1),
    ]
