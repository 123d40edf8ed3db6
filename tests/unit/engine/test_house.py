"""What the house costs a record, held where it is: ``python -m tests.house`` prints it, ``-v`` with the files."""

from __future__ import annotations

import pytest

from tests import house

REACHED = {"one launch": 25, "one HTTP exchange": 49, "one NCCL call": 40}
"""Files; :data:`tests.house.BUDGET` is what was wanted. Who gets below takes the new number over."""


@pytest.mark.parametrize("what", REACHED)
def test_a_record_goes_through_no_more_files_than_it_did(what: str) -> None:
    assert len(house.files_entered()[what]) <= REACHED[what]


def test_only_what_was_fed_is_entered() -> None:
    """A launch without a request, rank or device time does not enter the families of those."""
    entered = house.files_entered()["one launch"]
    assert "families/gpu/cuda/decode.py" in entered
    others = (
        "families/requests",
        "families/nccl",
        "families/rdma",
        "families/profiles",
        "families/steps",
        "families/gpu/memory",
    )
    assert [name for name in entered if name.startswith(others)] == []
