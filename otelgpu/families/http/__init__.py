"""Family http: what crossed server sockets becomes finished HTTP exchanges. User-space side, pure.

``decode`` takes batches of records, ``connection`` pairs requests with responses, ``framing`` finds
messages in bytes, ``llm`` and ``sse`` read what an LLM API says, ``trace_context`` reads W3C headers.
"""

from typing import Final

from otelgpu.families.base import Family
from otelgpu.families.http.decode import HttpState
from otelgpu.families.http.signals import SIGNALS
from otelgpu.layout.btf import Btf


def _open(btf: Btf) -> HttpState:
    return HttpState(write_direction=btf.enumerators("http_direction")["HTTP_DIRECTION_WRITE"])


FAMILY: Final = Family(name="http", open=_open, signals=SIGNALS)
