"""Whose calls the samples of a profile are of, as the programs themselves say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from otelgpu.elf.btf import Btf, BtfError
from otelgpu.engine import registry
from otelgpu.engine.call_families import NO_FAMILY, call_families, family_of
from otelgpu.kernel.loader import read_image
from otelgpu.model.samples import samples

LIBRARY = Path(__file__).resolve().parents[3] / "bpf" / "lib"


@pytest.fixture(scope="module")
def types() -> dict[str, Btf]:
    return {name: read_image(name).btf for name in registry.with_records()}


def test_each_family_whose_calls_have_stacks_has_a_number_of_its_own(types: dict[str, Btf]) -> None:
    numbers = call_families(types)
    callers = {name for name, btf in types.items() if btf.has_enum("call_family")}
    assert {"cuda", "nccl", "verbs", "torch"} <= set(numbers) == callers
    assert len(set(numbers.values())) == len(numbers)


def test_the_programs_have_room_for_each(types: dict[str, Btf]) -> None:
    found = re.search(r"#define CALL_FAMILIES (\d+)", (LIBRARY / "call_stacks.h").read_text())
    assert found and all(NO_FAMILY < number < int(found[1]) for number in call_families(types).values())


def test_two_families_with_one_number_are_refused(types: dict[str, Btf]) -> None:
    with pytest.raises(BtfError, match=r"cuda and hip both have CALL_FAMILY = 1"):
        call_families({"cuda": types["cuda"], "hip": types["cuda"]})


def test_a_sample_says_the_number_above_that_of_the_function() -> None:
    rows = samples(3)
    rows["other"] = [2 << 32 | 17, 3 << 32, 17]
    assert family_of(rows).tolist() == [2, 3, NO_FAMILY]
    assert family_of(rows).dtype == np.uint64
