"""The table that ends a session: what was seen, how long it took, and what was lost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from otelgpu.agent import Outcome
from otelgpu.cli.guidance import Guidance
from otelgpu.cli.losses import explain, loss_lines
from otelgpu.engine.summary import Latencies, Summary
from otelgpu.model.context_sources import SOURCES
from otelgpu.model.quantities import duration, size
from otelgpu.model.runtimes import RUNTIMES

_EXPORT: Final = "export"
"""The family of what did not reach its destination."""
_TOP_KERNELS: Final = 10
_TOP_SERVERS: Final = 10
_UNREAD: Final = {
    ("http", "tls_of_go_unread"): "TLS connections of Go programs (crypto/tls)",
    ("http", "tls_of_rustls_unread"): "TLS connections of Rust programs (rustls)",
    ("http", "tls_of_boringssl_unread"): "TLS connections of programs with BoringSSL inside",
    ("http", "tls_unread"): "TLS connections of programs whose TLS library has no probes",
}
"""Losses that are said in words."""


def print_outcome(outcome: Outcome, console: Console, guidance: Guidance | None = None) -> None:
    """Print everything worth knowing, section by section; an empty section is left out."""
    if outcome.summary is not None:
        for part in _sections(outcome.summary):
            console.print(part)
    for path, symbols, blind_ns in outcome.libraries:
        blind = f", blind for {blind_ns / 1e6:.1f} ms after it was loaded" if blind_ns else ""
        console.print(f"probed   {path} ({symbols} functions{blind})", highlight=False, soft_wrap=True)
    losses = outcome.summary.losses if outcome.summary is not None else {}
    for line in (
        *_exported(outcome, guidance),
        _records(outcome),
        *_unread(losses),
        *loss_lines({reason: count for reason, count in losses.items() if not _is_said(*reason)}),
        *(guidance.ending() if guidance is not None else ()),
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _sections(summary: Summary) -> Iterable[RenderableType]:
    if summary.requests:
        yield _requests(summary)
    if summary.kernels:
        yield _kernels(summary)
    if summary.calls:
        yield _calls(summary)
    if summary.multiplexed or summary.requests_multiplexed:
        yield from _multiplexed(summary)
    if summary.errors:
        table = _table("Errors", "call: result", "count")
        for name, count in summary.errors.most_common(_TOP_KERNELS):
            table.add_row(name, f"{count}")
        yield table


def _table(title: str, first: str, *rest: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", min_width=60)
    table.add_column(first, overflow="fold")
    for name in rest:
        table.add_column(name, justify="right")
    return table


def _requests(summary: Summary) -> Table:
    unseen = f", {summary.requests_incomplete} not seen whole" if summary.requests_incomplete else ""
    servers: Counter[str] = summary.servers if len(summary.servers) > 1 else Counter()
    at = f" at {len(servers)} servers" if servers else ""
    title = f"Requests: {summary.requests}{at} ({summary.request_errors} failed{unseen})"
    table = _table(title, "", "p50", "p95", "p99", "n")
    for name, latencies in (
        ("time to first token (TTFT)", summary.time_to_first_token),
        ("time per output token (TPOT)", summary.time_per_output_token),
        ("request duration", summary.duration),
    ):
        if latencies.count:
            table.add_row(name, *_percentiles(latencies), f"{latencies.count}")
    for name, count in servers.most_common(_TOP_SERVERS):
        table.add_row(f"at {name}", "", "", "", f"{count}")
    if summary.output_tokens:
        table.caption = f"{summary.output_tokens} output tokens"
    return table


def _percentiles(latencies: Latencies) -> list[str]:
    return [_seconds(value) for value in latencies.percentiles(50, 95, 99)]


def _kernels(summary: Summary) -> Table:
    kernels, host_ns = summary.kernels, summary.kernel_host_ns
    title = f"Kernels by launches (top {min(_TOP_KERNELS, len(kernels))} of {len(kernels)})"
    table = _table(title, "kernel", "launches", "host time per launch")
    for name, count in kernels.most_common(_TOP_KERNELS):
        table.add_row(name, f"{count}", _seconds(host_ns[name] / count * 1e-9))
    return table


def _calls(summary: Summary) -> Table:
    multiplexed = summary.multiplexed.total()
    joined = summary.linked + summary.stepped + summary.unattributed + summary.ambiguous + multiplexed
    total = joined + summary.counted
    what = "Calls and probe hits" if summary.probe_hits else "Calls"
    table = _table(f"{what}: {total}", "", "calls", "")
    for name, count in summary.probe_hits.most_common(_TOP_KERNELS):
        table.add_row(f"probe {name}", f"{count}", "")
    for direction, count in summary.copies.most_common():
        table.add_row(
            f"copies {direction.replace('_', ' ')}", f"{count}", size(summary.copy_bytes[direction])
        )
    if summary.waits:
        table.add_row(
            "synchronisation waits", f"{summary.waits}", f"{_seconds(summary.wait_ns * 1e-9)} waited"
        )
    if summary.stepped:  # first: what a batch serves is its step's, and no single request's
        share = f"{100 * summary.stepped / joined:.1f} %, {summary.steps} steps"
        table.add_row("of steps", f"{summary.stepped}", share)
    if summary.linked or not summary.stepped:
        share = f"{100 * summary.linked / max(joined, 1):.1f} %"
        table.add_row("linked to a request", f"{summary.linked}", share)
    for each in SOURCES:
        if each.summary and (count := summary.linked_by[each.source]):
            table.add_row(f"  {each.summary}", f"{count}", "")
    if summary.counted:
        table.add_row("counted only, there were too many", f"{summary.counted}", "no spans")
    if summary.unattributed:
        table.add_row("without a request", f"{summary.unattributed}", "")
    if summary.ambiguous:
        table.add_row("on a thread with several requests", f"{summary.ambiguous}", "not linked")
    return table


def _multiplexed(summary: Summary) -> Iterable[RenderableType]:
    """What threads do not say of whom it is, by the runtimes for which they do not, and what helps."""
    table = _table("Not linked: the runtime interleaves requests", "", "calls", "requests sent")
    found = sorted({*summary.multiplexed, *summary.requests_multiplexed})
    for runtimes in found:
        label = ", ".join(RUNTIMES[name].label for name in runtimes)
        table.add_row(label, f"{summary.multiplexed[runtimes]}", f"{summary.requests_multiplexed[runtimes]}")
    yield table
    for name in dict.fromkeys(chain.from_iterable(found)):
        yield Text(f"{RUNTIMES[name].label}: {RUNTIMES[name].remedy}")


def _records(outcome: Outcome) -> str:
    seen = ", ".join(f"{count} {name}" for name, count in sorted(outcome.submitted.items()) if count)
    return f"records  {seen or 'none'} in {outcome.seconds:.1f} s"


def _is_said(family: str, reason: str) -> bool:
    """Whether a loss has a line of its own: among what was exported, or as what was not read."""
    return family == _EXPORT or (family, reason) in _UNREAD


def _unread(losses: Mapping[tuple[str, str], int]) -> list[str]:
    """What was not read at all, a line each."""
    return [
        f"not read {count} {what}: docs/reference/protocols.md#sockets-and-tls"
        for reason, what in _UNREAD.items()
        if (count := losses.get(reason, 0))
    ]


def _exported(outcome: Outcome, guidance: Guidance | None) -> Iterable[str]:
    """What arrived where, and a line for each reason for which something did not."""
    if guidance is not None and not guidance.exports:
        return
    stats = outcome.exported
    text = f"exported {stats.get('spans_accepted', 0)} spans, {stats.get('points_accepted', 0)} data points"
    if guidance is not None:
        text += f" to {guidance.exports}"
    if stats.get("spans_queued", 0):
        text += f", {stats['spans_queued']} spans not yet sent"
    yield text
    for key, count in sorted(stats.items()):
        _, lost, reason = key.partition("_lost_")
        if lost and count:
            yield f"lost     {key} {count}: {explain(_EXPORT, reason)[1]}"


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else duration(value * 1e9)
