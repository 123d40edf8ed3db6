"""What each request was charged is kept in rows that are used again, for as many requests and GPUs as come."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.gpu.energy.accounts import Account, Accounts
from otelgpu.families.gpu.energy.intervals import EnergySource
from otelgpu.families.gpu.energy.sharing import METHODS, NOBODY, Charges, Method

GPUS = ("GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5")
OPEN = range(1, 201)


def charge(accounts: Accounts, uuid: str, *rows: tuple[int, int], method: Method = Method.STEPS) -> int:
    keys, nanojoules = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    methods = np.full(len(rows), METHODS.index(method), dtype=np.int64)
    found = Charges(keys, nanojoules, nanojoules // 10, methods)
    return accounts.charge(uuid, found, OPEN, idle_power="measured", source=EnergySource.POWER)


def test_an_account_says_how_much_by_which_gpu_by_which_method_and_how_it_is_known() -> None:
    accounts = Accounts()
    assert charge(accounts, "GPU-1", (1, 100), (2, 50), (1, 10)) == 0
    charge(accounts, "GPU-2", (1, 30), method=Method.CALLS)
    account = accounts.close(1)
    assert account is not None
    assert (account.nanojoules, account.time_ns, account.method) == (140, 14, Method.STEPS)
    assert account.by_device == {"GPU-1": 110, "GPU-2": 30}
    assert account.by_method == {**dict.fromkeys(Method, 0), Method.STEPS: 110, Method.CALLS: 30}
    assert (account.idle_power, account.source) == ("measured", EnergySource.POWER)
    assert accounts.close(1) is None


@pytest.mark.parametrize("key", [NOBODY, -7, 201])
def test_what_is_charged_to_no_open_request_is_nobodys(key: int) -> None:
    accounts = Accounts()
    assert charge(accounts, "GPU-1", (key, 5), (1, 7), (key, 1)) == 6
    assert accounts.close(key) is None


@given(
    st.lists(st.tuples(st.sampled_from(GPUS), st.sampled_from(OPEN), st.integers(0, 10**15), st.booleans()))
)
def test_rows_are_as_many_as_are_needed_and_hold_nothing_of_who_had_them_before(events: list) -> None:
    accounts, expected = Accounts(), {key: Counter() for key in OPEN}
    for key in OPEN:  # more than there are rows at first
        charge(accounts, "GPU-1", (key, 1))
        expected[key]["GPU-1"] += 1
    for uuid, key, nanojoules, closes in events:
        charge(accounts, uuid, (key, nanojoules))
        expected[key][uuid] += nanojoules
        if closes:
            account = accounts.close(key)
            assert account is not None and account.by_device == +expected[key]
            expected[key].clear()
    left = {key: accounts.close(key) or Account() for key in OPEN}
    assert {key: account.nanojoules for key, account in left.items()} == {
        key: expected[key].total() for key in OPEN
    }
