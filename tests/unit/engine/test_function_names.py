"""Names by index, and functions by process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.engine import function_names
from otelgpu.engine.function_names import FunctionNames
from otelgpu.model.inputs import FunctionNamed


def named(
    name: str, *, tgid: int = 7, address: int = 0x10, known: bool = True, **place: Any
) -> FunctionNamed:
    return FunctionNamed(tgid=tgid, address=address, name=name, known=known, **place)


def test_a_name_has_one_index_whoever_has_it() -> None:
    names = FunctionNames(str.upper)
    assert names.learn(named("gemm"))
    assert names.learn(named("gemm", tgid=8, address=0x20))
    assert (names.full, names.short) == (["[unknown]", "gemm"], ["[unknown]", "GEMM"])
    assert (names.index(7, 0x10), names.index(8, 0x20), names.index(8, 0x10)) == (1, 1, 0)


def test_kernels_without_a_name_are_called_alike_and_told_apart_by_where_they_are() -> None:
    names = FunctionNames(str.upper)
    answers = [
        named("libx.so+0x10", address=address, known=False, module="libx.so", build_id=build_id, offset=0x10)
        for address, build_id in ((0x10, "ab"), (0x11, "cd"), (0x12, "ab"))
    ]
    assert all(map(names.learn, answers))
    assert names.full == names.short == ["[unknown]"] * 3
    assert names.places == {1: answers[0], 2: answers[1]}
    assert [names.index(7, address) for address in (0x10, 0x11, 0x12)] == [1, 2, 1]
    assert names.name(7, 0x10) == "libx.so+0x10"  # of a call site


def test_a_column_is_reported_as_one_function_is() -> None:
    names = FunctionNames(str)
    names.learn(named("a", address=0x10))
    names.learn(named("b", address=0x20))
    addresses = np.array([0x20, 0x30, 0x10], dtype=np.uint64)
    assert names.indices(7, addresses).tolist() == [2, 0, 1]
    assert names.indices(9, addresses).tolist() == [0, 0, 0]
    assert [names.name(7, address) for address in addresses.tolist()] == ["b", "[unknown]", "a"]


def test_a_process_that_is_forgotten_has_no_functions() -> None:
    names = FunctionNames(str)
    names.learn(named("a"))
    names.forget(7)
    assert (names.name(7, 0x10), names.full) == ("[unknown]", ["[unknown]", "a"])


def test_places_without_a_name_do_not_take_the_room_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_names, "PLACES", 1)
    names = FunctionNames(str)
    assert [names.learn(named(name, known=False)) for name in ("x+0x1", "x+0x2", "x+0x1")] == [
        True,
        False,
        True,
    ]
    assert names.learn(named("a"))
    assert names.full == ["[unknown]", "[unknown]", "a"]


def test_a_name_without_room_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_names, "NAMES", 2)
    names = FunctionNames(str)
    assert [names.learn(named(name, address=ord(name))) for name in "aba"] == [True, False, True]
    assert [names.name(7, ord(name)) for name in "ab"] == ["a", "[unknown]"]
