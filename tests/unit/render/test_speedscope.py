"""speedscope's files are what its published schema asks for, and hold the same values.

The schema is ``dist/release/file-format-schema.json`` of npm ``speedscope`` 1.25.0 (MIT), as it is served at
the address that files name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otelgpu.model.profiles import ValueType
from otelgpu.render.speedscope import SCHEMA, speedscope
from tests.unit.render.profile_columns import GPU, HOSTILE, profile

PUBLISHED = json.loads((Path(__file__).parent / "data/speedscope-1.25.0.schema.json").read_text())


def written(*batches: Any) -> Any:
    document = json.loads(speedscope(batches, title="a run"))
    jsonschema = pytest.importorskip("jsonschema", reason="the schema's checker: pip install jsonschema")
    jsonschema.Draft7Validator.check_schema(PUBLISHED)
    jsonschema.Draft7Validator(PUBLISHED).validate(document)
    return document


def test_the_checker_finds_fault_with_what_is_wrong() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    wrong = json.loads(speedscope([profile({("a",): 1})]))
    wrong["profiles"][0]["samples"] = [["a"]]
    assert not jsonschema.Draft7Validator(PUBLISHED).is_valid(wrong)


def test_stacks_come_with_their_weights() -> None:
    document = written(profile({("main", "py:generate:42"): 17, ("main",): 2}))
    assert document["$schema"] == SCHEMA
    [of] = document["profiles"]
    frames = document["shared"]["frames"]
    assert of["unit"] == "nanoseconds"
    assert of["endValue"] == 19
    stacks = [[frames[code]["name"] for code in sample] for sample in of["samples"]]
    assert list(zip(stacks, of["weights"], strict=True)) == [
        (["main"], 2),
        (["main", "generate (model.py:42)"], 17),
    ]
    assert {"name": "generate (model.py:42)", "file": "/app/model.py", "line": 42} in frames


def test_each_type_is_a_profile() -> None:
    document = written(
        profile({("a",): 1}),
        profile({("a", "gpu:k"): 2}, type_=GPU),
        profile({("a",): 5}, type_=ValueType(type="syscalls", unit="count")),
    )
    assert [(each["name"], each["unit"]) for each in document["profiles"]] == [
        ("cpu + gpu (nanoseconds)", "nanoseconds"),
        ("cpu (nanoseconds)", "nanoseconds"),
        ("gpu_kernel_time (nanoseconds)", "nanoseconds"),
        ("syscalls (count)", "none"),
    ]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_any_name_is_held(hostile: str) -> None:
    document = written(profile({(hostile,): 1}))
    assert [each["name"] for each in document["shared"]["frames"]] == [
        hostile.encode("utf-8", "replace").decode()
    ]
