"""What addresses are called: the answers of a dict, a column at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.function_names import AddressCodes

ADDRESSES = st.integers(0, 2**64 - 1) | st.integers(0, 40).map(lambda n: 0x55AA_0000_0000 + 16 * n)


@given(
    st.dictionaries(ADDRESSES, st.integers(1, 2**32 - 1), max_size=60),
    st.lists(ADDRESSES, max_size=60),
)
def test_codes_are_those_of_a_dict(known: dict[int, int], others: list[int]) -> None:
    addresses = AddressCodes()
    for address, code in known.items():
        addresses[address] = code
    asked = [*known, *others, *known]
    answers = addresses.codes(np.array(asked, dtype=np.uint64))
    assert answers.tolist() == [known.get(address, 0) for address in asked]


def test_a_name_may_change_and_others_come() -> None:
    addresses = AddressCodes()
    asked = np.array([16, 32], dtype=np.uint64)
    assert addresses.codes(asked).tolist() == [0, 0]
    addresses[16] = 1
    assert addresses.codes(asked).tolist() == [1, 0]
    addresses[16], addresses[32] = 3, 2
    assert addresses.codes(asked).tolist() == [3, 2]


def test_addresses_of_one_place_are_reported_apart() -> None:
    crowd = np.random.default_rng(1).integers(0, 2**63, 4096).astype(np.uint64)
    addresses = AddressCodes()
    for code, address in enumerate(crowd.tolist(), start=1):
        addresses[address] = code
    assert addresses.codes(crowd).tolist() == list(range(1, len(crowd) + 1))
    assert len(np.unique(addresses._places(crowd))) < len(crowd)
