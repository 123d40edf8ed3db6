"""One rank of the training: ``python -m examples.training.rank``, started by ``python -m examples.training``.

Writes a JSON line with the milliseconds of each step to stdout: all of it, loading, and waiting at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from examples.training.libraries import (
    DEVICE_TO_HOST,
    FLOAT_BYTES,
    HOST_TO_DEVICE,
    NO_TIMING,
    NON_BLOCKING,
    Cuda,
    Nccl,
)

LAYERS, BUCKETS = 6, 3
BUCKET_FLOATS = 1 << 20
BATCH_BYTES = 1 << 18
LOAD_S = 0.001


def meet(nccl: Nccl, place: Path, ranks: int, rank: int) -> None:
    """Rank 0 makes the unique id; the others read it from a file, as they would from torchrun's store."""
    if rank == 0:
        new = place.with_suffix(".new")
        new.write_bytes(nccl.unique_id())
        new.rename(place)
    while not place.exists():
        time.sleep(0.001)
    nccl.join(place.read_bytes(), ranks, rank)


class Trainer:
    """The model's memory and streams on one device."""

    def __init__(self, cuda: Cuda, nccl: Nccl) -> None:
        self.cuda, self.nccl = cuda, nccl
        self.compute = cuda.made("cudaStreamCreateWithFlags", NON_BLOCKING)
        self.communication = cuda.made("cudaStreamCreateWithFlags", NON_BLOCKING)
        self.ready = cuda.made("cudaEventCreateWithFlags", NO_TIMING)
        self.reduced = cuda.made("cudaEventCreateWithFlags", NO_TIMING)
        self.batch = cuda.made("cudaMalloc", BATCH_BYTES)
        self.host_batch = cuda.made("cudaMallocHost", BATCH_BYTES)
        self.gradients = cuda.made("cudaMalloc", BUCKET_FLOATS * FLOAT_BYTES)

    def _layers(self, count: int) -> None:
        for _ in range(count):
            self.cuda.compute(self.gradients, BUCKET_FLOATS * FLOAT_BYTES, self.compute)

    def load(self, late_s: float) -> None:
        """Read a batch, and copy it to the device."""
        time.sleep(LOAD_S + late_s)
        with Path("/dev/zero").open("rb") as data:
            data.read(BATCH_BYTES)
        self.cuda.call(
            "cudaMemcpyAsync", self.batch, self.host_batch, BATCH_BYTES, HOST_TO_DEVICE, self.compute
        )

    def backward(self) -> None:
        """Gradients, each bucket averaged over the ranks while the next is computed."""
        for _ in range(BUCKETS):
            self._layers(2 * LAYERS // BUCKETS)
            self.cuda.call("cudaEventRecord", self.ready, self.compute)
            self.cuda.call("cudaStreamWaitEvent", self.communication, self.ready, 0)
            self.nccl.average(self.gradients, BUCKET_FLOATS, self.communication)

    def optimize(self) -> None:
        """New weights, once all gradients are there."""
        self.cuda.call("cudaEventRecord", self.reduced, self.communication)
        self.cuda.call("cudaStreamWaitEvent", self.compute, self.reduced, 0)
        self._layers(LAYERS)

    def read_loss(self) -> None:
        """The loss, for which the host waits: here is where a slow rank is felt by all."""
        self.cuda.call(
            "cudaMemcpyAsync", self.host_batch, self.gradients, FLOAT_BYTES, DEVICE_TO_HOST, self.compute
        )
        self.cuda.call("cudaStreamSynchronize", self.compute)

    def step(self, late_s: float) -> dict[str, float]:
        """One step; milliseconds of it, of loading and of waiting."""
        began = time.perf_counter()
        self.load(late_s)
        loaded = time.perf_counter()
        self._layers(LAYERS)
        self.backward()
        self.optimize()
        launched = time.perf_counter()
        self.read_loss()
        ended = time.perf_counter()
        times = {"step": ended - began, "load": loaded - began, "wait": ended - launched}
        return {name: seconds * 1e3 for name, seconds in times.items()}


def main() -> None:
    """Train, and say what each step took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--late-ms", type=float, default=0)
    parser.add_argument("--late-from", type=int, default=0)
    parser.add_argument("--store", type=Path, required=True)
    options = parser.parse_args()
    cuda, nccl = Cuda(options.rank), Nccl()
    meet(nccl, options.store, options.ranks, options.rank)
    trainer = Trainer(cuda, nccl)
    late_s = options.late_ms / 1e3
    steps = [trainer.step(late_s if step >= options.late_from else 0) for step in range(options.steps)]
    nccl.leave()
    print(json.dumps({"rank": options.rank, "pid": os.getpid(), "steps": steps}))


if __name__ == "__main__":
    main()
