"""A few steps of a small network in PyTorch, and what its allocator says: one line of JSON."""

from __future__ import annotations

import json

import torch


def main() -> None:
    device = torch.device("cuda:0")
    network = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    network = network.to(device).half()
    tokens = torch.randn(64, 512, device=device, dtype=torch.half)
    with torch.inference_mode():
        for _ in range(20):
            tokens = torch.softmax(network(tokens), dim=-1)
            torch.cuda.synchronize()
    stats = torch.cuda.memory_stats(device)
    print(json.dumps({"reserved": stats["reserved_bytes.all.current"], "torch": torch.__version__}))


if __name__ == "__main__":
    main()
