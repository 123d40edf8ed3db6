"""Isolation of plug-ins: a fault in a parser that somebody else wrote costs its own connection and no other.

In: the :class:`~otelgpu.families.requests.protocol.ProtocolSpec` of a plug-in. Out: an isolated one. What its
recogniser or parser raises is caught and counted under the plug-in's name, and the connection is ignored from then
on; a result is accepted only if every field has the declared type and is within bounds. A plug-in that never returns
cannot be contained.

Invariant: memory that a plug-in reserved is released when its connection ends.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts, Parser, ProtocolSpec, Recognition
from otelgpu.model.exchange import Exchange, Named, Opened, ThreadAssignment

MAX_KEPT_BYTES: Final = 1 << 20
MAX_OPEN_KEYS: Final = 4096
MAX_COUNTERS: Final = 32
MAX_COUNTER_NAME: Final = 96
MAX_TEXT: Final = 4096
MAX_ITEMS: Final = 128
_MAX_RECOGNISER_FAULTS: Final = 16
_BELOW: Final = 1 << 63
#: What a plug-in may raise. KeyboardInterrupt is the user's.
_FAULTS: Final = (Exception, SystemExit, GeneratorExit)


def isolated(spec: ProtocolSpec) -> ProtocolSpec:
    """Return the same protocol, isolated."""
    faults = 0

    def recognise(data: bytes, from_client: bool, late: bool) -> Recognition:
        nonlocal faults
        if faults >= _MAX_RECOGNISER_FAULTS:
            return Recognition.NO
        try:
            answer = spec.recognise(data, from_client, late)
        except _FAULTS:
            faults += 1
            return Recognition.NO
        return answer if isinstance(answer, Recognition) else Recognition.NO

    return ProtocolSpec(
        name=spec.name,
        recognise=recognise,
        open=lambda facts, output: IsolatedParser(spec, facts, output),
    )


class PluginOutput(ParserOutput):
    """The output that a plug-in is given: its results stay here until they have been validated."""

    __slots__ = ("_begun", "_kept", "_names", "_owner", "keys")

    def __init__(self, owner: ParserOutput, name: str) -> None:
        super().__init__(0, capture_content=owner.capture_content)
        self._owner = owner
        self._names = f"plugin_{name}_"
        self._kept = 0
        self._begun: dict[int, ThreadAssignment] = {}  # begun and not ended, by exchange
        self.keys: set[int] = set()  # of exchanges that are not finished

    def count(self, name: str, times: int = 1) -> None:
        """Add to a counter of the plug-in: up to 32 names each."""
        counters, own = self._owner.counters, f"{self._names}{name}"[:MAX_COUNTER_NAME]
        if own in counters or sum(known.startswith(self._names) for known in counters) < MAX_COUNTERS:
            counters[own] = counters.get(own, 0) + max(int(times), 0)

    def new_key(self) -> int:
        """Return the next ``Exchange.key``."""
        if len(self.keys) >= MAX_OPEN_KEYS:
            raise OverflowError("too many exchanges are open on one connection")
        key = self._owner.new_key()
        self.keys.add(key)
        return key

    def reserve(self, size: int) -> bool:
        """Reserve ``size`` bytes of the budget, up to a bound for each connection."""
        if size < 0 or self._kept + size > MAX_KEPT_BYTES or not self._owner.reserve(size):
            return False
        self._kept += size
        return True

    def release(self, size: int) -> None:
        """Release bytes reserved by :meth:`reserve`."""
        size = max(0, min(size, self._kept))
        self._kept -= size
        self._owner.release(size)

    def end(self, time_ns: int) -> None:
        """Release the memory and end the assignments that the plug-in left open."""
        self.release(self._kept)
        for assignment in self._begun.values():
            self._owner.assignments.append(
                replace(assignment, time_ns=max(time_ns, assignment.time_ns), begins=False)
            )
        self._begun.clear()

    def flush(self, connection: int) -> bool:
        """Pass on the valid results since the last call; False if any was invalid."""
        if not (self.exchanges or self.assignments or self.opened or self.named):
            return True
        owner, keys = self._owner, self.keys
        sound = True
        for assignment in self.assignments:
            if type(assignment) is ThreadAssignment and fits(assignment) and assignment.exchange in keys:
                owner.assignments.append(assignment)
                if assignment.begins:
                    self._begun[assignment.exchange] = assignment
                else:
                    self._begun.pop(assignment.exchange, None)
            else:
                sound = False
        for opened in self.opened:
            if type(opened) is Opened and fits(opened) and opened.key in keys:
                owner.opened.append(opened)
            else:
                sound = False
        for named in self.named:
            if type(named) is Named and fits(named) and named.key in keys:
                owner.named.append(named)
            else:
                sound = False
        for exchange in self.exchanges:
            known = type(exchange) is Exchange and fits(exchange) and exchange.key in keys
            if known and exchange.connection == connection:
                keys.discard(exchange.key)
                owner.exchanges.append(exchange)
            else:
                sound = False
        self.assignments, self.opened, self.named, self.exchanges = [], [], [], []
        return sound


class IsolatedParser:
    """The :class:`~otelgpu.families.requests.protocol.Parser` of a plug-in's connection."""

    __slots__ = ("_facts", "_now_ns", "_output", "_parser", "_spec", "ignored", "output", "successor")

    def __init__(self, spec: ProtocolSpec, facts: ConnectionFacts, output: ParserOutput) -> None:
        self._spec = spec
        self._facts = facts
        self.output = output
        self.ignored = False
        self.successor: Parser | None = None  # a plug-in's own successor stays inside
        self._output = PluginOutput(output, spec.name)
        self._parser: Parser | None = None
        self._now_ns = 0
        self._run(self._open)

    @property
    def busy(self) -> bool:
        """Whether something is under way that an idle connection would not have."""
        try:
            return self._parser is not None and bool(self._parser.busy)
        except _FAULTS:
            return False

    def feed(self, call: Call, data: bytes, offset: int, *, from_client: bool) -> None:
        """Pass on the next bytes of a direction."""
        self._now_ns = call.end_ns
        self._run(lambda parser: parser.feed(call, data, offset, from_client=from_client))

    def gap(self, call: Call, size: int, offset: int, *, from_client: bool) -> None:
        """Pass on that bytes were not captured."""
        self._now_ns = call.end_ns
        self._run(lambda parser: parser.gap(call, size, offset, from_client=from_client))

    def end(self, call: Call, *, from_client: bool) -> None:
        """Pass on that a direction ended."""
        self._now_ns = call.end_ns
        self._run(lambda parser: parser.end(call, from_client=from_client))

    def close(self, time_ns: int) -> None:
        """Pass on that the process closed it."""
        self._now_ns = time_ns
        self._run(lambda parser: parser.close(time_ns))
        self._leave()

    def abort(self, time_ns: int, error: str) -> None:
        """Pass on that it carries nothing more."""
        self._now_ns = time_ns
        self._run(lambda parser: parser.abort(time_ns, error))
        self._leave()

    def _open(self, _: Parser) -> None:
        self._parser = self._spec.open(self._facts, self._output)

    def _run(self, work: Callable[[Parser], None]) -> None:
        if self.ignored:
            return
        try:
            work(self._parser)  # type: ignore[arg-type]  # _open is the only one that comes without
            parser = self._parser
            while parser is not None and not parser.ignored and parser.successor is not None:
                parser = self._parser = parser.successor
            ignored = parser is None or bool(parser.ignored)
            sound = self._output.flush(self._facts.identity)
        except _FAULTS:
            ignored = sound = False
        if not sound:
            self._fault()
        elif ignored:
            self._leave()

    def _fault(self) -> None:
        counters, name = self.output.counters, f"plugin_{self._spec.name}_faults"
        counters[name] = counters.get(name, 0) + 1
        self._leave()

    def _leave(self) -> None:
        self.ignored = True
        self._parser = None
        self._output.end(self._now_ns)


def fits(value: Any) -> bool:
    """Whether every field of a struct has the type that it promises; numbers and texts within bounds."""
    return all(_fits(getattr(value, name), hint) for name, hint in _hints(value.__class__))


@cache
def _hints(cls: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((name, hints[name]) for name in cls.__struct_fields__)


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if origin is tuple:
        parts = typing.get_args(hint)
        if type(value) is not tuple or len(value) > MAX_ITEMS:
            return False
        if parts[-1] is Ellipsis:
            return all(_fits(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    expected = origin or hint
    if isinstance(expected, type) and issubclass(expected, Enum):
        return isinstance(value, expected)
    if type(value) is not expected:
        return False
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 <= value < _BELOW
    if isinstance(value, (str, bytes)):
        return len(value) <= MAX_TEXT
    return fits(value) if isinstance(value, Struct) else True
