"""Tests of what owners may have: whoever runs them owns something, root at the root of all cgroups too."""

from __future__ import annotations

import pytest

from otelgpu.processes.reader import accounts


@pytest.fixture(autouse=True)
def everybody_has_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "_ROOT", frozenset())
