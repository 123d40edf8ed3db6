"""Which exchange an engine's request is: by the ids that both are known by, or not at all. Pure.

In: exchanges as they begin and are named, requests as they are handed to engines. Out: the key of the exchange.

An engine's own id is the one that clients see, or made of it (vLLM: ``v1/engine/input_processor.py``
``assign_request_id``, ``parallel_sampling.py`` ``get_child_info``, ``entrypoints/openai/serving_completion.py``)::

    [<n>_]<id>[-<n>][-<8 letters or digits>]        0_cmpl-ab12-1-9f3c5d7e is cmpl-ab12

Both ends of a connection, and every proxy on the way, know an exchange by the same id. That of the process which
handed the request to the engine is the one; else a server's, if there is one only. The caller's traceparent, which
engines hand on, reports an exchange too. Where this leaves several, nobody is reported.
Bounded: what was used longest ago is forgotten.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Generic, TypeVar

from msgspec import Struct

from otelgpu.model.engine_messages import EngineRequest
from otelgpu.model.exchange import Named, Opened, Published, Role, TraceParent

REMEMBERED: Final = 16_384
"""Exchanges, and requests."""

_MANY: Final = 16  # exchanges of one id, ids of one exchange
_LONGEST: Final = 256  # of an id
_CHILD: Final = re.compile(r"\d{1,6}_")
_RANDOM: Final = re.compile(r"-[0-9A-Za-z]{8}\Z")
_PART: Final = re.compile(r"-\d{1,6}\Z")

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@lru_cache(maxsize=16_384)
def forms(request_id: str) -> tuple[str, ...]:
    """The ids that a request may be known by to clients, each once, its own first."""
    whole = request_id[:_LONGEST]
    children = [whole, _CHILD.sub("", whole, count=1)]
    stems = [stem for child in children for stem in (child, _RANDOM.sub("", child))]
    return tuple(dict.fromkeys(form for stem in stems for form in (stem, _PART.sub("", stem)) if form))


class _Exchange(Struct, frozen=True):
    tgid: int
    role: Role


class _Recent(Generic[_Key, _Value]):
    """Sets of a few values by key, for as long as there is room."""

    def __init__(self) -> None:
        self._sets: OrderedDict[_Key, dict[_Value, None]] = OrderedDict()

    def add(self, key: _Key, value: _Value) -> None:
        values = self._sets.setdefault(key, {})
        if len(values) < _MANY:
            values[value] = None
        self._sets.move_to_end(key)
        if len(self._sets) > REMEMBERED:
            self._sets.popitem(last=False)

    def get(self, key: _Key) -> Iterable[_Value]:
        return tuple(self._sets.get(key, ()))


class RequestIndex:
    """Exchanges by the ids of the requests that they are about, and the other way round."""

    def __init__(self) -> None:
        self._exchanges: OrderedDict[int, _Exchange] = OrderedDict()
        self._named: _Recent[str, int] = _Recent()  # id → keys
        self._names: _Recent[int, str] = _Recent()  # key → ids
        self._continuing: _Recent[tuple[bytes, bytes], int] = _Recent()  # traceparent → keys
        self._requests: OrderedDict[str, EngineRequest] = OrderedDict()
        self._formed: _Recent[str, str] = _Recent()  # form → engines' ids

    def open(self, opened: Opened) -> None:
        """An exchange began."""
        self._know(opened.key, opened.tgid, opened.role)
        if opened.parent is not None:
            self._continuing.add((opened.parent.trace_id, opened.parent.span_id), opened.key)

    def name(self, named: Named) -> None:
        """An exchange is about a request."""
        if named.key not in self._exchanges:
            self._know(named.key, named.tgid, Role.UNKNOWN)
        request_id = named.request_id[:_LONGEST]
        if request_id:
            self._named.add(request_id, named.key)
            self._names.add(named.key, request_id)

    def _know(self, key: int, tgid: int, role: Role) -> None:
        self._exchanges[key] = _Exchange(tgid, role)
        if len(self._exchanges) > REMEMBERED:
            self._exchanges.popitem(last=False)

    def see(self, request_id: str) -> None:
        """An engine spoke of a request."""
        for form in forms(request_id):
            self._formed.add(form, request_id)

    def hand_over(self, request: EngineRequest) -> None:
        """A request was handed to an engine; what its sender said of it counts for more than its receiver."""
        self.see(request.request_id)
        known = self._requests.get(request.request_id)
        if known is None or request.sent or not known.sent:
            self._requests[request.request_id] = request
        if len(self._requests) > REMEMBERED:
            self._requests.popitem(last=False)

    def exchange_of(self, request_id: str) -> int:
        """The key of the exchange that an engine's request is about; 0 where it is not known, or not the only one."""
        found = {key for form in forms(request_id) for key in self._named.get(form)}
        request = self._requests.get(request_id)
        if request is not None and request.parent is not None and not found:
            found.update(self._continuing.get((request.parent.trace_id, request.parent.span_id)))
        if not found:
            return 0
        return self._only(found, request.tgid if request is not None and request.sent else 0)

    def _only(self, found: Iterable[int], sender: int) -> int:
        known = {key: self._exchanges[key] for key in found if key in self._exchanges}
        servers = {key: each for key, each in known.items() if each.role is not Role.CLIENT}
        own = [key for key, each in servers.items() if sender and each.tgid == sender]
        chosen = own or list(servers)
        return chosen[0] if len(chosen) == 1 else 0

    def requests_of(self, key: int, *, also: Iterable[str] = ()) -> list[str]:
        """The engines' ids of an exchange, that are about no other; ``also``: ids that it is known by."""
        names = dict.fromkeys([*self._names.get(key), *(each[:_LONGEST] for each in also if each)])
        ids = dict.fromkeys(found for name in names for found in self._formed.get(name))
        return [each for each in ids if self.exchange_of(each) == key]

    def context_of(self, request_id: str) -> Published | TraceParent | None:
        """The context that a request was handed to an engine under: the sender's own, or its caller's."""
        request = self._requests.get(request_id)
        return None if request is None else request.published or request.parent
