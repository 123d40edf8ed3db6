"""Whole facts, with every part that a table of the manual can come from: what tools/document.py reports as examples."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from msgspec.structs import replace

from otelgpu.engine.totals import Totals
from otelgpu.families.steps.hint_attributes import hint_values
from otelgpu.families.steps.serving.spans import request_attributes, step_spans
from otelgpu.families.steps.serving.steps import EndedSteps
from otelgpu.families.steps.step import (
    Evidence,
    Member,
    Membership,
    RequestSteps,
    ServedStep,
    Step,
    StepPhase,
)
from otelgpu.model.context import Context
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.exchange import Content, Endpoint, Exchange, Generation, Role, Rpc, StartSource
from otelgpu.model.operations import operations
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute, Text

MBU: Final = 0.4


def reported(attribute: Attribute) -> object:
    """What an attribute says of the first span."""
    values = attribute.values
    return values.table[values.codes[0]] if isinstance(values, Text) else values[0].item()


def full_exchange() -> Exchange:
    """An exchange with every part that an attribute can come from."""
    generation = Generation(
        operation="chat",
        request_model="m",
        response_model="m",
        response_id="id",
        stream=True,
        input_tokens=3,
        output_tokens=5,
        usage_reported=False,
        finish_reasons=("stop",),
        first_content_ns=2_000,
        last_content_ns=3_000,
        content_deltas=5,
        first_chunk_ns=1_900,
        content_times_ns=array("Q", (2_000, 2_100, 500_002_100)),
        cached_tokens=1,
        reasoning_tokens=1,
        max_tokens=9,
        choices=2,
        queue_s=0.001,
        prefill_s=0.002,
        decode_s=0.003,
        request_id="id",
        content=Content(request="[]", response="[]"),
    )
    return Exchange(
        key=1,
        connection=1,
        ordinal=0,
        tgid=1,
        tid=2,
        cgroup_id=0,
        start_ns=1_000,
        request_end_ns=1_100,
        first_byte_ns=1_500,
        end_ns=4_000,
        method="POST",
        path="/v1/chat/completions",
        query_present=False,
        protocol_version="1.1",
        status_code=500,
        request_bytes=10,
        response_bytes=20,
        server=Endpoint(address="127.0.0.1", port=8000),
        client=Endpoint(address="127.0.0.1", port=50000),
        user_agent="curl",
        parent=None,
        error="connection_closed",
        generation=generation,
    )


def exchanges_reported(whole: Exchange) -> list[Exchange]:
    """The kinds of exchange that report different things: answered or not, at either end, a call of an RPC."""
    rpc = Rpc(system="grpc", method="a.B/C", status="INTERNAL", requests=1, responses=1, failed=True)
    ended = replace(whole, status_code=200, error="")
    assert ended.generation is not None
    reported = replace(ended.generation, usage_reported=True)
    return [
        whole,
        replace(ended, start_source=StartSource.ARRIVAL, read_ns=ended.start_ns + 100),
        replace(ended, error="capture_gap"),
        ended,
        replace(ended, role=Role.CLIENT, generation=reported),
        replace(ended, rpc=rpc),
        replace(ended, rpc=rpc, role=Role.CLIENT),
    ]


def full_step() -> ServedStep:
    """A step of which everything is known and that raises every hint: a first and a further token."""
    evidence = Evidence(
        calls=20, launches=4, host_ns=3, wait_ns=2, blocking_copies=1, blocking_copy_ns=2, waited_launches=4
    )
    step = Step(tgid=1, tid=2, number=3, start_ns=10, end_ns=20, gap_ns=1, rows=20, evidence=evidence)
    members = tuple(
        Member(request_id=str(phase), exchange=1, new_tokens=1, phase=phase)
        for phase in (StepPhase.PREFILL, StepPhase.DECODE)
    )
    return ServedStep(step=step, members=members, membership=Membership.KNOWN, source=ContextSource.MESSAGE)


def full_request_steps() -> RequestSteps:
    """What a request knows of its steps, all of it."""
    step = full_step().step
    return RequestSteps(
        source=ContextSource.MESSAGE,
        added_ns=5,
        first=step.key,
        first_start_ns=step.start_ns,
        first_end_ns=step.end_ns,
        last_end_ns=30,
        steps=2,
        tokens=2,
        unattributed=1,
        mean_batch_size=2.0,
        mean_token_share=0.5,
        shared_launches=4,
        attributed_ns=5,
        links=(step.key,),
        dropped_links=0,
    )


def step_attributes() -> dict[str, dict[str, object]]:
    """Attributes of a step's span, of its links and of a request's span: by what they are of, key → example."""
    steps = EndedSteps(
        steps=[full_step()], operations=operations(0), step=np.zeros(0, np.int64), rest=operations(0)
    )
    context = Context(b"\1" * 16, b"\1" * 8, 1)
    (batch,) = step_spans(
        steps,
        lambda _: context,
        Totals([]),
        lambda _: resource({}),
        seed=1,
        unix_offset_ns=0,
        mbu=lambda _: MBU,
    ).spans
    assert batch.links is not None
    found = {
        "step": batch.attributes,
        "link": batch.links.attributes,
        "request": request_attributes([full_request_steps()], [0]),
    }
    step = full_step().step
    keys = {place: {each.key: reported(each) for each in attributes} for place, attributes in found.items()}
    keys["request"] |= hint_values(step.evidence, step.duration_ns)
    return keys
