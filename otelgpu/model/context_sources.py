"""How an operation was tied to a request or another span: every source of context, in order of trust. One table. Pure.

What is exported, the table that ends a session, and the tables of docs/reference/signals.md and
docs/explanation/context.md are made of :data:`SOURCES`. The BPF programs write the first ones into a record's head
(``enum context_source`` of bpf/lib/record.h; tests/unit/model/test_context_sources.py compares the two); all others
are found in user space.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct


class ContextSource(IntEnum):
    """The number of a source, as records and captures have it."""

    NONE = 0
    THREAD_CONTEXT = 1
    OBI = 2
    THREAD = 3
    WAKEUP = 4
    MESSAGE = 5
    STEP = 6
    TASK = 7

    @property
    def exported(self) -> str:
        """The value of ``otelgpu.context.source``."""
        return self.name.lower()


class SourceDescription(Struct, frozen=True, kw_only=True):
    """One source. ``description`` goes on with "the call is tied to a span by", ``links`` with "what links is".

    ``in_record``: a BPF program writes it. ``published``: with the ids that were published for the thread; of a task
    a record has its number in place of a span's id, and what it is linked by is found in user space. ``summary``: what
    the table that ends a session says of calls that it linked to requests; "" where that counts them otherwise.
    """

    source: ContextSource
    description: str
    links: str
    trust: str
    in_record: bool = False
    published: bool = False
    summary: str = ""


SOURCES: Final[tuple[SourceDescription, ...]] = (
    SourceDescription(
        source=ContextSource.THREAD_CONTEXT,
        description="the span that the process published on the calling thread (OTEP 4947: ddtrace, otelgpu.bridge), "
        "as it was at that very call",
        links="the span that the process itself [publishes](../reference/published-context.md) for the calling "
        "thread (OTEP 4947): by the [bridge](#what-to-do-about-it), or by a tracer such as ddtrace",
        trust="the service's own word",
        in_record=True,
        published=True,
        summary="by the context that its process published",
    ),
    SourceDescription(
        source=ContextSource.OBI,
        description="the span that OpenTelemetry eBPF Instrumentation wrote down for the thread",
        links="the span that OpenTelemetry eBPF Instrumentation has put in its map `traces_ctx_v1`",
        trust="that of another observer",
        in_record=True,
        published=True,
        summary="by the context that OBI wrote down",
    ),
    SourceDescription(
        source=ContextSource.TASK,
        description="the task that made it (an asyncio task's context, a goroutine): the same one wrote the "
        "response of the request",
        links="the goroutine, or the asyncio task by its context, that answered the request made the call before it "
        "had answered",
        trust="exact: what a task did between a request's head and its own last write of the response",
        in_record=True,
        summary="by the task that answered it",
    ),
    SourceDescription(
        source=ContextSource.THREAD,
        description="the thread: it had read exactly one request that was not answered",
        links="the thread has read exactly one request and has not yet answered it",
        trust="as good as one request at a time per thread",
        summary="by the thread that read it",
    ),
    SourceDescription(
        source=ContextSource.WAKEUP,
        description="the thread that woke the calling one from idle, or waited for its result, and worked for "
        "one request",
        links="a thread with a request woke the calling thread from idle, or waits for its result",
        trust="where nothing else fits",
        summary="by the thread that woke another for it",
    ),
    SourceDescription(
        source=ContextSource.MESSAGE,
        description="of a step's requests: what the engine's processes said to each other; not on calls",
        links="a message of an LLM engine names the request",
        trust="exact, for the engines whose messages are read",
    ),
    SourceDescription(
        source=ContextSource.STEP,
        description="the engine's step that it is part of; of a step's requests: the order of time",
        links="the call belongs to an engine's step, which served several requests: a span with links",
        trust="never one request alone",
    ),
    SourceDescription(
        source=ContextSource.NONE,
        description="nothing: it is under `unattributed gpu work`",
        links="nothing did",
        trust="",
        in_record=True,
    ),
)
"""The most trusted first: an operation takes the first that answers."""

PUBLISHED: Final = tuple(each.source for each in SOURCES if each.published)
"""Those whose ids were published for the thread by its process or another observer, and are in the record."""


IS_PUBLISHED: Final[npt.NDArray[np.bool_]] = np.isin(np.arange(256), PUBLISHED)
"""By source, whether it is one of :data:`PUBLISHED`."""
