"""docs/reference/profiles.md has every kind, sample type, attribute and format, as the code has them."""

from __future__ import annotations

import re

import pytest

from otelgpu.families.gpu.cuda.signals import SIGNALS as CUDA
from otelgpu.families.gpu.memory import profile_rows as memory_profiles
from otelgpu.families.gpu.torch import metrics as tensor_metrics
from otelgpu.families.gpu.torch import profile_rows as profile_tensors
from otelgpu.families.profiles import names as profile_names
from otelgpu.families.profiles import operations as profile_operations
from otelgpu.families.profiles import torch_operators
from otelgpu.families.rdma import profile_rows as profile_posts
from otelgpu.model.profiles import ValueType
from otelgpu.model.profiling import ProfileKind
from otelgpu.render.format import FORMATS
from tools.document import DOCS

TEXT = (DOCS / "reference" / "profiles.md").read_text()
TYPES = {
    value
    for module in (profile_names, profile_operations, profile_tensors, profile_posts, memory_profiles)
    for value in vars(module).values()
    if isinstance(value, ValueType)
} | set(profile_operations.call_types(CUDA.scope))


@pytest.mark.parametrize("kind", list(ProfileKind))
def test_every_kind_has_its_row(kind: ProfileKind) -> None:
    assert f"| `{kind}` | " in TEXT


@pytest.mark.parametrize("name", sorted({each.type for each in TYPES} - {profile_names.USER.type}))
def test_every_sample_type_is_reported(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_no_sample_type_is_reported_that_there_is_not() -> None:
    table = TEXT.split("## Kinds")[1].split("`all` is")[0]
    reported = {
        name
        for row in table.splitlines()
        for cell in row.split("|")[2:3]
        for name in re.findall(r"`([a-z_]+)`", cell)
    }
    assert reported == {each.type for each in TYPES} - {profile_names.USER.type}


def test_every_attribute_is_reported() -> None:
    keys = [value for value in vars(profile_names).values() if isinstance(value, str) and "thread." in value]
    assert len(keys) >= 3
    keys += [tensor_metrics.DEVICE, torch_operators.OPERATOR, torch_operators.NODE]
    assert [key for key in keys if f"`{key}`" not in TEXT] == []


@pytest.mark.parametrize("suffix", list(FORMATS))
def test_every_format_is_reported(suffix: str) -> None:
    assert f"| `{suffix}` | " in TEXT
