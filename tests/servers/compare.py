"""What an agent exported of a server, against what its clients, the server and its upstream know. Pure.

In: the clients' outcomes, the server's and the upstream's truth, spans. Out: how often each thing was wrong.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median, quantiles
from typing import Any, Final

from tests.rig.spans import Span
from tests.servers.load import DEADLINE_S, Outcome, traced_number

SERVER, CLIENT = 2, 3  # SpanKind
_ERROR: Final = 2  # StatusCode
ROUTES: Final = {
    "item": "/items/*",
    "pipelined": "/items/*",
    "missing": "/missing/*",
    "fail": "/fail/*",
    "health": "/health",
}
_CHAT: Final = "/v1/chat/completions"
RPC_FAILURES: Final = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
"""What a server's call has failed with: https://opentelemetry.io/docs/specs/semconv/rpc/grpc/."""
_ON_TIME_S: Final = 0.005
"""How long a call whose deadline passes may be on its way, and the deadline have passed to the server as well."""
CLOCK_MS: Final = 0.2
"""How much earlier or later than server and client a first token may be: their own calls before and after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """How chat completions are answered, where the server's own API does it and not programs/service.py.

    ``own_ids``: ids have no numbers of requests. ``usage``: each stream ends with it, asked for or not. ``packed``: an
    event holds several tokens, so that events are no count of them. ``timed``: the server says when it had the first
    token of a stream. ``late``: what a gRPC server answers with, if it does, when a deadline has passed.
    """

    own_ids: bool = False
    usage: bool = False
    packed: bool = False
    timed: bool = True
    late: str = "DEADLINE_EXCEEDED"


SERVICE: Final = Answers()
"""Those of programs/service.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All that is known of a load: ``ttft_s``: the server's, of streams; ``calls``: (number, which) at the upstream."""

    outcomes: Sequence[Outcome]
    ttft_s: Mapping[int, float]
    calls: Sequence[tuple[int, int]]
    spans: Sequence[Span]
    answers: Answers = SERVICE


@dataclass(slots=True, kw_only=True)
class Compared:
    """How many; ``wrong``: by what, ``examples`` of each. Milliseconds of ``ttft_*``: between observer and observed.

    ``incomplete``: spans that say that not all was seen of their request. What they leave out is not wrong in them.
    """

    requests: int = 0
    calls: int = 0
    missing: int = 0
    twice: int = 0
    calls_missing: int = 0
    calls_twice: int = 0
    incomplete: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    links: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    ttft_after_server_ms: list[float] = field(default_factory=list)
    ttft_before_client_ms: list[float] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, what: str, example: object) -> None:
        """Count something wrong, and keep the first of its kind."""
        self.wrong[what] += 1
        self.examples.setdefault(what, str(example)[:2000])


def compare(observed: Observed, port: int) -> Compared:
    """Of the server at a port."""
    served = [s for s in observed.spans if s["kind"] == SERVER and s["attributes"].get("server.port") == port]
    found = Compared(requests=len(observed.outcomes), calls=len(observed.calls))
    numbers: dict[str, int] = {}  # of SERVER spans, by their ids
    for outcome, span in _paired(observed.outcomes, served, found):
        numbers[span["spanId"]] = outcome.number
        found.incomplete += _is_incomplete(span["attributes"])
        _compare_request(outcome, span, found)
        if outcome.rpc_status:
            _compare_rpc(outcome, span, observed.answers, found)
        if outcome.kind in ("stream", "answer"):
            _compare_generation(outcome, span["attributes"], observed, found)
    _compare_calls(observed, numbers, found)
    return found


def figures(found: Compared) -> dict[str, Any]:
    """All of it as JSON can have it: of the times, the median and the 99th percentile; None: there are none."""
    said = {each.name: getattr(found, each.name) for each in fields(found)}
    for name in ("ttft_after_server_ms", "ttft_before_client_ms"):
        said[name] = [median(said[name]), quantiles(said[name], n=100)[98]] if len(said[name]) > 1 else None
    return said


def faults(found: Compared, *, lost: bool = False) -> list[str]:
    """All that is wrong, with an example. A link that is not known is none of it, nor, with ``lost``, is a span that is
    not there: the session said that it lost what they would have been of.
    """
    counts = {
        "requests without a span": 0 if lost else found.missing,
        "spans too many": found.twice,
        "calls without a span": 0 if lost else found.calls_missing,
        "spans of calls too many": found.calls_twice,
        **found.wrong,
        "link": found.links["wrong"],
    }
    return [f"{what}: {count}: {found.examples.get(what, '')}" for what, count in counts.items() if count]


