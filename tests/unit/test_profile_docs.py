"""docs/profiles.md has every kind, sample type, attribute and format, as the code has them."""

from __future__ import annotations

import re

import pytest

from otelgpu.model.profiles import ValueType
from otelgpu.model.profiling import ProfileKind
from otelgpu.render.format import FORMATS
from otelgpu.signals import (
    profile_names,
    profile_operations,
    profile_tensors,
    tensor_metrics,
    torch_operators,
)
from tools.document import DOCS

TEXT = (DOCS / "profiles.md").read_text()
TYPES = {
    value
    for module in (profile_names, profile_operations, profile_tensors)
    for value in vars(module).values()
    if isinstance(value, ValueType)
}


@pytest.mark.parametrize("kind", list(ProfileKind))
def test_every_kind_has_its_row(kind: ProfileKind) -> None:
    assert f"| `{kind}` | " in TEXT


@pytest.mark.parametrize("name", sorted({each.type for each in TYPES} - {profile_names.USER.type}))
def test_every_sample_type_is_told(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_no_sample_type_is_told_that_there_is_not() -> None:
    table = TEXT.split("## Kinds")[1].split("`all` is")[0]
    told = {
        name
        for row in table.splitlines()
        for cell in row.split("|")[2:3]
        for name in re.findall(r"`([a-z_]+)`", cell)
    }
    assert told == {each.type for each in TYPES} - {profile_names.USER.type}


def test_every_attribute_is_told() -> None:
    keys = [value for value in vars(profile_names).values() if isinstance(value, str) and "thread." in value]
    assert len(keys) >= 3
    keys += [tensor_metrics.DEVICE, torch_operators.OPERATOR, torch_operators.NODE]
    assert [key for key in keys if f"`{key}`" not in TEXT] == []


@pytest.mark.parametrize("suffix", list(FORMATS))
def test_every_format_is_told(suffix: str) -> None:
    assert f"| `{suffix}` | " in TEXT
