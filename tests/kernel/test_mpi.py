"""A rank of MPI, observed: each call once, and what cannot be is not believed."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otelgpu.families.mpi.decode import MpiDecoder, waits
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch, LossCounted
from otelgpu.sources.capture import CaptureReader
from tests.kernel.observing import OTELGPU
from tests.rig import missing_compiler
from tests.rig.fakes import build_fakes

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=f"needs {missing_compiler()}")

STEPS = 23
RANK = 3
SIZES = {
    **{"MPI_Allreduce": 8000, "MPI_Reduce": 80, "MPI_Bcast": 56, "MPI_Alltoall": 5 * 8 * 4},
    **{"MPI_Alltoallv": 0, "MPI_Barrier": 0, "MPI_Send": 24, "MPI_Recv": 24, "MPI_Sendrecv": 16},
}
PEERS = {"MPI_Reduce": 2, "MPI_Bcast": 0, "MPI_Send": 2, "MPI_Sendrecv": 2}
ABSURD = 5  # sums of elements that cannot be
UNKNOWN = (
    1 + 3
)  # barriers of communicators of which nobody has asked for all, or whose rank is none of theirs


@pytest.mark.parametrize("ints", [0, 1], ids=["openmpi", "mpich"])
def test_every_call_is_recorded_once(kernel: None, tmp_path: Path, ints: int) -> None:
    truth, calls, (waited, freed), lost = recorded(tmp_path, f"--ints={ints}", "--absurd=1")
    assert waited == truth.pop("MPI_Wait") == STEPS
    assert Counter(name for name, *_ in calls) == truth
    sizes = Counter({(name, size): truth[name] for name, size in SIZES.items()})
    sizes["MPI_Allreduce", 8000] -= ABSURD
    sizes["MPI_Allreduce", 0] = ABSURD
    assert Counter((name, size) for name, size, *_ in calls) == sizes
    assert {name: peer for name, _, _, peer in calls if peer != -1} == PEERS
    assert Counter(each for *_, each, _ in calls) == {RANK: len(calls) - UNKNOWN, -1: UNKNOWN}
    assert freed == 1
    assert lost["argument_unreadable"] == 1  # where it puts a rank
    assert lost["communicator_implausible"] == 2  # a rank below 0, and a call of one beyond the last


def recorded(
    folder: Path, *options: str
) -> tuple[dict[str, int], list[tuple[str, int, int, int]], tuple[int, int], Counter[str]]:
    """What it says that it called; what was recorded (function, bytes, rank, peer), waits and ends, and losses."""
    capture = folder / "capture"
    command = [OTELGPU, "record", "--hold-on-load", "--families=mpi", f"-o{capture}", "--"]
    command += [str(build_fakes() / "mpi" / "program_mpi"), f"--steps={STEPS}", *options]
    of_job = {"FAKE_MPI_RANK": str(RANK), "FAKE_MPI_RANKS": "4"}
    done = subprocess.run(command, env=os.environ | of_job, check=True, capture_output=True, timeout=120)
    line = next(each for each in done.stdout.decode().splitlines() if each.startswith("{"))
    said: dict[str, Any] = json.loads(line)
    items = list(CaptureReader(capture))
    batches = [item for item in items if isinstance(item, Batch) and item.family == "mpi"]
    decoder = MpiDecoder(read_image("mpi").btf)
    rows = [row for batch in batches for row in decoder.decode(batch)]
    assert all(row["returned"] for row in rows)
    calls = [
        (decoder.apis[int(row["api"])], int(row["size_bytes"]), int(row["rank"]), int(row["peer"]))
        for row in rows
    ]
    lost: Counter[str] = Counter()
    for item in items:
        if isinstance(item, LossCounted) and item.family == "mpi":
            lost[item.reason] += item.count
    waited = sum(len(waits(batch)) for batch in batches)
    freed = sum(int(np.count_nonzero(batch.records["freed"])) for batch in batches)
    return said["calls"], calls, (waited, freed), lost
