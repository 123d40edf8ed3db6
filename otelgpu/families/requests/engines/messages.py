"""ZeroMQ messages → engine messages, of vLLM and SGLang. Others are skipped.

In: the bodies of a message's first frames. Out: :class:`~otelgpu.model.engine_messages.EngineMessage`. Whose message
it is is shown by its form: vLLM's requests follow a frame that holds their type, SGLang's arrays begin with the
name of a class, vLLM's outputs with the number of an engine. (The identity that vLLM puts before a request is the
ROUTER socket's: it addresses a peer and does not go over the wire.)
"""

from __future__ import annotations

from collections.abc import Sequence

from otelgpu.families.requests.engines import msgpack
from otelgpu.families.requests.engines import vllm as engine_vllm
from otelgpu.families.requests.engines.envelope import Envelope
from otelgpu.families.requests.engines.sglang import SglangReader
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.zmtp.frames import Body
from otelgpu.model.engine_messages import EngineMessage

__all__ = ["Envelope", "ZmqEngineReader"]

_PICKLES = tuple(bytes([0x80, protocol]) for protocol in (2, 3, 4, 5))


class ZmqEngineReader:
    """Reads the messages of one connection."""

    __slots__ = ("_output", "_sglang")

    def __init__(self, output: ParserOutput, *, late: bool) -> None:
        self._output = output
        self._sglang = SglangReader(output, late=late)

    def read(self, bodies: Sequence[Body], envelope: Envelope) -> list[EngineMessage]:
        """Read a message; None where it is of no known engine. Never raises, whatever is in it."""
        first = bodies[0]
        if first.size == 1:
            wanted = first.head == engine_vllm.ADD and len(bodies) > 1
            request = engine_vllm.read_request(bodies[1], envelope, self._output) if wanted else None
            return [] if request is None else [request]
        if first.head.startswith(_PICKLES):
            self._output.count("engine_messages_pickled")
            return []
        outer = msgpack.array_at(first.head, 0)
        if outer is None:
            return []
        tag = msgpack.string_at(first.head, outer[1])
        if tag is not None:
            return self._sglang.read(tag[0], first, envelope)
        output = engine_vllm.read_output(first, envelope, self._output)
        return [] if output is None else [output]
