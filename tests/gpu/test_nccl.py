"""Communicators of a real GPU: read by the table, by debugging information and by calibration, all alike.

One rank for each device, all in one process, as ``ncclCommInitRank`` in a group makes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.families.nccl.discover import communicators
from otelgpu.families.nccl.discover.layouts import LISTED, CommunicatorLayout
from otelgpu.model.operations import SequenceSource
from tests.gpu.conftest import STAND_IN, Gpu
from tests.kernel.observing import Watch
from tests.kernel.test_nccl_capture import calls, numbers, seen
from tests.rig.fakes import build_fakes
from tests.rig.nccl_client import NcclClient
from tests.rig.nccl_wheels import VERSIONS, nccl_library

ELEMENTS, FLOAT32, SUM = 1009, 7, 0


@pytest.fixture(params=["fake"] if STAND_IN else VERSIONS)
def library(request: pytest.FixtureRequest) -> Path:
    """One for each version of the table."""
    if os.geteuid() != 0:
        pytest.skip(f"needs root to load BPF programs: uid {os.geteuid()}")
    if STAND_IN:
        return build_fakes() / "libnccl.so.2"
    try:
        return nccl_library(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture
def client(library: Path, gpu: Gpu) -> Iterator[NcclClient]:
    with NcclClient(library, gpu.environment) as process:
        yield process


def layout_in(watch: Watch) -> tuple[CommunicatorLayout | None, str]:
    layouts = watch.source._watchers["nccl"]
    assert isinstance(layouts, communicators.NcclLayouts)
    (copy,) = layouts.copies
    return copy.layout, copy.source


@pytest.mark.parametrize("way", ["listed", "debug_info", "calibrated"])
def test_a_live_communicator_is_read(
    library: Path, client: NcclClient, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "listed":
        monkeypatch.setattr(communicators, "LISTED", {})
    if way == "calibrated":
        monkeypatch.setattr(communicators, "described_layout", lambda *_: None)
    with Watch(families=("nccl",)) as watch:
        watch.source.prepare_file(library)
        for _ in range(3000):
            if way != "debug_info" or layout_in(watch)[0] is not None:
                break
            watch.pump(0.02)
        watch.observe(client.pid)
        identity, out, memory = client.map(4096), client.map(4096), client.map(4096)

        def work() -> None:
            assert client.call("ncclGetUniqueId", identity) == [0]
            secret = client.read(identity, 128).to_bytes(128, "little").hex()
            assert client.call("ncclCommInitRank", out, 1, secret, 0) == [0]

        watch.during(work, limit_s=300)
        communicator = client.read(out, 8)

        def reduce() -> None:
            assert client.call("ncclMemAlloc", memory, 4 * ELEMENTS) == [0]
            buffer = client.read(memory, 8)
            given = (buffer, buffer, ELEMENTS, FLOAT32, SUM, communicator, 0)
            assert client.call("ncclAllReduce", *given, times=23) == [0] * 23
            assert client.call("ncclCommDestroy", communicator) == [0]

        watch.during(reduce, limit_s=300)
        layout, source = layout_in(watch)
        assert source == way
        assert layout is not None
        if not STAND_IN:
            listed = next(each for each in LISTED.values() if each.hash_at == layout.hash_at)
            assert (layout.rank_at, layout.ranks_at, layout.device_at) == (
                *(listed.rank_at, listed.ranks_at, listed.device_at),
            )
        reported = seen(watch, client.pid)
        assert (reported[-1].address, reported[-1].rank, reported[-1].ranks, reported[-1].ended) == (
            communicator,
            0,
            1,
            True,
        )
        assert reported[-1].hash
        reduced = [r for r in calls(watch, client.pid) if int(r["api"]) == numbers(watch)["ncclAllReduce"]]
        assert {(int(r["hash"]), int(r["rank"]), int(r["device"]), int(r["status"])) for r in reduced} == {
            (reported[-1].hash, 0, 0, 0)
        }
        assert len(reduced) == 23
        # Of one rank nothing is counted by the library, which has nobody to talk to.
        assert {int(r["sequence_source"]) for r in reduced} == {SequenceSource.UNKNOWN}
