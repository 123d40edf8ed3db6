"""What observing queue pairs costs a real RDMA program, over soft RoCE in a guest, by budget.

ibv_rc_pingpong posts a send and polls for its answer, at both ends, and both are observed. A guest is emulated, where a
trap costs other than on a real machine: only ratios mean something, and those of bench_verbs are nearer to the truth.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tests.bench.rows import Row, median, not_measured, spread
from tests.vm import guest, rdma
from tests.vm.kernels import fetched

LINE: Final = "7"
BUDGETS: Final = {"0": "no post or poll probed", "1": "budget of 1 %", "100": "all probed"}
DEFAULT: Final = "1"


def rows(quick: bool) -> list[Row]:
    """Of each budget; ``quick``: of the default one, as each takes an agent's start in a guest that is emulated."""
    budgets = {DEFAULT: BUDGETS[DEFAULT]} if quick else BUDGETS
    kernel = fetched(LINE)
    missing = "no kernel in the cache: run `make vm`" if kernel is None else guest.missing_programs()
    if kernel is None or missing:
        return [not_measured("rdma", "everything", "", str(missing))]
    with tempfile.TemporaryDirectory(prefix="otelgpu-bench-") as folder:
        reported = rdma.pingpong_us(kernel, Path(folder), 1 if quick else 5, list(budgets))
    bare = median(reported[rdma.BARE])
    return [
        Row(
            bench="rdma",
            name=f"ibv_rc_pingpong, a round trip: {name}",
            value=median(reported[budget]),
            unit="µs",
            baseline="unobserved",
            baseline_value=bare,
            note=f"in a guest with Linux {kernel.release}; {spread(reported[budget])}",
        )
        for budget, name in budgets.items()
    ]
