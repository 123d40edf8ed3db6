"""Loss of a port, by whose packets were lost: what each source of knowledge settles, and what none does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.rdma.loss import WAIT_NS, Attribution, Loss, LossShares, _shares
from otelgpu.families.rdma.queue_pairs import QueuePair
from otelgpu.model.fabric import QueuePairReadings
from tests.rig.examples import examples
from tests.unit.families.rdma.queue_pair_facts import SECOND

FAST, SLOW = 14, 26  # 16 us; 67 ms, as after a time-out


def pair(number: int, **fields: int) -> QueuePair:
    return QueuePair(100, number, number, **{"seen_ns": 1} | fields, device="mlx5_0", port=1)  # type: ignore[arg-type]


def completions(fast: int, slow: int = 0) -> npt.NDArray[np.int64]:
    found = np.zeros((1, 32), dtype=np.int64)
    found[0, FAST], found[0, SLOW] = fast, slow
    return found


def readings(number: int, **values: int) -> QueuePairReadings:
    return QueuePairReadings(time_ns=1, device="mlx5_0", port=1, number=number, tgid=100, values=values)


class Reported:
    """A port that lost, and what was known."""

    def __init__(self) -> None:
        self.book = LossShares()
        self.now_ns = SECOND

    def second(self, *seen: tuple[QueuePair, int, int], **deltas: int) -> Reported:
        """A second in which queue pairs had fast and slow completions, and the port's counters grew."""
        self.now_ns += SECOND
        for each, fast, slow in seen:
            self.book.completed([each.key], [self.now_ns], completions(fast, slow))
        self.book.grew("mlx5_0", 1, self.now_ns, deltas)
        return self

    def take(self, *live: QueuePair) -> list[Loss]:
        return self.book.take(self.now_ns + WAIT_NS, live)


def reported(losses: list[Loss]) -> list[tuple[int | None, int, Attribution]]:
    return [
        (each.queue_pair.number if each.queue_pair is not None else None, each.grown, each.attribution)
        for each in losses
    ]


def test_the_only_queue_pair_of_the_port_is_charged() -> None:
    one = pair(17)
    assert reported(Reported().second(packet_seq_err=5).take(one)) == [(17, 5, Attribution.ONLY_QUEUE_PAIR)]


def test_of_two_the_one_with_slow_completions_is_charged() -> None:
    clean, lossy = pair(17), pair(18)
    fed = Reported().second((clean, 1000, 0), (lossy, 1000, 0))
    fed.second((clean, 1000, 0), (lossy, 1000, 9), rcvd_seq_err=10)
    assert reported(fed.take(clean, lossy)) == [(18, 10, Attribution.LATENCY)]


def test_noise_of_the_others_is_not_charged() -> None:
    clean, lossy = pair(17), pair(18)
    fed = Reported().second((clean, 1000, 1), (lossy, 1000, 40), rcvd_seq_err=10)
    assert reported(fed.take(clean, lossy)) == [(18, 10, Attribution.LATENCY)]


def test_two_that_lost_share_by_the_time_that_it_cost_them() -> None:
    some, more = pair(17), pair(18)
    fed = Reported().second((some, 1000, 10), (more, 1000, 20), completer_retry_err=10)
    assert reported(fed.take(some, more)) == [(17, 3, Attribution.LATENCY), (18, 7, Attribution.LATENCY)]


def test_where_nothing_reports_nobody_is_charged() -> None:
    one, other = pair(17), pair(18)
    fed = Reported().second((one, 1000, 0), (other, 1000, 0), packet_seq_err=4)
    assert reported(fed.take(one, other)) == [(None, 4, Attribution.UNKNOWN)]
    assert reported(Reported().second(packet_seq_err=4).take()) == [(None, 4, Attribution.UNKNOWN)]


def test_a_driver_that_counts_by_queue_pair_is_believed() -> None:
    one, other, fed = pair(17), pair(18), Reported()
    fed.book.read(readings(17, packet_seq_err=100))
    fed.book.read(readings(18, packet_seq_err=5))
    fed.second((other, 1000, 50))
    fed.book.read(readings(17, packet_seq_err=107))
    fed.second((other, 1000, 50), packet_seq_err=7)
    assert reported(fed.take(one, other)) == [(17, 7, Attribution.DRIVER)]