def _paired(
    outcomes: Iterable[Outcome], served: Iterable[Span], found: Compared
) -> Iterable[tuple[Outcome, Span]]:
    """Requests and their spans: those of a client's port, in order. Those that say which they are, where some lack or
    where others were under way on the connection.
    """
    asked: defaultdict[int, list[Outcome]] = defaultdict(list)
    seen: defaultdict[int, list[Span]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda one: (one.sent_ns, one.number)):
        asked[outcome.port].append(outcome)
    for span in sorted(served, key=lambda one: (one["start"], one["end"])):
        seen[span["attributes"].get("client.port", 0)].append(span)
    for port in asked.keys() | seen.keys():
        lacking = len(asked[port]) - len(seen[port])
        found.missing += max(0, lacking)
        found.twice += max(0, -lacking)
        if any(outcome.multiplexed for outcome in asked[port]):
            yield from _paired_by_trace(asked[port], seen[port], found)
        elif lacking:
            kinds = [(outcome.kind, outcome.number) for outcome in asked[port]]
            paths = [span["attributes"].get("url.path") for span in seen[port]]
            what = "requests without a span" if lacking > 0 else "spans too many"
            found.examples.setdefault(what, f"{kinds} but {paths}"[:600])
            numbers = {number_of(span): span for span in seen[port]}
            yield from ((one, numbers[one.number]) for one in asked[port] if one.number in numbers)
        else:
            yield from zip(asked[port], seen[port], strict=True)


def _paired_by_trace(
    asked: Sequence[Outcome], seen: Sequence[Span], found: Compared
) -> Iterable[tuple[Outcome, Span]]:
    """Requests and their spans where each came with a traceparent."""
    numbers = {traced_number(span["traceId"]): span for span in seen}
    for outcome in asked:
        if outcome.number in numbers:
            yield outcome, numbers[outcome.number]
        elif len(asked) <= len(seen):
            found.note("traceparent", outcome)
        else:
            found.examples.setdefault("requests without a span", str(outcome))


def number_of(span: Span) -> int | None:
    """The request that a SERVER span is of, by what was read of it; None: it says nothing of that."""
    said = span["attributes"]
    name = said.get("gen_ai.response.id", "") or said.get("url.path", "")
    found = re.search(r"(?:^chatcmpl-|/)(\d+)$", name)
    return int(found[1]) if found else None


def _is_incomplete(said: Mapping[str, Any]) -> bool:
    return "otelgpu.incomplete" in said


def _differs(said: Mapping[str, Any], key: str, truth: object) -> bool:
    """Whether an attribute is not what it should be; one that an incomplete span leaves out does not."""
    value = said.get(key)
    return value != truth and not (value is None and _is_incomplete(said))


def _compare_request(outcome: Outcome, span: Span, found: Compared) -> None:
    said = span["attributes"]
    if _differs(said, "url.path", outcome.path):
        found.note("path", (outcome, said))
    if _differs(said, "http.route", _route(outcome)):
        found.note("route", (outcome, said))
    if outcome.status and _differs(said, "http.response.status_code", outcome.status):
        found.note("status", (outcome, said))
    failed = span.get("status", {}).get("code") == _ERROR
    if failed != _failed(outcome, said, failed) and (failed or not _is_incomplete(said)):
        found.note("error", (outcome, said))
    if outcome.traceparent:
        if not said.get("url.path"):  # its head was not seen
            return
        _, trace, parent, _ = outcome.traceparent.split("-")
        if (span["traceId"], span.get("parentSpanId")) != (trace, parent):
            found.note("traceparent", (outcome, span))
    elif span.get("parentSpanId"):
        found.note("traceparent", (outcome, span))


def _route(outcome: Outcome) -> str | None:
    return None if outcome.rpc_status else ROUTES.get(outcome.kind, _CHAT)


def _failed(outcome: Outcome, said: Mapping[str, Any], failed: bool) -> bool:
    """Whether a request failed; of one whose client hung up, either may be said."""
    if outcome.rpc_status:
        return said.get("rpc.status_code") in RPC_FAILURES
    return failed if outcome.kind.startswith("cut") else outcome.status >= 500


