"""A recorded session of the example engine with continuous batching: observed once, reported to any backend.

Recording needs root, as all observing does; what is exported of the capture is the same every time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from examples.llm_server.client import Load, run
from tests.rig import RigError, start_engine_server

OTELGPU: Final = Path(sys.executable).with_name("otelgpu")
REQUESTS: Final = 8


def record_engine(capture: Path) -> None:
    """Observe the engine while it serves :data:`REQUESTS` streamed requests, several at a time."""
    observed = (str(OTELGPU), "record", "-o", str(capture), f"--export=file:{capture}.jsonl", "--")
    with start_engine_server("--scheduling=async", "--max-batch=4", prefix=observed) as server:
        outcomes = run(
            Load(
                url=server.url,
                requests=REQUESTS,
                concurrency=4,
                max_tokens=8,
                model="tiny-engine",
                traceparent=True,
            )
        )
        if any(outcome.error for outcome in outcomes):
            raise RigError(f"requests failed: {[outcome.error for outcome in outcomes]}")
        server.requests(REQUESTS)


def replay(capture: Path, export: str, **environment: str) -> None:
    """Report the session to ``export``, with every call. Raises `RigError`."""
    done = subprocess.run(
        [OTELGPU, "replay", "--quiet", "--detail=all", f"--export={export}", capture],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise RigError(done.stderr)
