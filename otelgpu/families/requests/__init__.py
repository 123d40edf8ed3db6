"""Family http: what crossed connections, at either end, becomes finished exchanges. User-space side, pure.

In: records of sockets and of TLS in clear. Out: exchanges, assignments of threads, messages of serving engines.

* ``decode`` takes batches of records, ``connection`` puts a connection's calls in order and asks the ``protocols``
  whose it is; ``ends`` and ``protocol`` say what is known of it.
* Parsers, each in a package: ``http1``, ``http2`` with gRPC, ``websocket``, ``zmtp`` with ``engines``; and ``plugins``,
  which others install.
* ``llm`` reads what LLM APIs say, ``trace_context`` W3C headers; ``signals`` has the names of it all.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.requests.handler import HttpHandler  # every protocol: a quarter of all imports

    return HttpHandler(services)


FAMILY: Final = Family(name="http", open=_open, phase=Phase.REQUESTS)
