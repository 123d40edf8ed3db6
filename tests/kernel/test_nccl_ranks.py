"""Many ranks on the fake NCCL: each of their calls is recorded as it was, and none is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from otelgpu.model.inputs import Batch
from otelgpu.model.operations import SequenceSource
from tests.kernel.observing import Watch
from tests.rig import RankTruth, start_ranks
from tests.rig.ranks import COLLECTIVES, FUNCTIONS, NcclVersion

RING_BYTES = 64 << 20
POSTPONED = {("probes", "file_postponed")}
"""No loss: on a busy machine a process may be looked at a turn later, and its calls are compared."""


def recorded(watch: Watch, kind: str) -> npt.NDArray[np.void]:
    """All records of a kind of this family, by time."""
    number = watch.source.btf["nccl"].enumerators("nccl_kind")[f"NCCL_{kind.upper()}"]
    rows = [item.records for item in watch.inputs if isinstance(item, Batch) and item.kind == "nccl_call"]
    found = np.concatenate(rows)
    found = found[found["head"]["kind"] == number]
    ordered: npt.NDArray[np.void] = found[np.argsort(found["head"]["time_ns"], kind="stable")]
    return ordered


def of_process(rows: npt.NDArray[np.void], pid: int) -> npt.NDArray[np.void]:
    chosen: npt.NDArray[np.void] = rows[rows["head"]["tgid"] == pid]
    return chosen


def observe(watch: Watch, folder: Path, *options: str, version: NcclVersion = "2.28.9") -> list[RankTruth]:
    """Run program_collectives with probes from its first call on; what its ranks say."""
    with start_ranks("collectives", "--wait=1", *options, truth=folder, version=version) as ranks:
        watch.observe(*ranks.pids)
        ranks.open_gate()
        watch.during(ranks.finish, limit_s=120)
        return ranks.collectives(version)


def observe_late(watch: Watch, folder: Path, after: int, version: NcclVersion) -> list[RankTruth]:
    """The same of two ranks after so many collectives; what they say of the calls since."""
    options = (
        "--ranks=2",
        "--communicators=2",
        f"--collectives={2 * after}",
        "--gates=1",
        f"--pause={after}",
    )
    with start_ranks("collectives", *options, truth=folder, version=version) as ranks:
        ranks.wait_for_gate()
        watch.observe(*ranks.pids)
        attached_ns = time.monotonic_ns()
        ranks.open_gate()
        watch.during(ranks.finish)
        return [since(rank, attached_ns) for rank in ranks.collectives(version)]


def since(rank: RankTruth, time_ns: int) -> RankTruth:
    """What it says of its calls since then; groups count from there, as they do for who attached then."""
    calls = rank.calls[rank.calls["start_ns"] > time_ns]
    grouped = calls["group"] > 0
    calls["group"][grouped] -= calls["group"][grouped].min() - 1
    return replace(rank, calls=calls)


def api_numbers(watch: Watch) -> list[int]:
    """Numbers of `enum nccl_api` in the order of FUNCTIONS."""
    numbers = watch.source.btf["nccl"].enumerators("nccl_api")
    return [numbers[f"API_{name}"] for name in FUNCTIONS]


def of_functions(rank: RankTruth, *functions: str) -> npt.NDArray[np.void]:
    chosen: npt.NDArray[np.void] = rank.calls[
        np.isin(rank.calls["function"], [FUNCTIONS.index(name) for name in functions])
    ]
    return chosen


def check_calls(watch: Watch, truth: list[RankTruth]) -> None:
    """Every call of every rank, in order, with its arguments, communicator and rank."""
    numbers = np.array(api_numbers(watch))
    collectives = recorded(watch, "collective")
    points, groups = recorded(watch, "point_to_point"), recorded(watch, "group")
    for rank in truth:
        said = of_functions(rank, *FUNCTIONS[:COLLECTIVES])
        found = of_process(collectives, rank.pid)
        assert len(found) == len(said), f"rank {rank.rank}: {len(found)} of {len(said)} collectives"
        known = {
            "communicator": np.array([one.address for one in rank.communicators], dtype=np.uint64),
            "hash": np.array([one.hash for one in rank.communicators], dtype=np.uint64),
            "rank": np.array([one.rank for one in rank.communicators]),
        }
        for field, values in known.items():
            assert (found[field] == values[said["communicator"]]).all(), field
        for field in ("count", "stream", "peer", "datatype", "group"):
            assert (found[field] == said[field]).all(), field
        assert (found["api"] == numbers[said["function"]]).all()
        assert (found["device"] == rank.rank).all()
        assert (found["head"]["tid"] == said["tid"]).all()
        assert (found["status"] == 0).all()
        reduces = np.isin(found["api"], numbers[[0, 2]])
        assert (found["reduction"][reduces] == said["reduction"][reduces]).all()
        # The call lies within what the program measured around it.
        assert (found["head"]["time_ns"] >= said["start_ns"]).all()
        assert (found["head"]["time_ns"] + found["head"]["duration_ns"] <= said["end_ns"]).all()

        said, found = of_functions(rank, "ncclSend", "ncclRecv"), of_process(points, rank.pid)
        assert (found["peer"] == said["peer"]).all()
        assert (found["group"] == said["group"]).all()
        said, found = of_functions(rank, "ncclGroupEnd"), of_process(groups, rank.pid)
        assert (found["extra"] == said["count"]).all()


def check_sequences(watch: Watch, truth: list[RankTruth], source: SequenceSource) -> None:
    """What the communicators counted: the earlier calls of that function."""
    collectives = recorded(watch, "collective")
    for rank in truth:
        said = of_functions(rank, *FUNCTIONS[:COLLECTIVES])
        found = of_process(collectives, rank.pid)
        assert (found["sequence_source"] == source).all()
        if source:
            assert (found["sequence"] == said["sequence"]).all()


def test_every_collective_of_eight_ranks_is_recorded(watch: Callable[..., Watch], tmp_path: Path) -> None:
    watching = watch(families=("nccl",), ring_bytes=RING_BYTES)
    truth = observe(watching, tmp_path, "--ranks=8", "--communicators=3", "--collectives=10000")
    assert sum(len(of_functions(rank, *FUNCTIONS[:COLLECTIVES])) for rank in truth) == 240_000
    check_calls(watching, truth)
    check_sequences(watching, truth, SequenceSource.FUNCTION)
    assert watching.losses().keys() <= POSTPONED


def test_a_version_that_counts_nothing_by_function(watch: Callable[..., Watch], tmp_path: Path) -> None:
    watching = watch(families=("nccl",), ring_bytes=RING_BYTES)
    # Slowly enough for the communicators to be looked at while they are there.
    options = ("--ranks=3", "--communicators=2", "--collectives=307", "--rate=200")
    truth = observe(watching, tmp_path, *options, version="2.21.5")
    check_calls(watching, truth)
    check_sequences(watching, truth, SequenceSource.UNKNOWN)  # user space counts: it saw the first
    assert watching.losses().keys() <= POSTPONED


@pytest.mark.parametrize("version", ["2.28.9", "2.21.5"])
def test_attached_late_communicators_and_their_counts_are_read(
    watch: Callable[..., Watch], tmp_path: Path, version: NcclVersion
) -> None:
    watching = watch(families=("nccl",), ring_bytes=RING_BYTES)
    truth = observe_late(watching, tmp_path, 1000, version)
    assert min(of_functions(rank, "ncclAllReduce")["sequence"].min() for rank in truth) == 200
    check_calls(watching, truth)
    counted = SequenceSource.FUNCTION if version == "2.28.9" else SequenceSource.UNKNOWN
    check_sequences(watching, truth, counted)
    assert watching.losses().keys() <= POSTPONED
