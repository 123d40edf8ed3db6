"""Real PyTorch, on the CPU: a training loop whose loader reads in the loop's own thread, one that saves its state, and
one that does neither. PyTorch is imported by who runs one: nobody else has to have it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.gallery.programs.steps import pause

_WIDTH = 1024
_BATCH = 128
_ITEM_BYTES = 4 << 20


class _Model:
    """A perceptron, its optimizer, and a step of training."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(1)
        layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(3)]
        self.net = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-4)

    def step(self, batch: Any) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.net(batch) - batch).square().mean()
        loss.backward()
        self.optimizer.step()
        pause()
        return float(loss)


class _Shards:
    """A dataset in files, one an item, which are never in the page cache: as those of a large one."""

    def __init__(self, folder: Path, count: int) -> None:
        self._paths = [folder / f"sample-{number}.bin" for number in range(count)]
        for path in self._paths:
            path.write_bytes(bytes(_ITEM_BYTES))
        os.sync()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, position: int) -> Any:
        import torch

        with open(self._paths[position], "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            content = bytearray(file.read())
        return torch.frombuffer(content, dtype=torch.float32)[:_WIDTH].clone()


def torch_loader(folder: Path) -> None:
    """``num_workers=0``: the loop waits while the next batch is read."""
    from torch.utils.data import DataLoader

    model = _Model()
    for batch in DataLoader(_Shards(folder, 8 * 36), batch_size=8, num_workers=0):
        model.step(batch.repeat(_BATCH // 8, 1))


def torch_checkpoint(folder: Path) -> None:
    """``torch.save`` of the model and the optimizer after every sixth of 48 steps."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = _Model()
    batches = DataLoader(TensorDataset(torch.rand(48 * _BATCH, _WIDTH)), batch_size=_BATCH)
    for step, (batch,) in enumerate(batches):
        model.step(batch)
        if step % 6 == 5:
            state = {"model": model.net.state_dict(), "optimizer": model.optimizer.state_dict()}
            torch.save(state, folder / "checkpoint.pt")


def torch_healthy(folder: Path) -> None:
    """The same loop of a dataset in memory, without checkpoints."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = _Model()
    for (batch,) in DataLoader(
        TensorDataset(torch.rand(64 * _BATCH, _WIDTH)), batch_size=_BATCH, shuffle=True
    ):
        model.step(batch)
