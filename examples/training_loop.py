"""A training loop with a fault that many have: every few batches it stands still while a checkpoint is written.

``python -m examples.training_loop --steps 40 --folder DIR``: a matrix product per batch, and after every fifth one
50 MB that are written and synced on the training thread. Nothing here knows of otelgpu. With opentelemetry-python
installed each step is a span, as instrumented loops have it; with ``OTEL_PYTHON_CONTEXT=otelgpu`` the active span is
published, per thread.

``--truth FILE``: a JSON line a step, to check against what a profiler says.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]

SIDE = 700  # of the matrices: some ten milliseconds a product on one core
CHECKPOINT_BYTES = 50_000_000
EVERY = 5


def tracer() -> Any:
    """Of opentelemetry-python, with nowhere to export to; None where it is not installed."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        return None
    return TracerProvider().get_tracer("training_loop")


def train_batch(weights: Matrix, batch: Matrix) -> Matrix:
    """The work of a batch."""
    product = np.tanh(weights @ batch)
    updated: Matrix = (0.99 * weights + 0.01 * product).astype(np.float32)
    return updated


def write_checkpoint(path: Path, state: bytes) -> dict[str, float]:
    """Write the state and wait until it is on the disk; how long both took."""
    began = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        file.write(state)
        written = time.monotonic()
        os.fsync(file.fileno())
    return {"write_s": written - began, "fsync_s": time.monotonic() - written}


def train(steps: int, folder: Path, truth: Path | None, load_s: float) -> None:
    """Run the loop."""
    random = np.random.default_rng(0)
    weights = (random.standard_normal((SIDE, SIDE)) / SIDE).astype(np.float32)
    state = random.bytes(CHECKPOINT_BYTES)
    spans = tracer()
    lines = []
    with spans.start_as_current_span("load") if spans is not None else nullcontext():
        time.sleep(load_s)
    for step in range(steps):
        began = time.monotonic_ns()
        reported: dict[str, Any] = {"step": step}
        with spans.start_as_current_span(f"step {step}") if spans is not None else nullcontext() as span:
            batch = random.standard_normal((SIDE, SIDE)).astype(np.float32)
            weights = train_batch(weights, batch)
            if step % EVERY == EVERY - 1:
                path = folder / f"checkpoint-{step}.bin"
                reported |= {"checkpoint": str(path), **write_checkpoint(path, state)}
                path.unlink()
        if span is not None:
            reported["span_id"] = f"{span.get_span_context().span_id:016x}"
        reported |= {"start_ns": began, "seconds": (time.monotonic_ns() - began) / 1e9}
        lines.append(json.dumps(reported))
    if truth is not None:
        truth.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--truth", type=Path)
    parser.add_argument(
        "--load-seconds", type=float, default=0.0, help="what loading the data takes, before the first step"
    )
    options = parser.parse_args()
    train(options.steps, options.folder, options.truth, options.load_seconds)


if __name__ == "__main__":
    main()
