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

from otelgpu.model.engine_messages import EngineRequest
from otelgpu.model.exchange import Named, Opened, Published, Role, TraceParent

REMEMBERED: Final = 16_384
"""Requests, and exchanges at most; of these half as many at least."""

_MANY: Final = 16  # exchanges of one id, ids of one exchange
_LONGEST: Final = 256  # of an id
_CHILD: Final = re.compile(r"\d{1,6}_")
_RANDOM: Final = re.compile(r"-[0-9A-Za-z]{8}\Z")
_PART: Final = re.compile(r"-\d{1,6}\Z")

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@lru_cache(maxsize=4096)  # of the requests that are under way
def forms(request_id: str) -> tuple[str, ...]:
    """The ids that a request may be known by to clients, each once, its own first."""
    whole = request_id[:_LONGEST]
    children = [whole, _CHILD.sub("", whole, count=1)]
    stems = [stem for child in children for stem in (child, _RANDOM.sub("", child))]
    return tuple(dict.fromkeys(form for stem in stems for form in (stem, _PART.sub("", stem)) if form))


class _Exchanges:
    """Of the last exchanges: of which process each is, and whether at a client. Numbers in two halves, the newer first.

    The older half is forgotten as a whole when the newer one is full: of every exchange of a node no more is kept than
    two numbers, for most are about no request of an engine's.
    """

    def __init__(self) -> None:
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._newer or key in self._older

    def add(self, key: int, tgid: int, role: Role) -> None:
        self._newer[key] = tgid << 1 | (role is Role.CLIENT)
        if len(self._newer) >= REMEMBERED // 2:
            self._older, self._newer = self._newer, {}

    def not_of_clients(self, keys: Iterable[int]) -> dict[int, int]:
        """Those of the keys that are known, with the processes' numbers."""
        known = {key: self._newer.get(key, self._older.get(key)) for key in keys}
        return {key: each >> 1 for key, each in known.items() if each is not None and not each & 1}


class _Recent(Generic[_Key, _Value]):
    """A few different values by key, for as long as there is room."""

    def __init__(self) -> None:
        self._values: OrderedDict[_Key, tuple[_Value, ...]] = OrderedDict()

    def add(self, key: _Key, value: _Value) -> None:
        values = self._values.pop(key, ())
        self._values[key] = values if value in values or len(values) == _MANY else (*values, value)
        if len(self._values) > REMEMBERED:
            self._values.popitem(last=False)

    def get(self, key: _Key) -> tuple[_Value, ...]:
        return self._values.get(key, ())


class RequestIndex:
    """Exchanges by the ids of the requests that they are about, and the other way round."""

    def __init__(self) -> None:
        self._exchanges = _Exchanges()
        self._named: _Recent[str, int] = _Recent()  # id → keys
        self._names: _Recent[int, str] = _Recent()  # key → ids
        self._continuing: _Recent[tuple[bytes, bytes], int] = _Recent()  # traceparent → keys
        self._requests: OrderedDict[str, EngineRequest] = OrderedDict()
        self._formed: _Recent[str, str] = _Recent()  # form → engines' ids

    def open(self, opened: Opened) -> None:
        """An exchange began."""
        self._exchanges.add(opened.key, opened.tgid, opened.role)
        if opened.parent is not None:
            self._continuing.add((opened.parent.trace_id, opened.parent.span_id), opened.key)

    def name(self, named: Named) -> None:
        """An exchange is about a request."""
        if named.key not in self._exchanges:
            self._exchanges.add(named.key, named.tgid, Role.UNKNOWN)
        request_id = named.request_id[:_LONGEST]
        if request_id:
            self._named.add(request_id, named.key)
            self._names.add(named.key, request_id)

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
        servers = self._exchanges.not_of_clients(found)
        own = [key for key, tgid in servers.items() if sender and tgid == sender]
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
