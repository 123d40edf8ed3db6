"""A training loop as people write it first: it computes, waits a little for its data, and every fifth batch saves.

``python examples/slow_ai_simulator.py --folder DIR``. Nothing here knows of otelgpu: no spans, no hints.
``otelgpu diagnose stall -- python examples/slow_ai_simulator.py`` says what is wrong with it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

CHECKPOINT_BYTES = 50_000_000


def train(batches: int, folder: Path) -> None:
    """Run the loop."""
    weights = np.random.default_rng(0).standard_normal((700, 700)).astype(np.float32)
    state = bytes(CHECKPOINT_BYTES)
    for batch in range(batches):
        weights = np.tanh(weights @ weights / 700)
        time.sleep(0.05)
        if batch % 5 == 4:
            save(folder / "checkpoint.bin", state)


def save(path: Path, state: bytes) -> None:
    """Write all of it, on this thread."""
    with open(path, "wb") as file:
        file.write(state)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    train(options.batches, options.folder)


if __name__ == "__main__":
    main()
