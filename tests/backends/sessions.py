"""Recorded sessions on their way to backends: replayed through a Collector, and into a file to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.backends.collector import running_collector
from tests.backends.engine_session import replay
from tests.backends.programs import Destination
from tests.rig.spans import Span, read_spans

GOLDEN: Final = Path(__file__).parents[1] / "golden"
SESSIONS: Final = ("llm_session", "training_job")
"""Captures that are in the repository: a server of language models, and a training job of three ranks."""


def send(capture: Path, *to: Destination, folder: Path) -> list[Span]:
    """Report the session to the destinations, through a Collector; its spans, from otelgpu's own file.

    All has arrived when it returns.
    """
    own = folder / "own.jsonl"
    replay(capture, f"file:{own}")
    with running_collector(folder, to=to) as collector:
        replay(capture, f"otlp:{collector.addresses['http/protobuf']}")
    return read_spans(own)
