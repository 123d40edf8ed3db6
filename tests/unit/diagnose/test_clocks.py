"""Clocks that are off and drift by known amounts are found in events of which few are shared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.diagnose.clocks import Clocks, solve
from tests.rig.examples import examples

S = 1_000_000_000


class Truth:
    """H hosts whose clocks are up to ``skew_ns`` off and gain up to ``ppm``; events end on all within ``noise_ns``."""

    def __init__(self, hosts: int, *, skew_ns: float = 40e6, ppm: float = 20.0, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        self.hosts = hosts
        self.offset = self.rng.uniform(-skew_ns, skew_ns, hosts)
        self.drift = self.rng.uniform(-ppm, ppm, hosts) * 1e3
        self.ends: list[np.ndarray] = []
        self.host: list[np.ndarray] = []
        self.event: list[np.ndarray] = []

    def event_of(self, members: np.ndarray, at_s: float, noise_ns: float = 20_000.0) -> None:
        """Each learns of the end a little later, as waits do."""
        true = at_s * S + self.rng.exponential(noise_ns, len(members))
        self.ends.append(true + self.offset[members] + self.drift[members] * at_s)
        self.host.append(members)
        self.event.append(np.full(len(members), len(self.event)))

    def solved(self) -> Clocks:
        return solve(
            np.concatenate(self.ends), np.concatenate(self.host), np.concatenate(self.event), self.hosts
        )

    def errors_ns(self, found: Clocks, at_s: float) -> np.ndarray:
        """Of what is corrected, to the first host's clock."""
        true = np.full(self.hosts, at_s * S)
        shown = true + self.offset + self.drift * at_s
        corrected = found.corrected(np.arange(self.hosts), shown)
        return corrected - corrected[0]


def grid(side: int, seconds: int, *, across: int) -> Truth:
    """Groups of ``side`` hosts that meet ten times a second, and each group's first with others' every ``across`` s."""
    truth = Truth(side * side)
    for tick in range(seconds * 10):
        for group in range(side):
            truth.event_of(np.arange(group * side, (group + 1) * side), tick / 10 + group * 1e-3)
        if tick % (across * 10) == 0:
            for place in range(0, side, 2):
                truth.event_of(np.arange(place, side * side, side), tick / 10 + 0.05)
    return truth


def test_groups_that_meet_in_few_events_agree_and_drift_is_taken_out() -> None:
    truth = grid(8, 100, across=20)
    found = truth.solved()
    assert set(found.group.tolist()) == {0}
    for at_s in (0.0, 50.0, 100.0):
        errors = np.abs(truth.errors_ns(found, at_s))
        assert np.median(errors) < 20_000  # twenty clocks' noise of one event; of five, half of it remains
        assert errors.max() < 80_000
    drift = found.drift_ns_per_s - (truth.drift - truth.drift[0])
    assert np.abs(drift).max() < 1_500  # 1.5 ppm of 40


def test_the_uncertainty_is_what_the_estimates_are_off_by() -> None:
    """Three standard errors hold nearly all errors, and are not many times larger."""
    inside, ratios = [], []
    for seed in range(20):
        truth = Truth(6, seed=seed)
        for number in range(200):
            truth.event_of(np.arange(6), number / 10)
        found = truth.solved()
        errors = np.abs(truth.errors_ns(found, 10.0))[1:]
        inside += (errors < found.uncertainty_ns()[1:]).tolist()
        ratios += (errors / found.sigma_ns[1:]).tolist()
    assert np.mean(inside) > 0.97
    assert 0.2 < np.median(ratios) < 1.5


def test_ends_that_are_far_off_change_little() -> None:
    truth = Truth(4, ppm=0.0)
    for number in range(300):
        truth.event_of(np.arange(4), number / 10)
    for number in range(0, 300, 10):
        truth.ends[number][2] += 50e6  # it was told 50 ms late
    assert np.abs(truth.errors_ns(truth.solved(), 15.0)).max() < 10_000


def test_hosts_that_share_nothing_are_not_compared() -> None:
    truth = Truth(5)
    for number in range(20):
        truth.event_of(np.array([0, 2]), number)
        truth.event_of(np.array([1, 3]), number)
        truth.event_of(np.array([4]), number)
    found = truth.solved()
    assert found.group.tolist() == [0, 1, 0, 1, 4]
    assert np.isnan(found.offset_ns).tolist() == [False, False, False, False, True]
    assert found.offset_ns[[0, 1]].tolist() == [0.0, 0.0]
    assert found.offset_ns[3] - (truth.offset[3] - truth.offset[1]) == pytest.approx(
        (truth.drift[3] - truth.drift[1]) * found.middle_ns / S, abs=60_000
    )
    assert found.corrected(np.array([4]), np.array([7.0])).tolist() == [7.0]


def test_of_few_ends_no_drift_is_made_up() -> None:
    truth = Truth(2, ppm=0.0)
    for number in range(3):
        truth.event_of(np.arange(2), number * 1e-3)
    found = truth.solved()
    assert abs(found.drift_ns_per_s[1]) <= 1e5
    assert np.abs(truth.errors_ns(found, 0.0)).max() < 200_000


def test_nothing_is_nothing() -> None:
    none = np.zeros(0)
    found = solve(none, none.astype(np.intp), none.astype(np.intp), 2)
    assert np.isnan(found.offset_ns).all()
    assert found.ends.tolist() == [0, 0]
    unended = solve(np.full(2, np.nan), np.array([0, 1]), np.array([0, 0]), 2)
    assert np.isnan(unended.sigma_ns).all()


@examples(40)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 6), st.floats(-1e15, 1e15, allow_nan=False)), max_size=40
    )
)
def test_whatever_is_given_the_result_is_finite_or_unknown(rows: list[tuple[int, int, float]]) -> None:
    host, event, end = (np.array(each) for each in zip(*rows, strict=True)) if rows else (np.zeros(0),) * 3
    found = solve(end.astype(float), host.astype(np.intp), event.astype(np.intp), 5)
    shared = ~np.isnan(found.offset_ns)
    assert np.isfinite(found.offset_ns[shared]).all()
    assert np.isfinite(found.drift_ns_per_s[shared]).all()
    assert np.isfinite(found.corrected(host.astype(np.intp), end.astype(float))).all()
