"""Family http: what crossed connections, at either end, becomes finished exchanges. User-space side, pure.

In: records of sockets and of TLS in clear. Out: exchanges, claims of threads, messages of serving engines.

* ``decode`` takes batches of records, ``connection`` puts a connection's calls in order and asks the ``protocols``
  whose it is; ``ends`` and ``protocol`` say what is known of it.
* Parsers, each in a package: ``http1``, ``http2`` with gRPC, ``websocket``, ``zmtp`` with ``engines``; and ``plugins``,
  which others install.
* ``llm`` reads what LLM APIs say, ``trace_context`` W3C headers; ``signals`` has the names of it all.
"""

from typing import TYPE_CHECKING, Final

from otelgpu.families.base import Family
from otelgpu.families.http.signals import SIGNALS
from otelgpu.layout.btf import Btf
from otelgpu.model.telling import Telling

if TYPE_CHECKING:
    from otelgpu.families.http.decode import HttpState


def _open(btf: Btf, telling: Telling) -> "HttpState":
    from otelgpu.families.http.decode import HttpState  # every protocol: a quarter of what there is to import

    return HttpState(
        write_direction=btf.enumerators("http_direction")["HTTP_DIRECTION_WRITE"],
        capture_content=telling.capture_content,
    )


FAMILY: Final = Family(name="http", open=_open, signals=SIGNALS)
