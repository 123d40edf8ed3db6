"""Train with a process a rank: ``python -m examples.training --ranks 8 --late-rank 3``.

On a machine without a GPU it runs on the fake libcudart, libcuda and libnccl of tests/fakes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REAL_GPU = Path("/dev/nvidiactl")


def environment(meeting: Path) -> dict[str, str]:
    """Of the ranks: this process's, and the fakes to be found where there is no GPU."""
    if REAL_GPU.exists():
        return dict(os.environ)
    build = ROOT / "build" / "fakes"
    if not (build / "libnccl.so.2").exists():
        sys.exit("no GPU here, and no fakes: make -C tests/fakes")
    found = os.environ.get("LD_LIBRARY_PATH")
    stand_ins = {
        "LD_LIBRARY_PATH": f"{build}:{found}" if found else str(build),
        "FAKE_CUDART_DRIVER": "libcuda.so.1",
        "FAKE_CUDART_DEVICES": "8",
        "FAKE_CUDART_KERNEL_US": "200",
        "FAKE_NCCL_DIRECTORY": str(meeting),
        "TRAINING_KERNELS": str(build / "libllmkernels.so"),
    }
    return {**stand_ins, **os.environ, "LD_LIBRARY_PATH": stand_ins["LD_LIBRARY_PATH"]}


def train(
    *, ranks: int, steps: int, late_rank: int | None, late_ms: float, late_from: int = 0
) -> list[dict[str, Any]]:
    """Run all ranks to their end; what each said. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="training-") as folder:
        command = [sys.executable, "-m", "examples.training.rank", f"--ranks={ranks}", f"--steps={steps}"]
        command += [f"--store={folder}/unique-id", f"--late-from={late_from}"]
        env = environment(Path(folder))
        processes = [
            subprocess.Popen(
                [*command, f"--rank={rank}", f"--late-ms={late_ms if rank == late_rank else 0}"],
                cwd=ROOT,
                env=env
                | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)},  # as torchrun
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            return [json.loads(_output(process)) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _output(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return said


def show(said: Sequence[dict[str, Any]]) -> None:
    """A line a rank: medians, and who was waited for."""
    print("rank   step ms   load ms   wait ms")
    waits = {}
    for one in said:
        medians = {name: statistics.median(step[name] for step in one["steps"]) for name in one["steps"][0]}
        waits[one["rank"]] = medians["wait"]
        print(f"{one['rank']:4}  {medians['step']:8.2f}  {medians['load']:8.2f}  {medians['wait']:8.2f}")
    print(f"rank {min(waits, key=lambda rank: waits[rank])} waits least: the others wait for it")


def main() -> None:
    """Train and show."""
    parser = argparse.ArgumentParser(prog="python -m examples.training", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--late-rank", type=int, help="whose data takes --late-ms longer to load")
    parser.add_argument("--late-ms", type=float, default=5)
    parser.add_argument("--late-from", type=int, default=0, help="it is late from this step on")
    options = parser.parse_args()
    show(train(**vars(options)))


if __name__ == "__main__":
    main()
