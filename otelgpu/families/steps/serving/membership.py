"""Which message is of which step of one process: exactly, or not at all. Pure.

In: when steps ended, and the messages that say what steps gave, each in order of time. Out: for each message its
step, or that it cannot be known, and how far that makes a step's members uncertain.

What holds of every engine, and all that is used:

1. a message is sent after its step has ended, in asynchronous scheduling too (a step *ends* when its results have
   been waited for);
2. messages are sent in the order of their steps;
3. a step serves no request that was handed to the engine after its first call;
4. two messages on one connection, or that give the same request something, are of different steps: a step sends one
   message to each client.

From the first comes the latest step that a message can be of; from the others, going forward, the earliest, and,
going backward, from the second and the last again the latest. Where the two meet, the step is known. Where they do
not meet ``settle_ns`` after the message, one assumption is added: that it was sent within ``send_delay_ns`` of the
end of its step. Whatever is still open is never reported.

Example: steps end at 10, 20, 30; messages with request a are sent at 11, 31, 32. The first is of step 1. The second
could be of step 2 or 3, but the third is later and of a different step, so they are of 2 and 3: a stall of the
sender is distinguished from a step without output.
Invariant: a known step never changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from otelgpu.engine.call_roles import StepRules
from otelgpu.families.steps.serving.request_steps import Gained
from otelgpu.families.steps.step import StepPhase
from otelgpu.model.engine_messages import EngineOutput

UNSEEN: Final = -1
"""In place of the position of a step that ended before the first that was seen."""

STEPS_REMEMBERED: Final = 4096
MESSAGES_WAITING: Final = 4096
REQUESTS_REMEMBERED: Final = 16_384

#: What is counted, and what one count means.
COUNTERS: Final = {
    "messages_ambiguous": "messages of an engine that could be of several steps: the step was not guessed",
    "messages_without_step": "messages of an engine whose step was not seen, or that contradict what was seen",
}


class StepMessage(Struct, frozen=True):
    """A message, and what its step did for each item of it."""

    message: EngineOutput
    gained: tuple[Gained, ...]  # what its requests have got, by item
    phases: tuple[StepPhase, ...]
    added_ns: int  # when the last of its requests was handed to the engine; 0: not seen


class Matched(Struct, frozen=True):
    """A message and the position of its step; None: not known, of one of ``first`` to ``last``, if of any."""

    reporting: StepMessage
    step: int | None
    first: int
    last: int


class _Waiting(Struct):
    reporting: StepMessage
    earliest: int
    latest: int
    reported: bool = False

    @property
    def message(self) -> EngineOutput:
        return self.reporting.message


class Matcher:
    """The messages and the steps of one process. Positions of steps count from 0, in the order they were added."""

    def __init__(self, rules: StepRules, counters: Counter[str], unseen_until_ns: int) -> None:
        """``unseen_until_ns``: steps that were not seen ended by then."""
        self._unseen_until_ns = unseen_until_ns
        self._rules = rules
        self._counters = counters
        self._starts: deque[int] = deque()  # of the last steps
        self._ends: deque[int] = deque()
        self._first = 0  # position of the first of them
        self._waiting: deque[_Waiting] = deque()
        # Of messages that do not wait any more: after which steps come those that follow.
        self._after = UNSEEN  # at or after
        self._after_request: OrderedDict[str, int] = OrderedDict()  # strictly after
        self._after_connection: OrderedDict[int, int] = OrderedDict()

    def unseen(self, until_ns: int) -> None:
        """A step that was not seen may have ended as late as this."""
        self._unseen_until_ns = max(self._unseen_until_ns, until_ns)

    def add_step(self, start_ns: int, end_ns: int) -> int:
        """A step has ended, none before the last one; its position."""
        self._starts.append(max(start_ns, self._starts[-1]) if self._starts else start_ns)
        self._ends.append(max(end_ns, self._ends[-1]) if self._ends else end_ns)
        if len(self._ends) > STEPS_REMEMBERED:
            self._starts.popleft()
            self._ends.popleft()
            self._first += 1
        return self._first + len(self._ends) - 1

    def match(self, messages: Iterable[StepMessage], now_ns: int, *, final: bool = False) -> list[Matched]:
        """Messages, in order, that became known, or that never will be; all steps that ended by now were added."""
        self._waiting.extend(_Waiting(each, UNSEEN, UNSEEN) for each in messages)
        if not self._waiting:
            return []
        self._bound()
        found = []
        for each in self._waiting:
            if not each.reported and each.earliest == each.latest >= self._first:
                each.reported = True
                found.append(Matched(each.reporting, each.earliest, each.earliest, each.latest))
        while self._waiting:
            head = self._waiting[0]
            due = final or head.message.time_ns + self._rules.settle_ns <= now_ns
            if not (head.reported or due or len(self._waiting) > MESSAGES_WAITING):
                break
            self._waiting.popleft()
            if head.reported:
                self._leave(head.message, head.earliest)
            else:
                found.append(self._settle(head))
        return found

    def _bound(self) -> None:
        """The earliest and the latest step of each message that waits."""
        starts, ends = list(self._starts), list(self._ends)
        after = self._after
        of_request: dict[str, int] = {}
        of_connection: dict[int, int] = {}
        for each in self._waiting:
            message = each.message
            if not each.reported:
                each.earliest = max(after, self._earliest(each.reporting, starts, of_request, of_connection))
                each.latest = self._first + bisect_right(ends, message.time_ns) - 1
            after = max(after, each.earliest)
            of_request.update((item.request_id, after) for item in message.items)
            if message.connection:
                of_connection[message.connection] = after
        self._bound_backward()

    def _earliest(
        self,
        reporting: StepMessage,
        starts: Sequence[int],
        of_request: Mapping[str, int],
        of_connection: Mapping[int, int],
    ) -> int:
        """The first step after all that the message must come after."""
        message = reporting.message
        seen = message.time_ns - self._rules.send_delay_ns > self._unseen_until_ns
        earliest = max(self._after, self._first) if seen else self._after
        if reporting.added_ns > self._unseen_until_ns:
            earliest = max(earliest, self._first + bisect_left(starts, reporting.added_ns))
        for item in message.items:
            before = of_request.get(item.request_id, self._after_request.get(item.request_id))
            if before is not None:
                earliest = max(earliest, before + 1)
        if message.connection:
            before = of_connection.get(message.connection, self._after_connection.get(message.connection))
            if before is not None:
                earliest = max(earliest, before + 1)
        return earliest

    def _bound_backward(self) -> None:
        before: int | None = None  # at or before
        of_request: dict[str, int] = {}
        of_connection: dict[int, int] = {}
        for each in reversed(self._waiting):
            message = each.message
            if not each.reported:
                bounds = [each.latest] if before is None else [each.latest, before]
                bounds += [
                    of_request[item.request_id] - 1 for item in message.items if item.request_id in of_request
                ]
                if message.connection in of_connection:
                    bounds.append(of_connection[message.connection] - 1)
                each.latest = min(bounds)
            before = each.latest
            for item in message.items:
                of_request[item.request_id] = before
            if message.connection:
                of_connection[message.connection] = before

    def _settle(self, head: _Waiting) -> Matched:
        """A message that waited long enough: the last assumption gives its step, or nothing does."""
        message, latest = head.message, head.latest
        earliest = self._earliest(head.reporting, list(self._starts), {}, {})
        if earliest > latest:
            self._counters["messages_without_step"] += 1
            self._forget(message.time_ns)
            return Matched(head.reporting, None, self._since(message.time_ns), latest)
        likely = max(earliest, self._since(message.time_ns))
        if likely == latest >= self._first:
            self._leave(message, latest)
            return Matched(head.reporting, latest, latest, latest)
        self._leave(message, earliest)
        self._counters["messages_ambiguous"] += 1
        return Matched(head.reporting, None, earliest, latest)

    def _since(self, time_ns: int) -> int:
        """The first step that a message of this time can be of, if it was sent in time."""
        since_ns = time_ns - self._rules.send_delay_ns
        if since_ns <= self._unseen_until_ns:
            return UNSEEN  # which is before all others
        return self._first + bisect_left(list(self._ends), since_ns)

    def is_closed(self, step: int) -> bool:
        """Whether every message that is still to come is of a later step."""
        if step >= (self._waiting[-1].earliest if self._waiting else self._after):
            return False
        return all(each.reported or not each.earliest <= step <= each.latest for each in self._waiting)

    def _leave(self, message: EngineOutput, step: int) -> None:
        """What a message whose earliest step is ``step`` implies for those that come after it."""
        self._after = max(self._after, step)
        for item in message.items:
            if item.finished:
                self._after_request.pop(item.request_id, None)
                continue
            self._after_request[item.request_id] = step
            self._after_request.move_to_end(item.request_id)
        if message.connection:
            self._after_connection[message.connection] = step
            self._after_connection.move_to_end(message.connection)
        for remembered in (self._after_request, self._after_connection):
            while len(remembered) > REQUESTS_REMEMBERED:
                remembered.popitem(last=False)

    def _forget(self, time_ns: int) -> None:
        """Messages and steps do not fit together: what was concluded of later ones does not hold."""
        self._unseen_until_ns = max(self._unseen_until_ns, time_ns)
        self._after = UNSEEN
        self._after_request.clear()
        self._after_connection.clear()
