"""One rank of a data-parallel job of real PyTorch on CPUs, with gloo. Started by ``tests.rig.jobs.torch_gloo``.

From step ``--late-from`` on it is late by ``--late-ms`` in each step, in its own code or in its data loader, or it goes
into ``--cgroup``. It writes a trace of torch.profiler where ``--traces`` says so.

Before version 2 PyTorch's ``record_function``, in which its data loader fetches batches, made another call than it has
made since; here it makes the one of version 2, as otelgpu observes it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]

LOAD_S = 0.01
FEATURES, WIDTH, BATCH = 64, 256, 16


class Recorded(torch.autograd.profiler.record_function):  # type: ignore[misc]
    """As PyTorch 2 has it (torch/autograd/profiler.py)."""

    def __enter__(self) -> Any:
        self.record = torch.ops.profiler._record_function_enter_new(self.name, self.args)
        return self

    def __exit__(self, *_: object) -> None:
        torch.ops.profiler._record_function_exit._RecordFunction(self.record)


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
    parser.add_argument("--traces", type=Path)
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
    profiler = None
    if options.traces:
        profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=0, warmup=0, active=options.steps + 1),
        )
    elif int(torch.__version__.partition(".")[0]) < 2:
        torch.autograd.profiler.record_function = Recorded
    with profiler or contextlib.nullcontext():
        for step, (inputs, targets) in enumerate(torch.utils.data.DataLoader(batches, batch_size=None)):
            if options.late_in == "host" and step >= options.late_from:
                time.sleep(late_s)
            if options.cgroup and step == options.late_from:
                (options.cgroup / "cgroup.procs").write_text(str(os.getpid()))
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if profiler:
                profiler.step()
    if profiler:
        profiler.export_chrome_trace(str(options.traces / f"rank{os.environ['RANK']}.json"))


if __name__ == "__main__":
    main()