def test_what_the_driver_does_not_account_for_is_nobodys() -> None:
    one, fed = pair(17), Reported()
    fed.book.read(readings(17, packet_seq_err=0))
    fed.book.read(readings(17, packet_seq_err=3))
    fed.second(packet_seq_err=8)
    assert reported(fed.take(one)) == [(17, 3, Attribution.DRIVER), (None, 5, Attribution.UNKNOWN)]


def test_nor_is_it_the_one_that_the_driver_does_not_count() -> None:
    counted, other, fed = pair(17), pair(18), Reported()
    fed.book.read(readings(17, packet_seq_err=0))
    fed.second(packet_seq_err=8)
    assert reported(fed.take(counted, other)) == [(None, 8, Attribution.UNKNOWN)]


def test_a_driver_that_counts_no_losses_by_queue_pair_leaves_them_to_be_inferred() -> None:
    one, fed = pair(17), Reported()
    fed.book.read(readings(17))
    fed.book.read(readings(17, rx_write_requests=5))
    assert reported(fed.second(rcvd_seq_err=8).take(one)) == [(17, 8, Attribution.ONLY_QUEUE_PAIR)]


def test_a_driver_that_forgets_a_queue_pairs_counters_begins_at_zero() -> None:
    one, fed = pair(17), Reported()
    fed.book.read(readings(17, packet_seq_err=50))
    fed.book.read(readings(17, packet_seq_err=2))
    assert reported(fed.take(one)) == [(17, 2, Attribution.DRIVER)]


def test_growth_waits_for_completions_that_come_after_it() -> None:
    clean, lossy, fed = pair(17), pair(18), Reported()
    fed.second((clean, 1000, 0), (lossy, 1000, 0), local_ack_timeout_err=2)
    assert not fed.book.take(fed.now_ns, [clean, lossy])
    fed.book.completed([lossy.key], [fed.now_ns + SECOND], completions(10, 2))
    assert reported(fed.take(clean, lossy)) == [(18, 2, Attribution.LATENCY)]
    assert not fed.take(clean, lossy)


def test_slow_completions_of_long_ago_are_not_held_against_anyone() -> None:
    one, other, fed = pair(17), pair(18), Reported()
    fed.second((one, 1000, 30), (other, 1000, 0))
    for _ in range(3):
        fed.second((one, 1000, 0), (other, 1000, 0))
    fed.second(packet_seq_err=1)
    assert reported(fed.take(one, other)) == [(None, 1, Attribution.UNKNOWN)]


def test_a_queue_pair_that_was_gone_or_not_there_yet_is_not_charged() -> None:
    gone, later, there, fed = pair(16, ended_ns=5), pair(19), pair(17), Reported()
    fed.second()
    later.seen_ns = fed.now_ns + 5 * SECOND
    fed.second(packet_seq_err=1)
    assert reported(fed.take(gone, later, there)) == [(17, 1, Attribution.ONLY_QUEUE_PAIR)]


def test_another_ports_queue_pairs_are_not_charged() -> None:
    other = pair(18)
    other.port = 2
    assert reported(Reported().second(packet_seq_err=1).take(other)) == [(None, 1, Attribution.UNKNOWN)]


@pytest.mark.parametrize("counter", ["out_of_sequence", "rx_icrc_encapsulated", "np_cnp_sent"])
def test_counters_of_the_other_side_are_not_divided(counter: str) -> None:
    assert not Reported().second(**{counter: 5}).take(pair(17))


def test_a_queue_pair_that_is_forgotten_is_not_blamed() -> None:
    one, other, fed = pair(17), pair(18), Reported()
    fed.second((one, 1000, 50), (other, 1000, 0), packet_seq_err=1)
    fed.book.forget(one.key, "mlx5_0")
    assert reported(fed.take(one, other)) == [(None, 1, Attribution.UNKNOWN)]


@examples(60)
@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=8).filter(any), st.integers(1, 10**9))
def test_shares_are_whole_and_add_up(weights: list[float], count: int) -> None:
    shares = _shares(weights, count)
    assert sum(shares) == count
    assert all(share >= 0 for share in shares)
    assert all(not share for share, weight in zip(shares, weights, strict=True) if not weight)
