"""Observations are in the second and the 20 ms that they were made in, under the node of their stack."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from otelgpu.model.profiles import ProfileColumns
from otelgpu.render.heat_map import MOST_COLUMNS, heat_map
from tests.unit.render.profile_columns import GPU, PARTS, SECOND, START, page_data, profile
from tests.unit.render.test_flame_graph import numbers

MS = 1_000_000


def heat(*batches: ProfileColumns) -> tuple[dict[str, Any], dict[str, Any]]:
    reported = page_data(heat_map(batches, PARTS))[0]
    return reported, reported["heat"]


def placed(reported: dict[str, Any], map_: dict[str, Any]) -> dict[tuple[int, int, str], tuple[int, float]]:
    """By column, row and frame: how many, and their value."""
    nodes = numbers(reported["frame"])
    counts = numbers(map_["count"])
    values = numbers(map_["value"]) if map_["value"] else [count * map_["each"] for count in counts]
    return {
        (cell // map_["rows"], cell % map_["rows"], reported["frames"]["label"][nodes[node]]): (count, value)
        for cell, node, count, value in zip(
            numbers(map_["cell"]), numbers(map_["node"]), counts, values, strict=True
        )
    }


def test_each_observation_is_in_its_cell() -> None:
    rows = [(("a",), 10), (("a",), 10), (("b",), 10), (("a",), 10)]
    times = [START, START + 19 * MS, START + 20 * MS, START + 2 * SECOND + 999 * MS]
    reported, map_ = heat(profile(rows, times=times))
    assert (map_["columns"], map_["rows"], map_["cell_ms"]) == (3, 50, 20)
    assert placed(reported, map_) == {(0, 0, "a"): (2, 20), (0, 1, "b"): (1, 10), (2, 49, "a"): (1, 10)}
    assert map_["value"] == ""  # each counts the same


def test_values_that_differ_are_summed() -> None:
    reported, map_ = heat(
        profile([(("a",), 5), (("a",), 7), (("a",), 1)], times=[START, START + 1, START + 50 * MS])
    )
    assert placed(reported, map_) == {(0, 0, "a"): (2, 12), (0, 2, "a"): (1, 1)}


def test_columns_begin_with_whole_seconds() -> None:
    _, map_ = heat(profile([(("a",), 1)] * 2, times=[START + 900 * MS, START + 1100 * MS]))
    assert map_["columns"] == 2
    assert map_["begin_unix_s"] == START // SECOND


def test_batches_are_one_map() -> None:
    reported, map_ = heat(
        profile([(("a",), 1)], times=[START]),
        profile([(("b",), 1)], times=[START + SECOND], start=START + SECOND),
    )
    assert placed(reported, map_) == {(0, 0, "a"): (1, 1), (1, 0, "b"): (1, 1)}


def test_types_without_times_have_a_graph_and_come_last() -> None:
    reported = page_data(
        heat_map([profile({("a",): 1}, type_=GPU), profile({("a",): 1}, times=[START])], PARTS)
    )
    assert [(each["type"], "heat" in each) for each in reported] == [
        ("cpu", True),
        ("gpu_kernel_time", False),
    ]


def test_what_has_no_time_is_counted() -> None:
    _, map_ = heat(profile([(("a",), 1)], times=[START]), profile({("b",): 1, ("c",): 1}))
    assert map_["left_out"] == 2
    assert "2 have no place" in map_["note"]


def test_a_long_time_is_cut_to_its_end_and_counted() -> None:
    _, map_ = heat(profile([(("a",), 1)] * 3, times=[0, START, START + 1]))
    assert map_["columns"] == MOST_COLUMNS
    assert map_["left_out"] == 1


def test_observations_of_folded_frames_count_for_what_they_are_folded_into() -> None:
    batch = profile([(("m", "a"), 1), (("m", "b"), 1)], times=[START, START])
    reported, map_ = heat(replace(batch))
    assert sum(numbers(map_["count"])) == 2
    assert set(numbers(map_["node"])) <= set(range(len(numbers(reported["depth"]))))
