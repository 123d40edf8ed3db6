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


def rows(quick: bool) -> list[Row]:
    """Of each budget; ``quick``: unobserved alone, as an agent's start takes half a minute in a guest that is emulated.

    That it observes there is what ``make test-rdma`` tests.
    """
    kernel = fetched(LINE)
    missing = "no kernel in the cache: run `make vm`" if kernel is None else guest.missing_programs()
    if kernel is None or missing:
        return [not_measured("rdma", "everything", "", str(missing))]
    with tempfile.TemporaryDirectory(prefix="otelgpu-bench-") as folder:
        reported = rdma.pingpong_us(kernel, Path(folder), 1 if quick else 5, [] if quick else list(BUDGETS))
    bare = median(reported.pop(rdma.BARE))
    name, note = "ibv_rc_pingpong, a round trip", f"in a guest with Linux {kernel.release}"
    unobserved = Row(bench="rdma", name=f"{name}: unobserved", value=bare, unit="µs", note=note)
    observed = [
        Row(
            bench="rdma",
            name=f"{name}: {BUDGETS[budget]}",
            value=median(values),
            unit="µs",
            baseline="unobserved",
            baseline_value=bare,
            note=f"{note}; {spread(values)}",
        )
        for budget, values in reported.items()
    ]
    return [unobserved, *observed]
