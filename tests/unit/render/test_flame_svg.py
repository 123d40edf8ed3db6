"""The SVG is well-formed XML that holds the frames in their places, whatever they are called."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from otelgpu.model.profiles import ValueType
from otelgpu.render.flame_svg import WIDTH, change_colour, differential_svg, flame_svg, quantity
from tests.unit.render.profile_columns import HOSTILE, profile

NAMESPACE = "{http://www.w3.org/2000/svg}"


def boxes(svg: bytes) -> dict[str, tuple[float, float, float, str, str]]:
    """By name: left, width, top, colour, title."""
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{NAMESPACE}g"):
        rect, title = group.find(f"{NAMESPACE}rect"), group.find(f"{NAMESPACE}title")
        assert rect is not None
        assert title is not None
        place = float(group.attrib["data-x"]), float(group.attrib["data-w"]), float(rect.attrib["y"])
        found[group.attrib["data-name"]] = (*place, rect.attrib["fill"], title.text or "")
    return found


def test_frames_are_as_wide_as_their_share_and_stand_on_their_callers() -> None:
    found = boxes(flame_svg([profile({("main", "a"): 25, ("main", "py:f:7"): 50, ("b",): 25})]))
    assert found["all"][:2] == (0, WIDTH)
    assert found["b"][:2] == (0, WIDTH / 4)
    assert found["main"][:2] == (WIDTH / 4, 3 * WIDTH / 4)
    assert found["a"][:2] == (WIDTH / 4, WIDTH / 4)
    assert found["f (model.py:7)"][:2] == (WIDTH / 2, WIDTH / 2)
    assert found["all"][2] > found["main"][2] > found["a"][2]
    assert found["a"][3] != found["f (model.py:7)"][3]
    assert found["a"][4] == "a\n/usr/lib/libc.so.6\n25 ns (25.00 %), self 25 ns"


def test_what_is_too_narrow_is_one_box_that_says_how_many() -> None:
    rows: dict[tuple[str, ...], int] = {("main", f"n{i}"): 10 for i in range(400)}
    rows["main", "wide"] = 10_000_000
    svg = flame_svg([profile(rows)])
    assert "(400 narrower frames)" in boxes(svg)
    assert b"400 frames too narrow to draw" in svg


def test_a_difference_is_coloured_and_says_both() -> None:
    svg = differential_svg(
        [profile({("same",): 50, ("less",): 40, ("more",): 10})],
        [profile({("same",): 100, ("less",): 20, ("more",): 80})],
        labels=("rank 0", "rank 1"),
    )
    found = boxes(svg)
    assert found["same"][3] == change_colour(1, 1)
    assert found["less"][3] == change_colour(80, 20)
    assert found["more"][3] == change_colour(20, 80)
    assert found["more"][4].splitlines()[-1] == "rank 0 10 ns (10.00 %), rank 1 80 ns (40.00 %)"


def test_without_equal_totals_a_difference_is_that_of_the_values() -> None:
    sides = [profile({("same",): 50})], [profile({("same",): 100})]
    assert boxes(differential_svg(*sides, normalise=True))["same"][3] == change_colour(1, 1)
    assert boxes(differential_svg(*sides, normalise=False))["same"][3] == change_colour(50, 100)


def test_red_is_more_and_blue_is_less() -> None:
    assert change_colour(0, 1) == "#ff7664"
    assert change_colour(1, 0) == "#68a4ff"
    assert change_colour(1, 1) == change_colour(0, 0) == "#f3f3f3"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_stay_text(hostile: str) -> None:
    batch = profile({(hostile, "a"): 1}, type_=ValueType(type=hostile, unit=hostile))
    for svg in (
        flame_svg([batch], title=hostile),
        differential_svg([batch], [batch], labels=(hostile, hostile)),
    ):
        root = ElementTree.fromstring(svg)
        assert len(list(root.iter(f"{NAMESPACE}script"))) == 1
        assert {each.tag.removeprefix(NAMESPACE) for each in root.iter()} == {
            *("svg", "style", "rect", "text", "g", "title", "script")
        }
        wanted = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "\ufffd", hostile)
        assert wanted.encode("utf-8", "replace").decode() in boxes(svg)


def test_the_picture_loads_nothing() -> None:
    svg = flame_svg([profile({("a",): 1})]).decode()
    assert re.findall(r"(?:href|src)=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", svg) == []


def test_nothing_is_a_picture_that_says_so() -> None:
    assert b"nothing was observed" in flame_svg([])
    assert b"nothing was observed" in differential_svg([], [])
    ElementTree.fromstring(flame_svg([]))


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0, "nanoseconds", "0 ns"),
        (1_500_000_000, "nanoseconds", "1.50 s"),
        (2048, "bytes", "2.00 KiB"),
        (12_000, "count", "12,000 count"),
    ],
)
def test_values_are_shown_with_their_units(value: float, unit: str, shown: str) -> None:
    assert quantity(value, unit) == shown
