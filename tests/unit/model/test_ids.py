"""Ids: reproducible, valid, apart from each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.ids import combine, mix, request_ids, span_ids, trace_ids

words = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50)


def splitmix64(state: int) -> int:
    """The reference, in Python's integers (https://prng.di.unimi.it/splitmix64.c)."""
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(words)
def test_the_mixer_is_splitmix64(values: list[int]) -> None:
    assert mix(np.array(values, np.uint64)).tolist() == [splitmix64(value) for value in values]


@given(st.integers(0, 2**64 - 1), words, words)
def test_an_id_depends_on_its_own_words_alone(seed: int, a: list[int], b: list[int]) -> None:
    together = span_ids(seed, np.array(a + b, np.uint64))
    apart = np.concatenate([span_ids(seed, np.array(part, np.uint64)) for part in (a, b)])
    assert together.tolist() == apart.tolist()


@given(*[st.integers(0, 2**64 - 1)] * 3)
def test_the_ids_of_one_request_are_those_of_a_column(seed: int, key: int, start_ns: int) -> None:
    columns = [np.array([word], np.uint64) for word in (key, start_ns)]
    slot = np.zeros(1, np.uint64)
    expected = trace_ids(seed, *columns).tobytes(), span_ids(seed, *columns, slot).tobytes()
    assert request_ids(seed, key, start_ns) == expected


def test_distinct_words_give_distinct_ids() -> None:
    start, thread = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(300, dtype=np.uint64))
    ids = span_ids(7, start.ravel(), thread.ravel())
    assert len(np.unique(ids.view(">u8"))) == 300 * 300


def test_the_seed_and_the_order_of_words_matter() -> None:
    one, two = np.array([1], np.uint64), np.array([2], np.uint64)
    ids = {combine(seed, *columns)[0] for seed in (1, 2) for columns in ((one, two), (two, one), (one,))}
    assert len(ids) == 6


def zero_of(seed: int) -> int:
    """The word that ``combine(seed, ·)`` takes to zero: the mixer's only preimage of zero is -golden."""
    return (2**64 - 0x9E3779B97F4A7C15) ^ seed


def test_no_id_is_all_zero() -> None:
    word = np.array([zero_of(5)], np.uint64)
    assert combine(5, word)[0] == 0
    assert span_ids(5, word).any()
    assert trace_ids(5, word)[0, 8:].any()


def test_trace_ids_have_sixteen_bytes_of_which_both_halves_vary() -> None:
    ids = trace_ids(3, np.arange(100, dtype=np.uint64))
    assert ids.shape == (100, 16)
    assert len(np.unique(ids[:, :8], axis=0)) == len(np.unique(ids[:, 8:], axis=0)) == 100


def test_ids_stay_the_same_from_version_to_version() -> None:
    """A replay must give the ids that were exported live, perhaps by an older otelgpu."""
    words = np.array([1, 2], np.uint64)
    assert span_ids(42, words)[0].tobytes().hex() == "ba69ec90eb4fef88"
    assert trace_ids(42, words)[1].tobytes().hex() == "692f6af9686ec4da369eae0b0ca19112"
