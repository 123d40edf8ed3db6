"""One process that drives a GPU and serves: its steps, and what its messages say of them. Pure.

In: its operations, the messages that it sent. Out: steps that have ended a while ago, each with what it gave.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Final

from msgspec import Struct, field

from otelgpu.engine.call_roles import StepCalls, StepRules
from otelgpu.families.steps.serving.boundaries import ProcessSteps
from otelgpu.families.steps.serving.membership import MESSAGES_WAITING, Matched, Matcher, StepMessage
from otelgpu.families.steps.serving.request_steps import Gained, RequestSteppings
from otelgpu.families.steps.step import Step, StepKey, StepPhase
from otelgpu.model.context import UNSETTLED, Unsettled
from otelgpu.model.engine_messages import EngineOutput
from otelgpu.model.operations import Operations

RECENT: Final = 4096
"""Steps that have ended, that tokens can be attributed to by time order."""

#: What is counted, and what one count means.
COUNTERS: Final = {
    "messages_not_kept": "messages of an engine that came faster than they could be matched",
    "messages_several_threads": "messages of a process in which several threads make steps: nobody knows whose",
    "outputs_late": "outputs whose step had been reported",
}


class Given(Struct):
    """A step that was not reported yet, and what it gave."""

    step: Step
    rows: Operations
    position: int
    tokens: dict[str, tuple[Gained, int, StepPhase]] = field(default_factory=dict)  # by request id
    written: dict[int, tuple[int, StepPhase]] = field(default_factory=dict)  # by exchange, by time order
    heard: bool = False  # some message is of it
    uncertain: bool = False  # some message may be


class Engine:
    """A process. ``unseen_until_ns``: when it was last seen to do anything before it was watched."""

    def __init__(
        self, tgid: int, calls: StepCalls, rules: StepRules, counters: Counter[str], unseen_until_ns: int
    ) -> None:
        self._rules = rules
        self._counters = counters
        self._steps = ProcessSteps(tgid, calls, rules)
        self._matcher = Matcher(rules, counters, unseen_until_ns)
        self._messages: list[EngineOutput] = []
        self._open: OrderedDict[int, Given] = OrderedDict()  # by position
        self._by_key: dict[StepKey, Given] = {}
        self._recent: deque[Step] = deque(maxlen=RECENT)
        self._rows = 0  # of steps that are not reported
        self._last: dict[int, int] = {}  # thread → end of its last step
        self.talks = False
        self.ended = False

    @property
    def rows(self) -> int:
        """Operations held."""
        return self._steps.rows + self._rows

    def take(self, rows: Operations) -> None:
        """More operations. The array is kept."""
        self._steps.add(rows)

    def hear(self, message: EngineOutput) -> None:
        """A message that the process sent."""
        self.talks = True
        if len(self._messages) >= MESSAGES_WAITING:
            self._counters["messages_not_kept"] += 1
            return
        self._messages.append(message)

    def advance(self, now_ns: int, requests: RequestSteppings, *, final: bool) -> list[Operations]:
        """Find what ended by now, and which message is of which step; operations that are of no step."""
        final = final or self.ended
        found, rest = self._steps.advance(now_ns, final=final)
        self._matcher.unseen(self._steps.stray_ns)
        for each in found:
            position = self._matcher.add_step(each.step.start_ns, each.step.end_ns)
            given = Given(each.step, each.rows, position)
            self._open[position] = self._by_key[each.step.key] = given
            self._recent.append(each.step)
            self._rows += len(each.rows)
            self._last[each.step.tid] = each.step.end_ns
        due = [message for message in self._messages if final or message.time_ns <= now_ns]
        self._messages = [message for message in self._messages if not final and message.time_ns > now_ns]
        due.sort(key=lambda message: message.time_ns)
        reported = [_reporting(message, requests) for message in due]
        several = self._threads(now_ns) > 1
        for matched in self._matcher.match(reported, now_ns, final=final):
            self._apply(matched, several=several)
        return rest

    def _threads(self, now_ns: int) -> int:
        """How many threads made steps of late."""
        since_ns = now_ns - self._rules.longest_ns
        self._last = {tid: end_ns for tid, end_ns in self._last.items() if end_ns >= since_ns}
        return len(self._last)

    def _apply(self, matched: Matched, *, several: bool) -> None:
        reporting = matched.reporting
        given = None if matched.step is None else self._open.get(matched.step)
        if given is None or several:
            reason = "outputs_late" if matched.step is not None and not several else ""
            reason = "messages_several_threads" if several else reason
            if reason:
                self._counters[reason] += 1
            for position in range(max(matched.first, self._first_open()), matched.last + 1):
                if position in self._open:
                    self._open[position].uncertain = True
            for gained in reporting.gained:
                gained.unattributed += 1
            return
        given.heard = True
        step, tokens = given.step, given.tokens
        for (request_id, new_tokens, _), gained, phase in zip(
            reporting.message.items, reporting.gained, reporting.phases, strict=True
        ):
            gained.give(step, new_tokens, phase)
            if request_id in tokens:
                _, before, first = tokens[request_id]
                tokens[request_id] = gained, before + new_tokens, first
            else:
                tokens[request_id] = gained, new_tokens, phase

    def _first_open(self) -> int:
        return next(iter(self._open), 0)

    def release(self, now_ns: int, *, final: bool) -> list[Given]:
        """Steps that ended so long ago that no more will be known of them."""
        found: list[Given] = []
        upto_ns = now_ns - self._rules.grace_ns
        while self._open:
            position, given = next(iter(self._open.items()))
            if not (final or self.ended or given.step.end_ns <= upto_ns):
                break
            del self._open[position]
            self._by_key.pop(given.step.key, None)
            self._rows -= len(given.rows)
            found.append(given)
        return found

    def closed(self, key: StepKey) -> Given | None:
        """A step that was not reported yet, and of which all messages have come."""
        given = self._by_key.get(key)
        return given if given is not None and self._matcher.is_closed(given.position) else None

    def recent(self) -> list[Step]:
        """The last steps, in the order of their ends."""
        return list(self._recent)

    def step_at(self, tid: int, time_ns: int) -> StepKey | Unsettled | None:
        """The step that a thread was in; it may be one that has not ended yet."""
        mine = [step for step in self._recent if step.tid == tid and step.end_ns >= time_ns]
        if not mine:
            return UNSETTLED
        begun = [step for step in mine if step.start_ns <= time_ns]
        return max(begun, key=lambda step: step.start_ns).key if begun else None

    def write(self, key: StepKey, exchange: int, phase: StepPhase) -> None:
        """By time order, a step gave an exchange a token."""
        given = self._by_key.get(key)
        if given is not None:
            before, first = given.written.get(exchange, (0, phase))
            given.written[exchange] = before + 1, first


def _reporting(message: EngineOutput, requests: RequestSteppings) -> StepMessage:
    """What a step did for each request of its message; messages come in the order in which they were sent."""
    gained = tuple([requests.of(item.request_id) for item in message.items])
    phases = []
    for each in gained:  # one by one: a request may be in a message twice
        phases.append(each.phase())
        each.heard = True
    return StepMessage(message, gained, tuple(phases), max((each.added_ns for each in gained), default=0))
