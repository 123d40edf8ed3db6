"""Operations and exchanges → spans in columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.engine import registry
from otelgpu.engine.attribution.pending import DECODE, PREFILL, REQUEST, SLOTS, Served, phase_of
from otelgpu.engine.folding import Folded, Parents, fold, unfolded
from otelgpu.engine.operation_spans import Vocabulary, operation_spans
from otelgpu.engine.services import Extras
from otelgpu.engine.totals import Totals
from otelgpu.families.requests.exchange_signals import SIGNALS
from otelgpu.families.requests.identities import Identities, wire_trace_id
from otelgpu.families.requests.routes import template
from otelgpu.families.requests.spans import (
    boundaries,
    contexts,
    exchange_spans,
)
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.exchange import Exchange, Role
from otelgpu.model.operations import DEVICE_KINDS, CopyDirection, OperationKind, Operations
from otelgpu.model.resource import resource
from otelgpu.model.settings import SignalSettings
from otelgpu.model.spans import Links
from tests.unit.families.records import btf
from tests.unit.model.builders import CALLER, LLM, MS, Row, calls, exchange, generation, read_out

CUDA = registry.families()["cuda"]
assert CUDA.operations is not None
VOCABULARY = Vocabulary(
    families=[(CUDA.operations.decoder(btf("cuda"), SignalSettings()), CUDA.operations.signals)],
    kernels=["unknown", "void a<int>()", "b()"],
    short_kernels=["unknown", "a", "b"],
)
TOTALS = Totals(VOCABULARY.families)
API = btf("cuda").enumerators("cuda_api")
PARENTS = Parents(
    trace_id=np.array([[1] * 16, [2] * 16], np.uint8),
    span_id=np.array([[3] * 8, [4] * 8], np.uint8),
    flags=np.array([1, 3], np.uint32),
)


def reported(
    rows: Operations, groups: list[int] | int = 0, *, folded: Folded | None = None, offset: int = 0
) -> list[Row]:
    group = np.broadcast_to(np.asarray(groups, dtype=np.int64), len(rows)).copy()
    resources = {int(tgid): resource({"process.pid": int(tgid)}) for tgid in rows["tgid"]}
    work = folded if folded is not None else unfolded(rows, group)
    return read_out(operation_spans(work, PARENTS, resources, VOCABULARY, seed=1, unix_offset_ns=offset))


def test_a_launch_is_named_after_the_call_and_the_short_kernel() -> None:
    (span,) = reported(
        calls(1, grid=(4, 2, 1), block=(64, 1, 1), shared_bytes=48, stream=7, context_source=3)
    )
    assert (span.name, span["cuda.kernel.name"]) == ("cudaLaunchKernel a", "void a<int>()")
    assert [span[f"cuda.grid.{axis}"] for axis in "xyz"] == [4, 2, 1]
    assert (span["cuda.shared_memory.size"], span["cuda.stream"], span["thread.id"]) == (48, 7, 101)
    assert span["otelgpu.context.source"] == "thread"


def test_a_span_is_in_its_parents_trace() -> None:
    first, second = reported(calls(2), [0, 1])
    assert (first.trace_id, first.parent_id, first.flags) == ("01" * 16, "03" * 8, 1)
    assert (second.trace_id, second.parent_id, second.flags) == ("02" * 16, "04" * 8, 3)


@pytest.mark.parametrize("offset", [0, 10**18, -5 * MS])
def test_times_are_shifted_to_unix_time(offset: int) -> None:
    (span,) = reported(calls(1), offset=offset)
    assert (span.start_ns, span.end_ns) == (10 * MS + offset, 11 * MS + offset)


@pytest.mark.parametrize("kind", DEVICE_KINDS)
def test_every_kind_of_operation_becomes_spans(kind: OperationKind) -> None:
    spans = reported(calls(3, kind=kind, api=API["API_cudaMalloc"]))
    assert [span.name.split()[0] for span in spans] == ["cudaMalloc"] * 3


def test_a_batch_is_of_one_process_and_kind() -> None:
    rows = calls(4, tgid=[100, 200, 100, 100], kind=[1, 1, 3, 1])
    spans = reported(rows)
    assert sorted(span.resource.get("process.pid") for span in spans) == [100, 100, 100, 200]
    assert len({span.span_id for span in spans}) == 4


@pytest.mark.parametrize("direction", CopyDirection)
def test_a_copy_says_where_to_and_how_much(direction: CopyDirection) -> None:
    (span,) = reported(calls(1, kind=OperationKind.COPY, direction=direction, size_bytes=9))
    spelled = direction.name.title().replace("_", "")
    assert span["cuda.size"] == 9
    assert span["cuda.memcpy.kind"] in (f"Memcpy{spelled}", "unknown")


def test_a_run_says_how_many_calls_and_how_much_host_time() -> None:
    rows = calls(5, name=[1, 1, 1, 1, 2])
    run, single = reported(rows, folded=fold(unfolded(rows, np.zeros(5, np.int64)), limit=10))
    assert (run["otelgpu.count"], run["otelgpu.host.duration"]) == (4, 0.004)
    assert (run.start_ns, run.end_ns) == (10 * MS, 41 * MS)
    assert (single.get("otelgpu.count"), single.get("otelgpu.merged")) == (None, None)


def test_what_was_merged_beyond_the_bound_says_so() -> None:
    rows = calls(9, name=[1, 2, 0] * 3)
    spans = reported(rows, folded=fold(unfolded(rows, np.zeros(9, np.int64)), limit=3))
    assert [span.get("otelgpu.merged") for span in spans].count(True) == 3
    assert len(spans) == 6


def test_unequal_calls_that_were_merged_claim_no_grid_but_a_count() -> None:
    rows = calls(6)
    rows["grid"][:, 0] = np.arange(6)
    work = unfolded(rows, np.zeros(6, dtype=np.int64))
    first, *_, rest = reported(rows, folded=fold(work, limit=2))
    assert (first["cuda.grid.x"], first.get("otelgpu.merged")) == (0, None)
    assert (rest.get("cuda.grid.x"), rest["otelgpu.count"], rest["otelgpu.merged"]) == (None, 4, True)


def test_a_run_of_graph_launches_names_no_graph() -> None:
    rows = calls(2, kind=OperationKind.GRAPH_LAUNCH, handle=[10, 11])
    (run,) = reported(rows, folded=fold(unfolded(rows, np.zeros(2, dtype=np.int64)), limit=9))
    assert (run["otelgpu.count"], run.get("cuda.graph")) == (2, None)
    assert [span["cuda.graph"] for span in reported(rows)] == [10, 11]


def test_a_failed_call_among_others_is_the_only_error() -> None:
    spans = reported(calls(3, status=[0, 2, 2], returned=[1, 1, 0]))
    good, bad, unseen = sorted(spans, key=lambda span: span.start_ns if span.status == 0 else 15 * MS)
    assert (bad.status, bad.message, bad["error.type"]) == (2, *["cudaErrorMemoryAllocation"] * 2)
    for span in (good, unseen):
        assert (span.status, span.message, span.get("error.type")) == (0, "", None)


def test_an_unknown_api_and_result_have_their_numbers() -> None:
    (span,) = reported(calls(1, api=777, status=12345, kind=OperationKind.FREE))
    assert (span.name, span["error.type"]) == ("api 777", "cudaError_t(12345)")


def test_pointers_of_the_upper_half_survive() -> None:
    (span,) = reported(calls(1, stream=2**64 - 1))
    assert span["cuda.stream"] == 2**64 - 1


@pytest.mark.parametrize("source", ContextSource)
def test_every_context_source_has_a_name(source: ContextSource) -> None:
    (span,) = reported(calls(1, context_source=source))
    assert span["otelgpu.context.source"] == source.name.lower()


STEP_LINK = Links(
    span=np.zeros(1, np.intp),
    trace_id=np.full((1, 16), ord("s"), np.uint8),
    span_id=np.ones((1, 8), np.uint8),
    flags=np.ones(1, np.uint32),
)

# -- exchanges --------------------------------------------------------------------------------------


def spans_of(*exchanges: Exchange, dropped: list[int] | None = None, **options: Any) -> list[Row]:
    identities = Identities(1, lambda opened: 0)
    reported_contexts = contexts(exchanges, [identities.of(each) for each in exchanges], 1)
    return read_out(
        exchange_spans(
            exchanges,
            [template(each.path) for each in exchanges],
            reported_contexts,
            options.get("sums", np.zeros((len(exchanges) * SLOTS, len(TOTALS)), dtype=np.int64)),
            TOTALS,
            np.array(dropped or [0] * len(exchanges)),
            lambda tgid: LLM,
            SIGNALS,
            boundary=boundaries(exchanges),
            unix_offset_ns=10**18,
        )
    )


def test_an_exchange_without_a_generation_is_one_server_span() -> None:
    (span,) = spans_of(exchange(method="GET", path="/health"))
    assert (span.name, span.kind, span.parent_id, span.status) == ("GET /health", 2, "", 0)
    assert (span.start_ns, span.end_ns) == (10 * MS + 10**18, 100 * MS + 10**18)
    assert (span["http.response.status_code"], span["server.port"]) == (200, 8000)


def test_a_streamed_generation_has_two_phases() -> None:
    server, prefill, decode = spans_of(exchange(generation=generation()))
    assert (server.name, prefill.name, decode.name) == ("chat tiny", "prefill", "decode")
    assert {prefill.parent_id, decode.parent_id} == {server.span_id}
    assert {span.trace_id for span in (prefill, decode)} == {server.trace_id}
    assert (prefill.end_ns, decode.start_ns, decode.end_ns) == (
        30 * MS + 10**18,
        30 * MS + 10**18,
        server.end_ns,
    )


def test_the_callers_context_is_taken_over() -> None:
    server, prefill, _ = spans_of(exchange(parent=CALLER, generation=generation()))
    assert (server.trace_id, server.parent_id) == (CALLER.trace_id.hex(), CALLER.span_id.hex())
    assert (server.state, prefill.state, prefill.flags) == ("v=1", "", 1)


def test_every_exchange_and_phase_has_an_id_of_its_own() -> None:
    spans = spans_of(*(exchange(key, generation=generation()) for key in range(1, 40)))
    assert len({span.span_id for span in spans}) == 3 * 39
    assert len({span.trace_id for span in spans}) == 39


def test_ids_depend_on_the_exchange_and_not_on_its_neighbours() -> None:
    alone = spans_of(exchange(5))
    among = spans_of(exchange(4), exchange(5), exchange(6))
    assert alone[0] in among


def test_totals_and_what_was_dropped_are_on_the_span() -> None:
    slots = np.repeat(np.arange(SLOTS), [9, 4, 5])
    sums = TOTALS.by_group(calls(len(slots)), slots, SLOTS)
    server, prefill, decode = spans_of(exchange(generation=generation()), sums=sums, dropped=[3])
    assert [span["cuda.launch.calls"] for span in (server, prefill, decode)] == [9, 4, 5]
    assert (server["otelgpu.operations.dropped"], prefill.get("otelgpu.operations.dropped")) == (3, None)


def test_a_failure_is_an_error_span_with_its_reason() -> None:
    closed, refused, missing = spans_of(
        exchange(1, error="connection_closed", status_code=0),
        exchange(2, status_code=500),
        exchange(3, status_code=404),
    )
    assert (closed.status, closed.message, closed["error.type"]) == (2, *["connection_closed"] * 2)
    assert (refused.status, refused["error.type"]) == (2, "500")
    assert (missing.status, missing.get("error.type")) == (0, None)


def test_an_operation_belongs_to_the_phase_that_it_started_in() -> None:
    exchanges = [exchange(1), exchange(2, generation=generation(first_content_ns=30 * MS))]
    starts = [20 * MS, 29 * MS, 30 * MS, 31 * MS]
    served = Served(
        operations=calls(4, start_ns=starts),
        request=np.array([0, 1, 1, 1]),
        dropped=np.zeros(2, np.int64),
        beyond=np.zeros((2, 0), np.int64),
    )
    assert phase_of(boundaries(exchanges), served).tolist() == [
        REQUEST,
        SLOTS + PREFILL,
        SLOTS + DECODE,
        SLOTS + DECODE,
    ]


def test_nothing_at_all() -> None:
    nothing = Served(
        operations=calls(0), request=np.zeros(0, np.int64), dropped=np.zeros(0), beyond=np.zeros((0, 0))
    )
    assert (
        len(contexts([], [], 1).parents.span_id),
        phase_of(boundaries([]), nothing).tolist(),
        spans_of(),
    ) == (
        0,
        [],
        [],
    )


def test_a_client_links_to_its_server_where_that_is_in_another_trace() -> None:
    """It asks for a request that it serves: its trace is that one's, the server's is made of the wire alone."""
    served, asked = exchange(1, parent=CALLER), exchange(2, role=Role.CLIENT, wire_id=b"wire")
    known = Identities(1, lambda opened: 1)
    identities = [known.of(each) for each in (served, asked)]
    (servers, clients) = exchange_spans(
        [served, asked],
        ["/", "/"],
        contexts([served, asked], identities, 1),
        np.zeros((2 * SLOTS, len(TOTALS)), dtype=np.int64),
        TOTALS,
        np.zeros(2, dtype=np.int64),
        lambda tgid: LLM,
        SIGNALS,
        boundary=boundaries([served, asked]),
        unix_offset_ns=0,
        extras_of=lambda rows: Extras(links=STEP_LINK if rows == [1] else None),
    )
    assert servers.links is None
    assert clients.links is not None
    assert clients.links.span.tolist() == [0, 0]
    assert [trace.tobytes() for trace in clients.links.trace_id] == [b"s" * 16, wire_trace_id(b"wire")]
