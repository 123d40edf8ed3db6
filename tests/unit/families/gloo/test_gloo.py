"""gloo's calls are operations of the group that they were made in; stretches of threads are told apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.families.gloo.decode import GlooDecoder, stretches
from otelgpu.families.gloo.groups import learn
from otelgpu.model.inputs import Batch
from otelgpu.model.job_groups import GROUPS, JobGroups, identity_of
from otelgpu.model.operations import OperationKind, SequenceSource
from otelgpu.model.resource import Resource, resource
from otelgpu.model.stretches import Stretch
from tests.unit.families.records import btf, record

ALLREDUCE, BARRIER = 1, 8
KINDS = {"GLOO_CALL": OperationKind.COLLECTIVE, "GLOO_STRETCH": OperationKind.STRETCH}


def call(*, tgid: int = 7, **fields: Any) -> Batch:
    usual = {
        "context": 0x10,
        "bytes": 4000,
        "tag": 3,
        "rank": 1,
        "ranks": 2,
        "root": -1,
        "api": 1,
        "tagged": 1,
    }
    head = {"time_ns": 1000, "duration_ns": 50, "tgid": tgid, "tid": 9, "returned": 1}
    return record("gloo", "gloo_call", head, **(usual | fields))


def owner(rank: int = 1, ranks: int = 2, job: str = "17") -> Resource:
    return resource(
        {"otelgpu.job.id": job, "otelgpu.job.rank": rank, "otelgpu.job.world_size": ranks, "process.pid": 7}
    )


def test_kinds_and_stretches_are_numbered_as_the_model_numbers_them() -> None:
    assert btf("gloo").enumerators("gloo_kind") == KINDS
    named = {f"STRETCH_{each.name}": int(each) for each in Stretch}
    assert btf("gloo").enumerators("gloo_stretch_of") == named | {"STRETCH_NONE": 0}


def test_a_call_is_an_operation_of_its_group() -> None:
    decoder = GlooDecoder(btf("gloo"))
    (row,) = decoder.decode(call())
    assert decoder.apis[int(row["api"])] == "gloo::allreduce"
    assert decoder.apis[BARRIER] == "gloo::barrier"
    assert (row["kind"], row["handle"], row["rank"], row["size_bytes"]) == (14, 0x10, 1, 4000)
    assert (row["sequence"], row["sequence_source"]) == (3, SequenceSource.CALL)
    assert (row["start_ns"], row["duration_ns"], row["returned"]) == (1000, 50, 1)


def test_a_send_is_an_operation_of_its_pair_of_ranks() -> None:
    decoder = GlooDecoder(btf("gloo"))
    names = {name: api for api, name in decoder.apis.items()}
    (row,) = decoder.decode(call(api=names["gloo::send"], transfer=1, root=0, bytes=0))
    assert (row["kind"], row["rank"], row["peer"], row["sequence"]) == (OperationKind.POINT_TO_POINT, 1, 0, 3)
    assert row["sequence_source"] == SequenceSource.CALL
    assert sorted(name for name in decoder.apis.values() if name in ("gloo::send", "gloo::recv")) == [
        *("gloo::recv", "gloo::recv", "gloo::send")  # of a rank, and of any
    ]
    assert not any("Work" in name or "Group" in name for name in decoder.apis.values())


@pytest.mark.parametrize("fields", [{"tagged": 0}, {"rank": -1}])
def test_a_number_that_is_not_known_is_none(fields: dict[str, int]) -> None:
    (row,) = GlooDecoder(btf("gloo")).decode(call(**fields))
    assert row["sequence_source"] == SequenceSource.UNKNOWN


@pytest.mark.parametrize(("size", "kept"), [((1 << 64) - 1, 1 << 48), (0, 0)])
def test_a_size_has_a_bound(size: int, kept: int) -> None:
    (row,) = GlooDecoder(btf("gloo")).decode(call(bytes=size))
    assert row["size_bytes"] == kept


def test_functions_and_stretches_that_are_not_known_are_passed_over() -> None:
    assert len(GlooDecoder(btf("gloo")).decode(call(api=12))) == 0  # a function of PyTorch's
    head = {"time_ns": 5, "duration_ns": 2, "tgid": 7, "tid": 7}
    assert [len(stretches(record("gloo", "gloo_stretch", head, of=of))) for of in (0, 1, 2, 3, 4)] == [
        *(0, 1, 1, 1, 0)
    ]
    assert (
        len(stretches(call()))
        == len(GlooDecoder(btf("gloo")).decode(record("gloo", "gloo_stretch", head)))
        == 0
    )


def test_the_group_of_all_ranks_has_the_identity_that_other_ranks_give_it() -> None:
    mine, other = (JobGroups("gloo", lambda _, rank=rank: owner(rank)) for rank in (0, 1))  # type: ignore[misc]
    (here,), (there,) = learn(mine, call(rank=0)), learn(other, call(rank=1))
    assert here.hash == there.hash == identity_of("gloo", owner(), 1, 2) != 0
    assert (here.rank, here.ranks, here.address) == (0, 2, 0x10)
    assert identity_of("gloo", owner(job="18"), 1, 2) != here.hash


@pytest.mark.parametrize(
    ("fields", "whose"),
    [
        ({"ranks": 3}, owner()),  # a part of the job, or another's
        ({"rank": 0}, owner()),
        ({}, owner(job="")),
        ({}, resource({"process.pid": 7})),
    ],
)
def test_no_identity_is_made_up(fields: dict[str, int], whose: Resource) -> None:
    groups = JobGroups("gloo", lambda _: whose)
    (seen,) = learn(groups, call(**fields))
    assert seen.hash == 0
    assert groups.counters["group_unidentified"] == 1


def test_a_second_group_of_all_ranks_is_not_taken_for_the_first() -> None:
    groups = JobGroups("gloo", lambda _: owner())
    (first,), (second,) = learn(groups, call()), learn(groups, call(context=0x20))
    assert first.hash and not second.hash
    assert learn(groups, call()) == []  # known
    groups.forget_process(7)
    assert learn(groups, call(context=0x20))[0].hash == first.hash


def test_sends_have_the_group_that_collectives_have() -> None:
    """Of another object: the first of each kind is that of all ranks."""
    groups = JobGroups("gloo", lambda _: owner())
    (first,), (sends,) = learn(groups, call()), learn(groups, call(context=0x20, transfer=1))
    assert first.hash == sends.hash != 0
    assert learn(groups, call(context=0x30, transfer=1))[0].hash == 0


def test_a_process_that_nobody_has_looked_at_yet_is_asked_for_again() -> None:
    known: list[Resource] = []
    groups = JobGroups("gloo", lambda _: known[0] if known else None)
    assert learn(groups, call()) == []
    known.append(owner())
    assert learn(groups, call())[0].hash


def test_groups_have_a_bound() -> None:
    groups = JobGroups("gloo", lambda _: owner())
    batch = call()
    records = np.repeat(batch.records, GROUPS + 3)
    records["context"] = np.arange(1, GROUPS + 4)
    assert len(learn(groups, Batch(family="gloo", kind="gloo_call", records=records))) == GROUPS
    assert groups.counters["groups_full"] == 3
