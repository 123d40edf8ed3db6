"""Ranks of tests/fakes/torch/train.cpp: a job as PyTorch runs it on CPUs, and what each rank says that it did."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.rig.fakes import build_fakes

_TAGS = 1 << 16


def run_gloo_ranks(
    folder: Path, options: Sequence[Sequence[str]], *, prefix: Sequence[str] = (), first: int = 0
) -> list[dict[str, Any]]:
    """A rank for each list of ``options``; what they say, in that order. ``prefix``: what starts the shell that starts
    them. ``first``: what the first one takes for its rank. Raises CalledProcessError."""
    meeting = folder / "meeting"
    meeting.write_bytes(bytes(4 * _TAGS))
    program = str(build_fakes() / "torch" / "program_gloo")
    ranks = [
        f"RANK={first + rank} LOCAL_RANK={rank} {shlex.join([program, *mine])} > {folder}/rank{rank}"
        for rank, mine in enumerate(options)
    ]
    shared = {"WORLD_SIZE": str(len(ranks)), "FAKE_GLOO": str(meeting)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    command = [*prefix, "sh", "-c", " & ".join((*ranks, "wait"))]
    subprocess.run(command, env=os.environ | shared, check=True, capture_output=True, timeout=120)
    return [json.loads((folder / f"rank{rank}").read_text()) for rank in range(len(ranks))]
