"""Families: found, chosen, complete and without clashes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from otelgpu.errors import OtelgpuError
from otelgpu.families import registry
from otelgpu.families.base import (
    AllocatorDecoder,
    Conversation,
    FabricDecoder,
    Family,
    FileDecoder,
    HandoffDecoder,
    Instrument,
    Metric,
    OperationDecoder,
    OperationSignals,
    SampleDecoder,
)
from otelgpu.families.cuda.functions import Functions, canonical
from otelgpu.families.http import signals as http
from otelgpu.model.operations import DEVICE_KINDS
from otelgpu.model.telling import Telling
from otelgpu.signals import memory, names
from tests.unit.families.records import btf
from tests.unit.model.builders import calls, exchange, generation


def test_families_are_found_in_alphabetical_order() -> None:
    names = ["cuda", "file", "http", "nccl", "probe", "profile", "sched", "torch", "verbs"]
    assert list(registry.families()) == names


def test_a_choice_keeps_the_order_of_the_registry() -> None:
    assert list(registry.select(("http", "cuda"))) == ["cuda", "http"]
    assert list(registry.select(())) == ["cuda", "file", "http", "nccl", "sched", "verbs"]
    assert list(registry.select(("http",))) == ["http"]


def test_what_has_to_be_asked_for_is_selected_by_its_name_only() -> None:
    assert "profile" not in registry.select(())
    assert list(registry.select(("profile", "cuda"))) == ["cuda", "profile"]


def test_a_family_that_there_is_not_says_which_there_are() -> None:
    with pytest.raises(OtelgpuError, match=r"'hip'\nfamilies are: cuda, file, http, nccl, probe, profile, "):
        registry.select(("cuda", "hip"))


def test_a_family_has_at_most_four_members() -> None:
    assert len(dataclasses.fields(Family)) <= 4


@pytest.mark.parametrize("name", registry.families())
def test_a_family_opens_on_the_types_of_its_object(name: str) -> None:
    family = registry.families()[name]
    wanted: type = OperationDecoder if isinstance(family.signals, OperationSignals) else Conversation
    if family.signals is None:
        wanted = {
            "file": FileDecoder,
            "profile": SampleDecoder,
            "sched": HandoffDecoder,
            "torch": AllocatorDecoder,
            "verbs": FabricDecoder,
        }[name]
    assert isinstance(family.open(btf(name), Telling()), wanted)


def cuda_signals() -> OperationSignals:
    signals = registry.families()["cuda"].signals
    assert isinstance(signals, OperationSignals)
    return signals


def test_every_kind_of_operation_has_its_attributes() -> None:
    assert set(cuda_signals().attributes) == set(DEVICE_KINDS)


def test_columns_of_the_table_answer_one_value_per_row() -> None:
    signals, rows = cuda_signals(), calls(3)
    columns = [spec.column for table in signals.attributes.values() for spec in table]
    columns += [column for table in signals.labels.values() for _, _, column in table]
    columns += [spec.value for spec in signals.metrics if spec.value is not None]
    columns += [column for _, _, column in signals.summaries if column is not None]
    assert {np.shape(column(rows)) for column in columns} == {(3,)}


def all_metrics() -> list[Metric]:
    exchanged = [
        measured.metric for measured in http.SIGNALS.metrics([exchange(generation=generation())], ["/"])
    ]
    return [spec.metric for spec in cuda_signals().metrics] + exchanged + list(memory.METRICS)


def test_no_two_families_share_a_metric() -> None:
    found = [metric.name for metric in all_metrics()]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("metric", all_metrics(), ids=lambda metric: metric.name)
def test_only_histograms_have_bounds_and_they_ascend(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.instrument is Instrument.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_the_functions_of_the_table_exist() -> None:
    known = set(registry.families()["cuda"].open(btf("cuda"), Telling()).apis.values())  # type: ignore[union-attr]
    canonical_names = {canonical(name) for name in known}
    listed = [spec.apis for spec in cuda_signals().metrics if isinstance(spec.apis, Functions)]
    assert len(listed) > 5
    assert {name for apis in listed for name in apis.names} <= canonical_names


def test_a_familys_names_do_not_clash_with_the_shared_ones() -> None:
    shared = {value for key, value in vars(names).items() if key.isupper()}
    signals = cuda_signals()
    own = {spec.key for table in signals.attributes.values() for spec in table} | {signals.kernel_name}
    own |= {key for key, _ in signals.api_labels}
    own |= {key for table in signals.labels.values() for key, _, _ in table} | {
        s[0] for s in signals.summaries
    }
    assert own & shared == set()
