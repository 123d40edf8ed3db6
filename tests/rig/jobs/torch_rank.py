"""One rank of a data-parallel job of real PyTorch on CPUs, with gloo. Started by ``tests.rig.jobs.torch_gloo``.

From step ``--late-from`` on it is late by ``--late-ms`` in each step, in its own code or in its data loader, or it goes
into ``--cgroup``. It writes a trace of torch.profiler.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]

LOAD_S = 0.01
FEATURES, WIDTH, BATCH = 64, 256, 16


class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Each takes a while to read."""

    def __init__(self, steps: int, late_s: float, late_from: int) -> None:
        self._steps, self._late_s, self._late_from = steps, late_s, late_from

    def __iter__(self) -> Any:
        for step in range(self._steps):
            time.sleep(LOAD_S + (self._late_s if step >= self._late_from else 0))
            yield torch.randn(BATCH, FEATURES), torch.randn(BATCH, FEATURES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--late-from", type=int, default=0)
    parser.add_argument("--late-ms", type=float, default=0)
    parser.add_argument("--late-in", choices=("host", "input"), default="host")
    parser.add_argument("--cgroup", type=Path)
    options = parser.parse_args()
    late_s = options.late_ms / 1e3
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [torch.nn.Linear(FEATURES, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, FEATURES)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = Batches(options.steps, late_s if options.late_in == "input" else 0, options.late_from)
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=0, active=options.steps + 1),
    )
    with profiler:
        for step, (inputs, targets) in enumerate(torch.utils.data.DataLoader(batches, batch_size=None)):
            if options.late_in == "host" and step >= options.late_from:
                time.sleep(late_s)
            if options.cgroup and step == options.late_from:
                (options.cgroup / "cgroup.procs").write_text(str(os.getpid()))
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(options.traces / f"rank{os.environ['RANK']}.json"))


if __name__ == "__main__":
    main()
