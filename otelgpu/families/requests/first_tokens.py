"""Whether a first token was slow for its service: among the slowest of those before it. Pure.

In: the time to first token of each exchange, when it has ended. Out: whether it is one of the slowest share.

Example: with the quantile 0.99, of a service whose last 1,000 first tokens took 0.2 s but for nine that took longer,
one that takes 0.3 s is among the slowest 1 %. Were all 1,000 of 0.2 s, another of 0.2 s is not: all are as slow.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import Final

from otelgpu.model.exchange import Exchange
from otelgpu.model.resource import AttributeValue, Resource

WINDOW: Final = 1_000
"""First tokens of a service that the next one is compared with: the last ones."""
SERVICES: Final = 256
"""Services that are told apart; of more, the one that answered longest ago begins anew."""

Service = tuple[AttributeValue | None, ...]


class SlowFirstTokens:
    """The times to first token of each service, the last :data:`WINDOW` of them: exact, 16 kB a service."""

    def __init__(self) -> None:
        self._services: OrderedDict[Service, tuple[deque[float], list[float]]] = OrderedDict()

    def add(self, service: Service, seconds: float, quantile: float) -> bool:
        """Note one; whether it is among the slowest ``1 - quantile`` of those before it.

        Never before there were so many that a single one is such a share: until then no time is known to be slow.
        """
        found = self._services.pop(service, None)
        latest, ascending = self._services[service] = found or (deque(), [])
        if len(self._services) > SERVICES:
            self._services.popitem(last=False)
        as_slow = len(ascending) - bisect_left(ascending, seconds)
        share = math.floor(len(ascending) * (1 - quantile) + 1e-9)  # 100 * (1 - 0.99) is not quite one
        latest.append(seconds)
        insort(ascending, seconds)
        if len(latest) > WINDOW:
            del ascending[bisect_left(ascending, latest.popleft())]
        return as_slow < share


def service_of(exchange: Exchange, owner: Resource) -> Service:
    """What is compared with each other, of an exchange and its process's resource: a service's clients wait longer."""
    return exchange.role, owner.get("service.namespace"), owner.get("service.name")
