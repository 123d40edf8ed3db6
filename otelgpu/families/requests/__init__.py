"""Family http: the traffic of connections, at clients and servers, becomes finished exchanges. Pure.

In: records of sockets, and of TLS in clear text. Out: exchanges, thread assignments, messages of serving engines.

* ``decode`` takes batches of records. ``connection`` puts a connection's system calls in order and detects which of
  the ``protocols`` it uses. ``endpoints`` and ``protocol`` hold what is known of a connection besides its bytes.
* Each protocol's parser is a package: ``http1``, ``http2`` with gRPC, ``websocket``, ``zmtp`` with ``engines``.
  ``plugins`` finds those that others installed; ``plugin_isolation`` keeps their faults to their own connections.
* ``llm`` reads the bodies of LLM APIs, ``trace_context`` W3C headers; ``signals`` holds all exported names.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.requests.handler import HttpHandler  # every protocol: a quarter of all imports

    return HttpHandler(services)


FAMILY: Final = Family(name="http", open=_open, phase=Phase.REQUESTS)
