"""The page of a flame graph loads nothing, runs only its own program, and holds the tree whatever frames are called."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otelgpu.model.profiles import ValueType
from otelgpu.render.flame_graph import KINDS, SCRIPTS, differential, flame_graph
from otelgpu.render.heat_map import heat_map
from tests.rig.html import Elements, policy_hash
from tests.unit.render.profile_columns import GPU, HOSTILE, PARTS, START, page_data, profile

PAGE = Path(__file__).resolve().parents[3] / "otelgpu/render/page"
TYPES = {"B": "u1", "H": "<u2", "I": "<u4", "d": "<f8"}


def numbers(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text[1:]), dtype=TYPES[text[0]]).tolist()


def test_the_tree_is_in_the_page() -> None:
    [reported] = page_data(
        flame_graph([profile({("main", "py:generate:42"): 17, ("main", "k:x"): 3})], PARTS)
    )
    assert (reported["type"], reported["unit"], reported["observations"], reported["negative"]) == (
        "cpu",
        "nanoseconds",
        2,
        0,
    )
    assert numbers(reported["depth"]) == [0, 1, 2, 2]
    assert [numbers(own) for own in reported["own"]] == [[0, 0, 17, 3]]
    frames = reported["frames"]
    shown = [frames["label"][code] for code in numbers(reported["frame"])[1:]]
    assert shown == ["main", "generate (model.py:42)", "x"]
    kinds = [frames["kinds"][kind] for kind in numbers(frames["kind"])]
    assert sorted(zip(frames["label"], kinds, strict=True)) == [
        ("generate (model.py:42)", "cpython"),
        ("main", "native"),
        ("x", "kernel"),
    ]
    assert [frames["files"][code] for code in numbers(frames["file"])].count("/app/model.py") == 1
    assert sorted(numbers(frames["line"])) == [0, 0, 42]


def test_each_type_is_in_the_page() -> None:
    reported = page_data(flame_graph([profile({("a",): 1}), profile({("a",): 1}, type_=GPU)], PARTS))
    assert [each["type"] for each in reported] == ["cpu", "gpu_kernel_time"]


def test_two_profiles_are_two_columns() -> None:
    [reported] = page_data(
        differential([profile({("a",): 1})], [profile({("a",): 5})], PARTS, labels=("rank 0", "rank 1"))
    )
    assert [numbers(own) for own in reported["own"]] == [[0, 1], [0, 5]]
    assert reported["labels"] == ["rank 0", "rank 1"]
    assert reported["normalise"] is True


@pytest.mark.slow
def test_a_large_tree_is_bounded_and_says_what_was_folded() -> None:
    many: dict[tuple[str, ...], int] = {("main", f"f{i}", f"g{i}"): 1 + i % 7 for i in range(70_000)}
    [reported] = page_data(flame_graph([profile_of_many(many)], PARTS))
    folded = numbers(reported["folded"])
    kept = sum(1 for each in folded if not each)
    assert kept <= 60_001
    assert kept + sum(folded) == 140_002
    assert sum(numbers(reported["own"][0])) == sum(many.values())


def profile_of_many(many: dict[tuple[str, ...], int]) -> Any:
    """As `profile`, which looks names up one by one."""
    from msgspec.structs import replace

    from otelgpu.model.profiles import FrameType, Function, Line, Location

    names = list(dict.fromkeys(name for stack in many for name in stack))
    code = {name: at for at, name in enumerate(names)}
    return replace(
        profile({("main",): 1}),
        value=np.array(list(many.values())),
        stack=np.arange(len(many)),
        stacks=tuple(tuple(code[name] for name in reversed(stack)) for stack in many),
        locations=tuple(
            Location(frame_type=FrameType.NATIVE, mapping=None, address=0, lines=(Line(function=at, line=0),))
            for at in range(len(names))
        ),
        functions=tuple(Function(name=name, system_name="", file_name="") for name in names),
    )


# -- what a page may do ----------------------------------------------------------------------------------


def test_the_policy_names_the_program_and_the_style_and_nothing_else() -> None:
    elements = Elements(flame_graph([profile({("a",): 1})], PARTS).decode())
    [policy] = [str(meta["content"]) for meta, _ in elements.of("meta") if "http-equiv" in meta]
    [program] = [text for attributes, text in elements.of("script") if "type" not in attributes]
    [(_, style)] = elements.of("style")
    assert dict(part.strip().split(" ", 1) for part in policy.split(";")) == {
        "default-src": "'none'",
        "script-src": policy_hash(program),
        "style-src": policy_hash(style),
        "img-src": "data:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_all_files_of_the_page_are_in_it() -> None:
    assert {path.name for path in PAGE.iterdir()} == {"index.html", "style.css", *SCRIPTS}


def test_the_page_names_no_other_file() -> None:
    page = flame_graph([], PARTS).decode()
    named = re.findall(r"(?:src|href)=\"([^\"]*)\"|url\(|@import", page)
    assert [name for name in named if not name.startswith("data:")] == []
    assert re.findall(r"https?://[^\s\"'`)]+", page.replace("http://www.w3.org/2000/svg", "")) == []


def test_the_program_makes_no_html_of_text() -> None:
    program = "".join(re.sub(r"^ *//.*$", "", script, flags=re.MULTILINE) for script in PARTS.scripts)
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bFunction\(|DOMParser|srcdoc"
    assert re.findall(ways, program) == []


def test_the_page_knows_every_kind_of_frame() -> None:
    colours = (PAGE / "colours.js").read_text()
    assert [kind for kind in KINDS if not re.search(rf"^  {kind.value}: ", colours, re.MULTILINE)] == []


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_stay_text(hostile: str) -> None:
    type_ = ValueType(type=hostile, unit=hostile)
    batch = profile({(hostile, "py:a:1"): 1}, type_=type_, times=[START])
    wanted = hostile.encode("utf-8", "replace").decode()
    for page in (
        flame_graph([batch], PARTS, title=hostile.replace("\x00", "")),
        heat_map([batch], PARTS),
        differential([batch], [batch], PARTS, labels=(hostile, hostile)),
    ):
        elements = Elements(page.decode())
        assert len(elements.of("script")) == 3  # about, the data, the program
        assert elements.comments == []
        [reported] = page_data(page)
        assert wanted in reported["frames"]["label"]
        assert (reported["type"], reported["unit"]) == (wanted, wanted)
