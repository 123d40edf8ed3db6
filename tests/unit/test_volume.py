"""The arithmetic of spans that a fleet sends."""

from __future__ import annotations

import pytest

from tools.volume import Fleet, volume


def test_each_policy_sends_what_its_terms_add_up_to() -> None:
    fleet = Fleet(gpus=8, launches=50_000, requests=200, spans_of_request=3, folded=24, wanted=0.02)
    assert fleet.sent(folds=False) == 8 * 50_000 + 200 * 3
    assert fleet.sent() == 200 * 27
    assert fleet.sent(ratio=0.05) == round((0.05 + 0.95 * 0.02) * 5400)
    assert fleet.sent(ratio=0.0) == 108  # the wanted ones are kept all the same


@pytest.mark.parametrize(("limit", "sent"), [(0, 5400), (2000, 2000), (6000, 5400)])
def test_a_limit_holds_where_it_is_reached(limit: int, sent: int) -> None:
    assert Fleet(requests=200, spans_of_request=3, folded=24).sent(limit=limit) == sent


def test_what_receives_and_stores_them_grows_with_nodes_and_spans() -> None:
    fleet = Fleet(nodes=1000, collector=300_000, stored=32)
    assert fleet.cores(2000) == 7  # 2 M a second
    assert fleet.cores(1) == 1
    assert fleet.stored_a_day(2000) == 2_000_000 * 32 * 86_400


def test_the_table_is_of_the_fleet_that_is_assumed() -> None:
    assert "| 400,600 | 400.6 M | 1,336 | 1,107.6 TB |" in volume()
