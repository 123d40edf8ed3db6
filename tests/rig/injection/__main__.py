"""``python -m tests.rig.injection [TIMES]``: a table of what became of the programs."""

from __future__ import annotations

import statistics
import sys
import time

from tests.rig.injection.repeated import MODES, repeat

began = time.monotonic()
all_busy = repeat(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, tuple(sys.argv[2:]) or MODES)
for busy in all_busy:
    held = sorted(busy.held_s) or [0.0]
    print(
        f"{busy.mode:8} injected {busy.injected:4}  exit {busy.code}  done {busy.done:8}  "
        f"held ms: median {statistics.median(held) * 1e3:.1f}, most {held[-1] * 1e3:.1f}  "
        f"stops: most {max(busy.attempts, default=0)}  {dict(busy.refused) or ''}{busy.said}"
    )
print(f"{sum(busy.injected for busy in all_busy)} injections in {time.monotonic() - began:.0f} s")
sys.exit(any(busy.code or busy.refused for busy in all_busy))
