"""Threads and times of nodes: their sums are the tree's, and what is not reported is not made up."""

from __future__ import annotations

from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute
from otelgpu.render.observed import MOST_THREADS, first_seen, threads
from otelgpu.render.stack_tree import trees_of
from tests.unit.render.profile_columns import START, profile
from tests.unit.render.test_flame_graph import numbers


def test_sums_by_thread_are_those_of_the_tree() -> None:
    given = (Attribute.of("thread.id", [1, 2, 1]), Attribute.of("thread.name", ["main", "io", "main"]))
    [(tree, batches)] = trees_of([profile([(("a",), 3), (("a", "b"), 4), (("a",), 5)], attributes=given)])
    found = threads(tree, batches)
    assert found is not None
    assert found["name"] == ["main (1)", "io (2)"]
    sums = dict.fromkeys(range(len(tree)), 0.0)
    for node, value in zip(numbers(found["node"]), numbers(found["value"]), strict=True):
        sums[node] += value
    assert list(sums.values()) == tree.own[:, 0].tolist()


def test_threads_that_nobody_reported_are_none() -> None:
    [(tree, batches)] = trees_of([profile({("a",): 1})])
    assert threads(tree, batches) is None


def test_equal_numbers_of_two_processes_are_two_threads() -> None:
    given = (Attribute.of("thread.id", [1]),)
    owners = [resource({"process.pid": pid, "process.executable.name": "p"}) for pid in (5, 6)]
    [(tree, batches)] = trees_of([profile({("a",): 1}, attributes=given, owner=owner) for owner in owners])
    found = threads(tree, batches)
    assert found is not None
    assert list(zip(found["process"], found["name"], strict=True)) == [
        ("p (5)", "thread (1)"),
        ("p (6)", "thread (1)"),
    ]


def test_of_too_many_threads_the_least_are_one() -> None:
    count = MOST_THREADS + 5
    given = (Attribute.of("thread.id", list(range(1, count + 1))),)
    [(tree, batches)] = trees_of([profile([(("a",), count - at) for at in range(count)], attributes=given)])
    found = threads(tree, batches)
    assert found is not None
    assert found["name"][-1] == "(5 other threads)"
    assert sum(numbers(found["value"])) == tree.total[0, 0]


def test_nodes_have_the_time_of_their_first_own_observation() -> None:
    rows = [(("a", "b"), 1), (("a",), 1), (("a", "b"), 1)]
    [(tree, batches)] = trees_of([profile(rows, times=[START + 5, START + 9, START + 2])])
    first = first_seen(tree, batches)
    assert first is not None
    assert first.tolist() == [float("inf"), 7.0, 0.0]  # all, a, b
    [(tree, batches)] = trees_of([profile(rows)])
    assert first_seen(tree, batches) is None
