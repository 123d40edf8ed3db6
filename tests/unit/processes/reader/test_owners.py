"""Whose processes are: asked once a second for each, and of those that are gone nothing is kept."""

from __future__ import annotations

import pytest

from otelgpu.processes.reader import accounts
from otelgpu.processes.reader.accounts import Owner, Owners


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes whose owners were looked up."""
    found: list[int] = []

    def owner_of(tgid: int, **_: object) -> Owner:
        found.append(tgid)
        return ("/tenant", tgid)

    monkeypatch.setattr(accounts, "owner_of", owner_of)
    return found


def test_an_owner_holds_for_a_second(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [10.0]
    monkeypatch.setattr(accounts.time, "monotonic", lambda: now_s[0])
    owners = Owners()
    for now_s[0] in (10.0, 10.5, 10.9, 11.5, 12.0):
        assert owners.of(7) == ("/tenant", 7)
    assert asked == [7, 7]


def test_processes_that_come_and_go_leave_no_more_than_those_of_two_seconds(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [10.0]
    monkeypatch.setattr(accounts.time, "monotonic", lambda: now_s[0])
    owners = Owners()
    for tgid in range(1000):
        owners.of(tgid)
        now_s[0] += 0.1
    assert len(owners._known) <= 21
    assert owners.of(999) == ("/tenant", 999)
