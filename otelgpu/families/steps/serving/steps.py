"""Tier ``step``: which step of an engine an operation belongs to, and which requests each step served.

In: operations that no request owns, what engine processes said to each other, which exchanges began and how they
are known. Out: steps with their operations and members, and of an answered exchange the steps that served it.
Pure; memory is bounded, and what does not fit is passed on or counted.

Worked example, an engine thread of process 7 and a client's exchange 3, known as ``chatcmpl-a``::

    steps.open([Opened(key=3, …)])                              # process 5 serves HTTP
    steps.name([Named(key=3, request_id="chatcmpl-a", …)])
    steps.hear([EngineRequest(tgid=7, request_id="chatcmpl-a-1b2c3d4e", …)])
    taken = steps.take(rows)                                    # H2D, launch, D2H, synchronise; copied where True
    steps.hear([EngineOutput(tgid=7, items=(EngineItem("chatcmpl-a-1b2c3d4e", 1),), …)])
    steps.report(now)    → one ServedStep with one member, exchange 3, phase prefill, and its four rows, a second later
    steps.answer(exchange) → RequestSteps(source=MESSAGE, first_start_ns=…, tokens=1, …), at once

The modules: where a thread's steps end (``boundaries``); which message is of which step (``membership``); which
exchange a request id is (``request_index``); what each request got (``request_steps``). What a call is to a step, by
name: ``engine/call_roles``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine.call_roles import SERVING, WAITS, StepCalls, StepRules, is_one_of
from otelgpu.families.steps.serving.membership import COUNTERS as MATCHER_COUNTERS
from otelgpu.families.steps.serving.process import COUNTERS as ENGINE_COUNTERS
from otelgpu.families.steps.serving.process import Engine, Given
from otelgpu.families.steps.serving.request_index import RequestIndex
from otelgpu.families.steps.serving.request_steps import Gained, RequestSteppings, attribute_tokens, view_of
from otelgpu.families.steps.step import Member, Membership, RequestSteps, ServedStep, StepKey, StepPhase
from otelgpu.model.codes import distinct
from otelgpu.model.context import Unsettled
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.engine_messages import EngineMessage, EngineOutput, EngineRequest
from otelgpu.model.exchange import Exchange, Named, Opened, Published, Role, TraceParent
from otelgpu.model.losses import Reasons
from otelgpu.model.operations import OperationKind, Operations, concatenate, operations
from otelgpu.model.shares import Headroom

OPERATIONS_HELD = 262_144
"""32 MiB: operations of steps that have not been reported. An engine has at most as much as is free: alone half."""

ENGINES = 1024
"""Processes that are watched."""

PROCESSES = 65_536
"""Processes of which it is known when they last waited."""

WAIT_KINDS = (OperationKind.SYNCHRONIZATION, OperationKind.COPY)
"""Of other calls of processes that are no engines nothing is noted."""

#: What is counted, and what one count means.
COUNTERS = Reasons(
    "steps",
    {
        **MATCHER_COUNTERS,
        **ENGINE_COUNTERS,
        "steps_ambiguous": "steps of which it is not known whether they served more requests than are reported",
        "operations_not_kept": "operations of serving processes that no step could hold: there were too many",
        "processes_not_watched": "serving processes beyond the bound, whose steps are not looked for",
    },
)


class EndedSteps(Struct, frozen=True, kw_only=True):
    """m steps of which no more will be known, their n operations, and operations that are of no step."""

    steps: list[ServedStep]
    operations: Operations  # (n,)
    step: npt.NDArray[np.int64]  # (n,) in range(m)
    rest: Operations


class EngineSteps:
    """All steps of a session. ``apis``: by position of the family, code of a function → its exported name."""

    def __init__(
        self,
        apis: Sequence[Mapping[int, str]],
        *,
        rules: StepRules = SERVING,
        headroom: Headroom | None = None,
    ) -> None:
        self._headroom = headroom or Headroom()
        self._calls = StepCalls(apis)
        self._rules = rules
        self._engines: dict[int, Engine] = {}
        self._index = RequestIndex()
        self._requests = RequestSteppings()
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._waited: dict[int, int] = {}  # when a wait of a process that is not watched last ended
        self._began_ns: int | None = None
        self._heard = False
        self._matched = (0, False)  # what was asked of match() last
        self._rest: list[Operations] = []  # of no step, not yet given back

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return self._counts

    def open(self, opened: Iterable[Opened]) -> None:
        """Exchanges that began: the processes that serve them are watched."""
        for each in opened:
            self._index.open(each)
            if self._rules.by_time and each.role is Role.SERVER:
                self._watch(each.tgid, each.start_ns)

    def name(self, named: Iterable[Named]) -> None:
        """By which ids exchanges are known elsewhere."""
        for each in named:
            self._index.name(each)

    @property
    def hears_engines(self) -> bool:
        """Whether any engine was heard: what they say of a request may need a while to be matched."""
        return self._heard

    def hear(self, messages: Iterable[EngineMessage]) -> None:
        """What engine processes said to each other: those that take requests and send tokens are watched."""
        for message in messages:
            self._heard = True
            if isinstance(message, EngineRequest):
                self._index.hand_over(message)
                gained = self._requests.of(message.request_id)
                gained.added_ns = min(gained.added_ns or message.time_ns, message.time_ns)
                gained.prompt_tokens = message.prompt_tokens or gained.prompt_tokens
                if not message.sent:
                    self._watch(message.tgid, message.time_ns)
            elif message.sent and _reports_a_step(message):
                self._see(message)
                engine = self._watch(message.tgid, message.time_ns)
                if engine is not None:
                    engine.hear(message)

    def _see(self, message: EngineOutput) -> None:
        """Requests that began before the session did are known by their outputs only."""
        for item in message.items:
            if not self._requests.knows(item.request_id):
                self._index.see(item.request_id)
                self._requests.of(item.request_id)

    def _watch(self, tgid: int, time_ns: int) -> Engine | None:
        engine = self._engines.get(tgid)
        if engine is None:
            if len(self._engines) >= ENGINES:
                self._counts["processes_not_watched"] += 1
                return None
            began_ns = time_ns if self._began_ns is None else self._began_ns
            unseen_until_ns = self._waited.pop(tgid, began_ns)
            engine = self._engines[tgid] = Engine(
                tgid, self._calls, self._rules, self._counts, unseen_until_ns
            )
        return engine

    @property
    def has_engines(self) -> bool:
        """Whether any process is an engine, as far as is known."""
        return bool(self._engines)

    def watches(self, tgid: int) -> bool:
        """Whether a process is an engine, as far as is known."""
        return tgid in self._engines

    def take(self, rows: Operations) -> npt.NDArray[np.bool_]:
        """Copy those operations, all without a request, that may be of a step: shape (n,), True where one was taken."""
        taken = np.zeros(len(rows), dtype=np.bool_)
        if not len(rows):
            return taken
        tgids, codes = distinct(np.ascontiguousarray(rows["tgid"]))
        held = sum(engine.rows for engine in self._engines.values())
        free = (OPERATIONS_HELD >> self._headroom.steps) - held
        for code, tgid in enumerate(tgids.tolist()):
            engine = self._engines.get(tgid)
            mine = codes == code if len(tgids) > 1 else np.ones(len(rows), dtype=np.bool_)
            if engine is None:
                self._note_waits(tgid, rows, mine)
                continue
            count = int(np.count_nonzero(mine))
            if count > (free - engine.rows + 1) // 2:
                self._counts["operations_not_kept"] += count
                continue
            free -= count
            engine.take(rows.compress(mine))
            taken |= mine
        return taken

    def _note_waits(self, tgid: int, rows: Operations, mine: npt.NDArray[np.bool_]) -> None:
        """Once the process is watched, a message may be of a step that one of these ended."""
        waits = rows.compress(mine & np.isin(rows["kind"], WAIT_KINDS))
        waits = waits.compress(is_one_of(self._calls.roles(waits), WAITS))
        if not len(waits):
            return
        ended_ns = int((waits["start_ns"] + waits["duration_ns"]).max())
        self._waited[tgid] = max(self._waited.get(tgid, 0), ended_ns)
        if len(self._waited) > PROCESSES:
            del self._waited[next(iter(self._waited))]

    def handed_over(self, request_id: str) -> Published | TraceParent | None:
        """The context that a request was handed to its engine under, where its exchange was not seen."""
        return self._index.context_of(request_id)

    def match(self, now_ns: int, *, final: bool = False) -> None:
        """At a tick, before it answers exchanges: which steps ended, and which messages are of them.

        Every record before ``now_ns`` was fed.
        """
        if self._matched == (now_ns, final):
            return
        self._matched = now_ns, final
        if self._began_ns is None:
            self._began_ns = now_ns
        for engine in self._engines.values():
            self._rest += engine.advance(now_ns, self._requests, final=final)

    def report(self, now_ns: int, *, final: bool = False) -> EndedSteps:
        """At a tick, after :meth:`match`: what is known of the steps that ended a while ago."""
        self.match(now_ns, final=final)
        steps: list[ServedStep] = []
        parts: list[Operations] = []
        rest, self._rest = self._rest, []
        for engine in self._engines.values():
            for given in engine.release(now_ns, final=final):
                steps.append(self._settled(given))
                parts.append(given.rows)
        self._engines = {tgid: each for tgid, each in self._engines.items() if not each.ended}
        counts = [len(part) for part in parts]
        return EndedSteps(
            steps=steps,
            operations=concatenate(parts) if parts else operations(0),
            step=np.repeat(np.arange(len(steps), dtype=np.int64), counts),
            rest=concatenate(rest) if rest else operations(0),
        )

    def _settled(self, given: Given) -> ServedStep:
        served = self._served(given)
        if served.membership is Membership.AMBIGUOUS:
            self._counts["steps_ambiguous"] += 1
        for gained, _, _ in given.tokens.values():
            gained.settle(served)
        return served

    def _served(self, given: Given) -> ServedStep:
        """A step and its members, as they are known now."""
        members = [
            Member(
                request_id,
                gained.exchange or self._exchange(request_id, gained),
                tokens,
                phase,
                gained.prompt_tokens,
            )
            for request_id, (gained, tokens, phase) in given.tokens.items()
        ]
        if members or given.heard:
            source = ContextSource.MESSAGE
        else:
            members = [Member("", key, tokens, phase) for key, (tokens, phase) in given.written.items()]
            source = ContextSource.STEP
        if given.uncertain or (members and source is ContextSource.STEP):
            membership = Membership.AMBIGUOUS
        else:
            membership = Membership.KNOWN if members else Membership.UNREPORTED
        return ServedStep(
            step=given.step,
            members=tuple(members),
            membership=membership,
            source=source if members else ContextSource.NONE,
        )

    def _exchange(self, request_id: str, gained: Gained) -> int:
        gained.exchange = self._index.exchange_of(request_id)
        return gained.exchange

    def answer(self, exchange: Exchange) -> RequestSteps | None:
        """The steps that served an exchange that has ended; None where none is known.

        By messages, where any name it. Else, of a stream whose own process drives a GPU and sends no
        messages, by time order, if no more than ``StepRules.grace_ns`` lies between its first step and its end.
        """
        generation = exchange.generation
        also = (generation.response_id, generation.request_id) if generation is not None else ()
        gained = self._requests.find(self._index.requests_of(exchange.key, also=also))
        view = view_of(gained, ContextSource.MESSAGE, self._closed) if gained else None
        return view or self._by_time(exchange)

    def step_at(self, tgid: int, tid: int, time_ns: int) -> StepKey | Unsettled | None:
        """The step that a thread was in; UNSETTLED: it may be in one that is not known yet."""
        engine = self._engines.get(tgid)
        return None if engine is None else engine.step_at(tid, time_ns)

    def _closed(self, key: StepKey) -> ServedStep | None:
        engine = self._engines.get(key.tgid)
        given = engine.closed(key) if engine is not None else None
        return None if given is None else self._served(given)

    def _by_time(self, exchange: Exchange) -> RequestSteps | None:
        engine = self._engines.get(exchange.tgid)
        times = exchange.generation.content_times_ns if exchange.generation is not None else ()
        if engine is None or engine.talks or not times:
            return None
        steps = engine.recent()
        gained = Gained(added_ns=exchange.start_ns)
        positions = attribute_tokens(times, [step.end_ns for step in steps]).tolist()
        # Steps are reported a while after they ended, with the requests that are known to be theirs by then.
        unreported_ns = exchange.end_ns - self._rules.grace_ns
        if positions[0] < 0 or steps[positions[0]].end_ns <= unreported_ns:
            return None
        for position in positions:
            # A step that ended before the request began gave it nothing.
            if steps[position].end_ns < exchange.start_ns:
                gained.unattributed += 1
                continue
            phase = StepPhase.DECODE if gained.heard else StepPhase.PREFILL
            gained.heard = True
            gained.give(steps[position], 1, phase)
            engine.write(steps[position].key, exchange.key, phase)
        gained.added_ns = 0  # nobody handed it over
        return view_of([gained], ContextSource.STEP)

    def forget_process(self, tgid: int) -> None:
        """A process ended: what it left is reported at the next tick, as if the session ended."""
        self._waited.pop(tgid, None)
        engine = self._engines.get(tgid)
        if engine is not None:
            engine.ended = True


def _reports_a_step(message: EngineOutput) -> bool:
    """Messages of an engine without outputs and without the state of its queue are of no step."""
    return bool(message.items) or message.running is not None or message.waiting is not None
