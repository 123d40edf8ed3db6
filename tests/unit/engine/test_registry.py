"""Families: found, chosen and complete; that their names do not clash is in test_metric_tables.py."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from otelgpu.engine import registry
from otelgpu.engine.contract import Family
from otelgpu.engine.operation_signals import OperationSignals
from otelgpu.engine.pipeline import Pipeline
from otelgpu.errors import OtelgpuError
from otelgpu.families.gpu.cuda.functions import Functions, canonical
from otelgpu.model.operations import DEVICE_KINDS
from otelgpu.model.resource import resource
from otelgpu.model.settings import SignalSettings
from tests.unit.families.records import btf
from tests.unit.model.builders import calls

FAMILIES = Path(__file__).resolve().parents[3] / "otelgpu" / "families"
PROGRAMS = {source.stem.removesuffix(".bpf") for source in FAMILIES.parents[1].glob("bpf/*/*.bpf.c")}


ASKED = ("probe", "profile", "torch")


def declared() -> set[str]:
    """Folders of families, as their source says: those with a ``FAMILY``."""
    sources = [*FAMILIES.glob("*/__init__.py"), *FAMILIES.glob("*/*/__init__.py")]
    made = re.compile(r"^FAMILY\b.* = ", re.MULTILINE)
    return {str(path.parent.relative_to(FAMILIES)) for path in sources if made.search(path.read_text())}


def test_families_are_found_in_alphabetical_order_whatever_folder_they_are_in() -> None:
    found = {package.removeprefix("otelgpu.families.").replace(".", "/") for package in registry.packages()}
    assert found == declared()
    assert {"gpu/cuda", "nccl", "rdma/fabric", "steps/training"} <= found
    assert list(registry.families()) == sorted(registry.families())
    assert len(registry.families()) == len(found)  # no two of one name


def test_those_with_records_are_observed_and_all_others_are_part_of_every_session() -> None:
    """Each program is a family's, but for the one that follows processes, which is the engine's own."""
    assert set(registry.with_records()) == PROGRAMS - {"process"}
    assert set(registry.without_records()) == registry.families().keys() - PROGRAMS
    assert {"memory", "requests", "steps"} <= set(registry.without_records())


def test_a_choice_keeps_the_order_of_the_registry() -> None:
    assert list(registry.select(("http", "cuda"))) == ["cuda", "http"]
    assert list(registry.select(())) == [name for name in registry.with_records() if name not in ASKED]
    assert list(registry.select(("http",))) == ["http"]


def test_what_has_to_be_asked_for_is_selected_by_its_name_only() -> None:
    assert "profile" not in registry.select(())
    assert list(registry.select(("profile", "cuda"))) == ["cuda", "profile"]


def test_what_goes_beside_collectives_waits_for_whatever_family_has_them() -> None:
    known = registry.families()
    other = replace(known["nccl"], name="rccl")
    assert not known["file"].at_once({"cuda": known["cuda"], "rccl": other})
    assert known["file"].at_once({"cuda": known["cuda"], "file": known["file"]})


@pytest.mark.parametrize("name", ["no_such_family", "memory"])
def test_a_family_that_cannot_be_observed_says_which_can(name: str) -> None:
    message = rf"'{name}'\nfamilies are: {', '.join(sorted(PROGRAMS - {'process'}))}$"
    with pytest.raises(OtelgpuError, match=message):
        registry.select(("cuda", name))


@pytest.mark.parametrize("name", registry.with_records())
def test_every_family_with_records_does_something_with_them(name: str) -> None:
    """Opened in a session on the types of its object, it has a decoder or takes batches itself."""
    family = registry.families()[name]
    made = Pipeline({name: family}, {name: btf(name)}, seed=1, own=resource({}), start_unix_ns=0)
    assert family.operations is not None or name in made.handlers.taking


@pytest.mark.parametrize("family", registry.families().values(), ids=lambda family: family.name)
def test_a_family_has_operations_or_a_handler(family: Family) -> None:
    assert family.operations is not None or family.open is not None
    assert family.load is not None or family.operations is None  # operations come of records


def cuda_signals() -> OperationSignals:
    operations = registry.families()["cuda"].operations
    assert operations is not None
    return operations.signals


def test_every_kind_of_operation_has_its_attributes() -> None:
    assert set(cuda_signals().attributes) == set(DEVICE_KINDS)


def test_columns_of_the_table_answer_one_value_per_row() -> None:
    signals, rows = cuda_signals(), calls(3)
    columns = [spec.column for table in signals.attributes.values() for spec in table]
    columns += [column for table in signals.labels.values() for _, _, column in table]
    columns += [spec.value for spec in signals.metrics if spec.value is not None]
    columns += [total.value for total in signals.summaries if total.value is not None]
    assert {np.shape(column(rows)) for column in columns} == {(3,)}


def test_the_functions_of_the_table_exist() -> None:
    operations = registry.families()["cuda"].operations
    assert operations is not None
    known = set(operations.decoder(btf("cuda"), SignalSettings()).apis.values())
    canonical_names = {canonical(name) for name in known}
    listed = [spec.apis for spec in cuda_signals().metrics if isinstance(spec.apis, Functions)]
    assert len(listed) > 5
    assert {name for apis in listed for name in apis.names} <= canonical_names
