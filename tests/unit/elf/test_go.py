"""Functions of Go programs, by the table that Go keeps itself: real programs, made ones, and damaged ones."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.go import MAX_FUNCTION_BYTES, go_minor, go_table, module_minor
from otelgpu.elf.image import ElfError, ElfImage
from tests.rig.examples import examples
from tests.unit.elf.go_builders import ADDRESS, FUNCTION, Base, go_elf

NAMES = ("runtime.main", "runtime.newproc", "main.main", "go/parser.ParseFile", "no.such")
TWO = {"main.one": FUNCTION, "main.two": FUNCTION}


@pytest.fixture(scope="module")
def gofmt() -> bytes:
    go = shutil.which("go", path="/usr/local/go/bin:/usr/local/bin:/usr/bin")
    if go is None:
        pytest.skip("go is not installed")
    return Path(go).resolve().with_name("gofmt").read_bytes()


def test_functions_are_where_the_symbol_table_has_them(gofmt: bytes) -> None:
    image = ElfImage(gofmt)
    by_symbols = image.function_offsets(NAMES)
    assert by_symbols.keys() == set(NAMES[:-1])
    assert go_minor(image) in range(20, 40)
    found = go_table(image, NAMES)
    assert found is not None
    base, places = found.bases[0], found.functions
    assert {name: image.offset_of(base + entry) for name, (entry, _) in places.items()} == by_symbols
    for name, (entry, size) in places.items():
        symbol = image.symbol_at(by_symbols[name])
        assert symbol is not None and symbol.size_bytes <= size < symbol.size_bytes + 64, (name, entry)


@pytest.mark.parametrize(
    ("dependency", "expected"),
    [
        ("dep\tgoogle.golang.org/grpc\tv1.83.0\th1:x=\n", 83),
        ("dep\tgoogle.golang.org/grpc\tv1.83.0\t\n", 83),  # vendored
        ("dep\tgoogle.golang.org/grpc\tv1.83.0\n=>\texample.com/fork\tv1.0.0\th1:x=\n", None),
        ("dep\tgoogle.golang.org/grpc\tv1.84.0-dev\th1:x=\n", None),
        ("dep\tgoogle.golang.org/grpc/cmd\tv1.5.1\th1:x=\n", None),
        ("dep\tgoogleXgolang.org/grpc\tv1.83.0\th1:x=\n", None),
        ("", None),
    ],
)
def test_a_module_has_the_version_that_the_program_was_linked_with(
    dependency: str, expected: int | None
) -> None:
    build_info = f"path\tx\nmod\tx\t(devel)\t\n{dependency}build\t-compiler=gc\n".encode()
    image = ElfImage(go_elf(TWO, build_info=build_info))
    assert module_minor(image, "google.golang.org/grpc") == expected


@pytest.mark.parametrize("base", get_args(Base))
def test_the_code_begins_where_one_of_the_candidates_says(base: Base) -> None:
    before = 0 if base == "text" else 100  # what the C linker put there
    image = ElfImage(go_elf(TWO, base, before=before))
    found = go_table(image, TWO)
    text = image.section(".text")
    assert found is not None and text is not None
    assert found.functions == {"main.one": (0, 32), "main.two": (32, 32)}
    assert found.bases[0] == ADDRESS + text.offset + before


@pytest.mark.parametrize("content", [b"", b"\xfb\xff\xff\xff\0\0\1\x08" + bytes(80)], ids=["none", "older"])
def test_another_table_is_none(content: bytes) -> None:
    made = bytearray(go_elf(TWO))
    at = made.index(b"\xf1\xff\xff\xff\0\0\1\x08")
    made[at : at + 88] = content.ljust(88, b"\0")
    assert go_table(ElfImage(bytes(made)), TWO) is None


def test_of_two_functions_of_a_name_none_is_believed() -> None:
    made = go_elf(TWO).replace(b"main.two\0", b"main.on\0\0")
    found = go_table(ElfImage(made.replace(b"main.one\0", b"main.on\0\0")), ("main.on", "main.two"))
    assert found is not None and found.functions.keys() <= {"main.on"}


def test_a_function_without_end_is_passed_over() -> None:
    long = b"\x90" * (MAX_FUNCTION_BYTES + 1)
    found = go_table(ElfImage(go_elf({"main.long": long, **TWO})), ("main.long", "main.one"))
    assert found is not None and found.functions.keys() == {"main.one"}


@examples(300)
@given(seed=st.integers(), damage=st.integers(1, 30), base=st.sampled_from(get_args(Base)))
def test_a_damaged_table_is_refused_or_read(seed: int, damage: int, base: Base) -> None:
    chance, content = random.Random(seed), bytearray(go_elf(TWO, base))
    for _ in range(damage):
        content[chance.randrange(len(content))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
    try:
        found = go_table(ElfImage(bytes(content)), NAMES)
    except ElfError:
        return
    assert found is None or all(0 < size <= MAX_FUNCTION_BYTES for _, size in found.functions.values())
