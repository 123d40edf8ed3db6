"""OpenAI's realtime API over a WebSocket, as OpenAI and vLLM serve it: JSON events both ways.

Shapes: https://platform.openai.com/docs/api-reference/realtime-server-events. One connection carries many
responses: their usage is summed, the first one's id and times count, each has its finish reason
(``response.status``). Content is any ``….delta`` event of the server, by its older and newer names alike
(``response.text.delta``, ``response.output_text.delta``, audio, transcripts, vLLM's
``transcription.delta``). Audio is never kept.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, error_type, filled
from otelgpu.families.requests.llm.facts import Facts, count
from otelgpu.families.requests.llm.openai_responses import Usage

_AUDIO = "audio.delta"


class _RealtimeSession(msgspec.Struct):
    model: str | None = None


class _Response(msgspec.Struct):
    id: str | None = None
    status: str | None = None
    usage: Usage | None = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: msgspec.Raw = msgspec.Raw()
    session: _RealtimeSession | None = None
    response: _Response | None = None
    error: msgspec.Raw = msgspec.Raw()


class _ClientEvent(msgspec.Struct):
    type: str = ""
    model: str | None = None
    session: _RealtimeSession | None = None
    item: msgspec.Raw = msgspec.Raw()


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_client_event = msgspec.json.Decoder(_ClientEvent).decode


class Realtime(Api):
    """The messages of one WebSocket."""

    provider = "openai"

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read an event of the client."""
        event = _decode_client_event(body)
        model = event.model or (event.session.model if event.session is not None else None)
        if model:
            facts.asked(model, True, None, None)
        if facts.capture is not None and event.type == "conversation.item.create":
            facts.capture.asked(event.item)
        return event.type.startswith(("session.", "response.", "conversation.", "input_audio_buffer."))

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read an event of the server."""
        event = _decode_event(data)
        facts.stream = True
        if event.type.endswith(".delta"):
            if filled(event.delta):
                facts.content_at(time_ns)
                if facts.capture is not None and not event.type.endswith(_AUDIO):
                    facts.capture.answered(event.delta)
        elif event.session is not None:
            facts.named(None, event.session.model)
        elif event.response is not None:
            facts.named(event.response.id, None)
            if event.type == "response.done":
                self._done(facts, event.response)
        elif event.type == "error":
            facts.failed(error_type(event.error))
        return event.type.startswith(("session.", "response.", "conversation.", "transcription."))

    @staticmethod
    def _done(facts: Facts, response: _Response) -> None:
        done = facts.finishes
        if (usage := response.usage) is not None:
            facts.advanced(usage.output_tokens, done)
            facts.used(
                _sum(facts.input_tokens, usage.input_tokens),
                None,
                _sum(facts.cached_tokens, usage.cached_tokens),
                None,
            )
        facts.finished(response.status, done)


def _sum(before: int | None, more: int | None) -> int | None:
    reported = count(more)
    return None if reported is None else (before or 0) + reported
