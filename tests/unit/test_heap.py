"""Memory is given back where the C library can."""

from __future__ import annotations

import pytest

from otelgpu.kernel import heap


def test_free_memory_is_asked_for_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(heap, "_trim", lambda: asked.append)
    heap.give_back()
    assert asked == [0]


def test_another_c_library_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_trim", lambda: None)
    heap.give_back()
