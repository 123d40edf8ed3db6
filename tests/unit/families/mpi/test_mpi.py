"""MPI's calls are operations of the communicator that they were made in; waits are stretches."""

from __future__ import annotations

from typing import Any

import pytest

from otelgpu.engine.call_roles import Role, StepCalls
from otelgpu.families.mpi.decode import MpiDecoder, waits
from otelgpu.families.mpi.handler import learn
from otelgpu.families.nccl.names import operation_of
from otelgpu.model.inputs import Batch
from otelgpu.model.job_groups import JobGroups, identity_of
from otelgpu.model.operations import OperationKind, SequenceSource
from otelgpu.model.resource import Resource, resource
from otelgpu.model.stretches import Stretch
from tests.unit.families.records import btf, record

WORLD = 0x44000000
APIS = {name: api for api, name in MpiDecoder(btf("mpi")).apis.items()}


def call(name: str = "MPI_Allreduce", **fields: Any) -> Batch:
    usual = {"communicator": WORLD, "bytes": 8000, "rank": 1, "ranks": 4, "root": -1, "created": 1}
    head = {"time_ns": 1000, "duration_ns": 50, "tgid": 7, "tid": 7, "returned": 1}
    return record("mpi", "mpi_call", head, **(usual | {"api": APIS[name]} | fields))


def owner(rank: int = 1) -> Resource:
    return resource({"otelgpu.job.id": "17", "otelgpu.job.rank": rank, "otelgpu.job.world_size": 4})


def test_the_kind_is_numbered_as_the_model_numbers_it() -> None:
    assert btf("mpi").enumerators("mpi_kind") == {"MPI_CALL": OperationKind.COLLECTIVE}


def test_a_collective_is_an_operation_of_its_communicator() -> None:
    decoder = MpiDecoder(btf("mpi"))
    (row,) = decoder.decode(call())
    assert decoder.apis[int(row["api"])] == "MPI_Allreduce"
    assert (row["kind"], row["handle"], row["rank"]) == (OperationKind.COLLECTIVE, WORLD, 1)
    assert (row["start_ns"], row["duration_ns"], row["size_bytes"], row["peer"]) == (1000, 50, 8000, -1)
    assert row["sequence_source"] == SequenceSource.UNKNOWN
    assert len(waits(call())) == 0


def test_a_send_is_of_no_communicator_that_numbers_are_counted_of() -> None:
    (row,) = MpiDecoder(btf("mpi")).decode(call("MPI_Send", transfer=1, root=3))
    assert (row["kind"], row["handle"], row["peer"]) == (OperationKind.POINT_TO_POINT, 0, 3)


@pytest.mark.parametrize(("returned", "rows"), [(1, 1), (0, 0)])
def test_a_wait_is_a_stretch_once_it_has_ended(returned: int, rows: int) -> None:
    batch = call("MPI_Waitall", wait=1, communicator=0)
    batch.heads["returned"] = returned
    found = waits(batch)
    assert len(MpiDecoder(btf("mpi")).decode(batch)) == 0
    assert found["api"].tolist() == [Stretch.COMMUNICATION_WAIT] * rows
    assert found["kind"].tolist() == [OperationKind.STRETCH] * rows


@pytest.mark.parametrize("api", [0, 60_000])
def test_functions_that_are_not_known_are_passed_over(api: int) -> None:
    assert len(MpiDecoder(btf("mpi")).decode(call(api=api))) == 0


@pytest.mark.parametrize(("size", "kept"), [((1 << 64) - 1, 1 << 48), (0, 0)])
def test_a_size_has_a_bound(size: int, kept: int) -> None:
    (row,) = MpiDecoder(btf("mpi")).decode(call(bytes=size))
    assert row["size_bytes"] == kept


def test_the_communicator_of_all_ranks_has_the_identity_that_other_ranks_give_it() -> None:
    groups = JobGroups("mpi", lambda _: owner())
    (seen,) = learn(groups, call())
    assert (seen.hash, seen.rank, seen.ranks) == (identity_of("mpi", owner(), 1, 4), 1, 4)
    assert seen.hash == identity_of("mpi", owner(0), 0, 4) != identity_of("gloo", owner(), 1, 4)
    assert seen.created
    assert learn(groups, call()) == []


def test_counts_of_a_communicator_that_was_there_before_do_not_begin_at_none() -> None:
    (seen,) = learn(JobGroups("mpi", lambda _: owner()), call(created=0))
    assert not seen.created


def test_a_communicator_that_took_the_place_of_a_freed_one_is_another() -> None:
    groups = JobGroups("mpi", lambda _: owner())
    free = call("MPI_Comm_free", freed=1, rank=-1, ranks=-1)
    assert learn(groups, free) == []
    (first,) = learn(groups, call())
    (ended,) = learn(groups, free)
    assert (ended.ended, ended.address) == (True, first.address)
    (second,) = learn(groups, call())
    assert first.hash and not second.hash
    assert len(MpiDecoder(btf("mpi")).decode(free)) == 0


@pytest.mark.parametrize(
    "batch",
    [call("MPI_Send", transfer=1), call("MPI_Wait", wait=1), call(rank=-1)],
    ids=["send", "wait", "unknown"],
)
def test_what_is_no_collective_of_a_known_rank_shows_no_communicator(batch: Batch) -> None:
    assert learn(JobGroups("mpi", lambda _: owner()), batch) == []


def test_functions_have_the_names_and_the_role_that_they_have_in_steps() -> None:
    names = {operation_of(name) for name in APIS}
    assert names >= {"AllReduce", "Broadcast", "ReduceScatter", "AllGather", "AlltoAll", "Barrier", "Send"}
    rows = MpiDecoder(btf("mpi")).decode(call())
    assert StepCalls([MpiDecoder(btf("mpi")).apis]).roles(rows).tolist() == [Role.COMMUNICATION_WAIT]
