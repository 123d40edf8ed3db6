"""How many spans a fleet sends by each policy of sampling, and what receives and stores them: the manual's arithmetic.

Nothing here was measured on a fleet. What one Collector core takes and what a span weighs were measured on one machine
(docs/reference/measured/benchmarks.md); how many requests there are, and of how many calls, is assumed.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from tools.markdown import table

_DAY_S: Final = 86_400


class Fleet(Struct, frozen=True, kw_only=True):
    """Nodes that serve requests. The defaults are what the manual's table assumes."""

    nodes: int = 1_000
    gpus: int = 8  # of a node
    launches: int = 50_000  # a second, of a GPU
    requests: int = 200  # a second, of a node
    spans_of_request: int = 3  # itself and its two phases
    folded: int = 24  # spans of a request's calls in the detail "ops": 12 kernels in each phase
    wanted: float = 0.02  # share of requests that failed or were slow
    collector: int = 300_000  # spans a second that one core receives
    stored: int = 32  # bytes of a span, compressed

    @property
    def calls(self) -> int:
        """Launches a second of a node."""
        return self.gpus * self.launches

    def sent(self, *, folds: bool = True, ratio: float = 1.0, limit: int = 0) -> int:
        """Spans a second of a node, where ``ratio`` of the traces and all that are wanted are kept, up to ``limit``."""
        share = ratio + (1 - ratio) * self.wanted
        work = self.requests * self.folded if folds else self.calls
        spans = round(share * (self.requests * self.spans_of_request + work))
        return min(spans, limit) if limit else spans

    def cores(self, sent: int) -> int:
        """Cores of Collectors that receive what all nodes send."""
        return math.ceil(self.nodes * sent / self.collector)

    def stored_a_day(self, sent: int) -> float:
        """Bytes."""
        return float(self.nodes * sent * self.stored * _DAY_S)


def volume() -> str:
    """The table of the policies, of the fleet that is assumed."""
    fleet = Fleet()
    policies = {
        "a span for each call (`detail: all`)": fleet.sent(folds=False),
        "equal calls folded (`ops`, the default)": fleet.sent(),
        "the same of 5 % of the traces, and of all that failed or were slow": fleet.sent(ratio=0.05),
        "a span for each call, up to `traces_spans_per_second: 2000`": fleet.sent(folds=False, limit=2_000),
    }
    rows = (
        (
            policy,
            f"{sent:,}",
            f"{fleet.nodes * sent / 1e6:,.1f} M",
            f"{fleet.cores(sent):,}",
            f"{fleet.stored_a_day(sent) / 1e12:,.1f} TB",
        )
        for policy, sent in policies.items()
    )
    return table(("Policy", "Spans/s of a node", "of all nodes", "Collector cores", "Stored a day"), rows)