def _compare_rpc(outcome: Outcome, span: Span, answers: Answers, found: Compared) -> None:
    said = span["attributes"]
    if (said.get("rpc.system.name"), said.get("rpc.method")) != ("grpc", outcome.path[1:]):
        found.note("rpc method", (outcome, said))
    if said.get("rpc.status_code") not in _rpc_statuses(outcome, span, answers):
        found.note("rpc status", (outcome, said))
    if said.get("otelgpu.rpc.response.messages") != outcome.messages:
        found.note("messages", (outcome, said))


def _rpc_statuses(outcome: Outcome, span: Span, answers: Answers) -> Sequence[str]:
    """What a call may have ended with for its server, which is not always what its client ended it for."""
    if outcome.kind != "deadline":
        return (outcome.rpc_status,)
    if "http.response.status_code" in span["attributes"]:
        return (answers.late,)
    took_s = (span["end"] - span["start"]) / 1e9
    if (
        took_s < DEADLINE_S - _ON_TIME_S
    ):  # how much of it was left is not known; the server had more than this
        return "DEADLINE_EXCEEDED", "CANCELLED"
    return ("DEADLINE_EXCEEDED",)


def _compare_generation(
    outcome: Outcome, said: Mapping[str, Any], observed: Observed, found: Compared
) -> None:
    name = said.get("gen_ai.response.id")
    wrong = name != f"chatcmpl-{outcome.number}" and not (name and observed.answers.own_ids)
    if wrong and (name or not _is_incomplete(said)):
        found.note("response id", (outcome, said))
    reported = outcome.usage or observed.answers.usage
    counted = outcome.tokens is not None and (reported or not observed.answers.packed)
    if _differs(said, "gen_ai.usage.output_tokens", outcome.tokens if counted else None):
        found.note("tokens", (outcome, said))
    estimated = "gen_ai.usage.output_tokens" in said and counted and not reported
    if bool(said.get("otelgpu.gen_ai.usage.estimated")) != estimated:
        found.note("estimated", (outcome, said))
    if outcome.kind == "stream":
        _compare_first_token(outcome, said, observed, found)


def _compare_first_token(
    outcome: Outcome, said: Mapping[str, Any], observed: Observed, found: Compared
) -> None:
    timed = observed.answers.timed
    server_s = observed.ttft_s.get(outcome.number) if timed else 0.0
    ours_s = said.get("gen_ai.latency.time_to_first_token")
    if ours_s is None and _is_incomplete(said):
        return
    if ours_s is None or server_s is None or outcome.ttft_s is None:
        found.note("ttft", (outcome, server_s, said))
        return
    after, before = 1e3 * (ours_s - server_s), 1e3 * (outcome.ttft_s - ours_s)
    if timed:
        found.ttft_after_server_ms.append(after)
    found.ttft_before_client_ms.append(before)
    if min(after, before) < -CLOCK_MS:
        found.note("ttft", (after, before, outcome, said))


def _compare_calls(observed: Observed, numbers: Mapping[str, int], found: Compared) -> None:
    asked = {outcome.number for outcome in observed.outcomes}
    by_id = {span["spanId"]: span for span in observed.spans}
    seen: Counter[tuple[int, int]] = Counter()
    for span in observed.spans:
        path = span["attributes"].get("url.path", "")
        if span["kind"] != CLIENT or not path.startswith("/call/"):
            continue
        number, which = map(int, path.split("/")[2:])
        if number not in asked:
            continue
        seen[number, which] += 1
        link, owner = _link(span, number, numbers, by_id)
        found.links[link] += 1
        found.sources[span["attributes"].get("otelgpu.context.source", "-")] += 1
        if link == "wrong":
            found.examples.setdefault("link", f"call {path} under {owner}: {span}"[:900])
    known = Counter(observed.calls)
    found.calls_missing = sum((known - seen).values())
    found.calls_twice = sum(max(0, count - 1) for count in seen.values())
    if found.calls_missing:
        found.examples["calls without a span"] = str(sorted(known - seen)[:10])


def _link(
    span: Span, number: int, numbers: Mapping[str, int], by_id: Mapping[str, Span]
) -> tuple[str, int | None]:
    """Whether a call is under its request, which is the next SERVER span above it, and which that is of."""
    above = by_id.get(span.get("parentSpanId", ""))
    while above is not None and above["kind"] != SERVER:
        above = by_id.get(above.get("parentSpanId", ""))
    if above is None:
        return "unattributed", None
    owner = numbers.get(above["spanId"])
    if owner is None:
        return "unknown", None  # a span too many, or a request's whose neighbour has none
    return ("right" if owner == number else "wrong"), owner
