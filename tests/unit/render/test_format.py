"""A file's name says what is written, and its content what is read."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from otelgpu.errors import OtelgpuError
from otelgpu.model.profiles import ProfileColumns
from otelgpu.render.format import FORMATS, format_of, read_profiles, render, rendered_difference
from otelgpu.render.stack_tree import trees
from tests.unit.otlp_json.test_profile_reader import exported
from tests.unit.render.profile_columns import PARTS, START, profile

BATCH = profile([(("main", "py:generate:42"), 17), (("main",), 3)], times=[START, START + 1])


@pytest.mark.parametrize(
    ("name", "suffix", "begins"),
    [
        ("out.html", ".html", b"<!doctype html>"),
        ("/tmp/a.b/OUT.HTML", ".html", b"<!doctype html>"),
        ("out.heat.html", ".heat.html", b"<!doctype html>"),
        ("out.svg", ".svg", b"<?xml"),
        ("out.json", ".json", b'{"traceEvents"'),
        ("out.speedscope.json", ".speedscope.json", b'{"$schema"'),
        ("out.pb.gz", ".pb.gz", b"\x1f\x8b"),
        ("out.folded", ".folded", b"main "),
    ],
)
def test_the_end_of_a_name_says_the_format(name: str, suffix: str, begins: bytes) -> None:
    assert format_of(name).suffix == suffix
    assert render([BATCH], [], name, PARTS).startswith(begins)


def test_a_heat_map_is_asked_for_by_its_name() -> None:
    assert b'"heat":' in render([BATCH], [], "x.heat.html", PARTS)
    assert b'"heat":' not in render([BATCH], [], "x.html", PARTS)


@pytest.mark.parametrize("name", ["out", "out.txt", "html", "out.pb", "out.gz", ""])
def test_a_name_that_says_nothing_is_refused_with_those_that_do(name: str) -> None:
    with pytest.raises(OtelgpuError) as refused:
        format_of(name)
    assert all(suffix in str(refused.value) for suffix in FORMATS)


@pytest.mark.parametrize("name", list(FORMATS))
def test_nothing_observed_makes_a_file_too(name: str) -> None:
    render([], [], f"out{name}", PARTS)


def test_differences_are_pages_and_pictures() -> None:
    assert b"rank 1" in rendered_difference("x.html", [BATCH], [BATCH], PARTS, labels=("rank 0", "rank 1"))
    assert rendered_difference("x.svg", [BATCH], [BATCH], PARTS, title="A").startswith(b"<?xml")
    with pytest.raises(OtelgpuError, match=r"\.html or \.svg"):
        rendered_difference("x.json", [BATCH], [BATCH], PARTS)


@pytest.mark.parametrize("suffix", [".pb.gz", ".folded", ".jsonl"])
def test_what_was_written_is_read_again(suffix: str) -> None:
    data = b"\n".join(exported(BATCH)) if suffix == ".jsonl" else render([BATCH], [], f"a{suffix}", PARTS)

    def reported(batches: Sequence[ProfileColumns]) -> list[tuple[str, float]]:
        [tree] = trees(batches)
        return [(tree.frames[tree.frame[node]].label, tree.total[node, 0]) for node in range(1, len(tree))]

    assert reported(read_profiles(f"a{suffix}", data)) == reported([BATCH])
    assert reported(read_profiles("a", data)) == reported([BATCH])  # its content says enough


@pytest.mark.parametrize(
    "data", [b"", b"\x1f\x8b\x00", b"{}", b'{"resourceSpans":[]}', b"\xff\xfe\n", b"no profile"]
)
def test_a_file_of_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(OtelgpuError, match=r"cannot read 'a'"):
        read_profiles("a", data)


def test_formats_are_reported_in_words() -> None:
    assert all(text and suffix.startswith(".") for suffix, text in FORMATS.items())
    assert json.loads(render([BATCH], [], "a.speedscope.json", PARTS))["exporter"] == "otelgpu"
