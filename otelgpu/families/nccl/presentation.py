"""How collectives are shown: communicators and ranks in ``otelgpu top``, their tracks, the viewer's list."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from otelgpu.engine.presentation import (
    OF_PROCESS,
    CollectiveNames,
    Column,
    How,
    Presentation,
    ProcessColumns,
    Reported,
    TopTable,
    TopView,
    TrackGroup,
    TrackRule,
    Unit,
    rate,
)
from otelgpu.engine.viewer import SpanKind, SpanList, SpanRule, ViewerPart, builtin, number, text
from otelgpu.families.nccl import collective_names
from otelgpu.families.nccl import metrics as collective_metrics

_COLLECTIVE_KEYS: Final = {
    collective_names.HASH: ("communicator", "communicator"),
    collective_names.OPERATION: ("operation", "operation"),
}
_COMMUNICATORS: Final = TopTable(
    name="communicators",
    title="NCCL communicators",
    keys=_COLLECTIVE_KEYS,
    columns=(
        rate(
            "calls_per_s",
            "calls/s",
            "nccl.calls",
            collective_metrics.LATENESS.name,
            collective_metrics.DURATION.name,
            collective_metrics.WAIT.name,
        ),
        rate("bytes_per_s", "bytes/s", "nccl.bytes", unit=Unit.BYTES),
        Column(
            key="duration_mean_s",
            title="time",
            how=How.MEAN,
            metrics=(collective_metrics.DURATION.name,),
            unit=Unit.SECONDS,
        ),
        Column(
            key="algorithm_bytes_per_s",
            title="algbw",
            how=How.MEAN,
            metrics=(collective_metrics.ALGORITHM.name,),
            unit=Unit.BYTES,
        ),
        Column(
            key="bus_bytes_per_s",
            title="busbw",
            how=How.MEAN,
            metrics=(collective_metrics.BUS.name,),
            unit=Unit.BYTES,
        ),
        Column(
            key="skew_mean_s",
            title="skew",
            how=How.MEAN,
            metrics=(collective_metrics.SKEW.name,),
            unit=Unit.SECONDS,
        ),
        Column(
            key="skew_p99_s",
            title="skew p99",
            how=How.P99,
            metrics=(collective_metrics.SKEW.name,),
            unit=Unit.SECONDS,
        ),
        Column(
            key="last_rank",
            title="last rank",
            how=How.WORST,
            metrics=(collective_metrics.LATENESS.name,),
            label=collective_names.RANK,
            unit=Unit.TEXT,
        ),
    ),
    sort="calls_per_s",
)
_RANKS: Final = TopTable(
    name="ranks",
    title="NCCL ranks: how much later each calls than the first",
    keys={
        **_COLLECTIVE_KEYS,
        collective_names.RANK: ("rank", "rank"),
        **OF_PROCESS,
    },
    columns=(
        rate("calls_per_s", "calls/s", collective_metrics.LATENESS.name),
        Column(
            key="lateness_mean_s",
            title="late",
            how=How.MEAN,
            metrics=(collective_metrics.LATENESS.name,),
            unit=Unit.SECONDS,
        ),
        Column(
            key="lateness_p99_s",
            title="late p99",
            how=How.P99,
            metrics=(collective_metrics.LATENESS.name,),
            unit=Unit.SECONDS,
        ),
    ),
    sort="lateness_mean_s",
)


def _track(reported: Reported) -> tuple[Hashable, str]:
    identity, rank = reported[collective_names.HASH], reported.get(collective_names.RANK)
    of_rank = f" rank {rank}" if rank is not None else ""
    return (identity, rank), f"communicator {identity}{of_rank}"


_VIEWER: Final = ViewerPart(
    kinds=(
        SpanKind(id="collective", words="collective"),
        SpanKind(
            id="rank",
            words="a rank's call",
            summed=True,
            rank=collective_names.RANK,
            job=collective_names.HASH,
            size=collective_names.RANKS,
        ),
        SpanKind(id="ncclwait", words="wait for a collective", inline=True),
        SpanKind(id="call", words="other call", call=True, summed=True),
    ),
    rules=(
        SpanRule(
            kind="collective",
            scope=collective_names.SCOPE,
            has=collective_names.PHASE,
            value="collective",
        ),
        SpanRule(kind="rank", scope=collective_names.SCOPE, has=collective_names.PHASE, value="enqueue"),
        SpanRule(kind="ncclwait", scope=collective_names.SCOPE, has=collective_names.PHASE, value="wait"),
        SpanRule(kind="call", scope=collective_names.SCOPE),
    ),
    lists=(
        SpanList(
            id="collectives",
            title="Collectives",
            one="collective",
            kinds=("collective",),
            columns=(
                builtin("time"),
                text("name", "Operation", "nccl.operation", width="minmax(90px, 1.2fr)"),
                text("communicator", "Communicator", "nccl.communicator.hash", width="minmax(130px, 1.2fr)"),
                number("sequence", "Number", "count", "nccl.sequence", width="66px"),
                number("seen", "Ranks seen", "count", "nccl.ranks.seen", width="84px"),
                number("ranks", "of", "count", "nccl.communicator.ranks", width="44px"),
                number("bytes", "Message", "By", "nccl.message.size", width="80px"),
                number("skew", "Arrival skew", "s", "nccl.arrival.skew", width="94px"),
                number("last", "Last rank", "count", "nccl.arrival.last_rank", width="76px"),
                text("source", "Numbered by", "nccl.sequence.source", width="minmax(80px, 1fr)"),
                builtin("duration"),
            ),
            cards=("skew",),
            rank=3,
        ),
    ),
    reasons=(collective_names.SEQUENCE_SOURCE,),
)

PRESENTATION: Final = Presentation(
    views=(
        TopView(
            name="nccl",
            title="NCCL",
            top_tables=(_COMMUNICATORS, _RANKS),
            families=("nccl", "cuda"),
            rank=3,
        ),
    ),
    process_columns=ProcessColumns(
        columns=(rate("nccl_calls_per_s", "NCCL calls/s", "nccl.calls"),), families=("nccl",), rank=3
    ),
    tracks=(TrackRule(group=TrackGroup.COMMUNICATOR, attribute=collective_names.HASH, track=_track, rank=5),),
    viewer=_VIEWER,
    collectives=CollectiveNames(
        library="nccl",
        phase=collective_names.PHASE,
        enqueue="enqueue",
        operation=collective_names.OPERATION,
        rank=collective_names.RANK,
        ranks=collective_names.RANKS,
    ),
)
