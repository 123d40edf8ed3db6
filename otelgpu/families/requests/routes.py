"""Request paths become routes: of low cardinality, whatever clients send. Pure.

In: the paths that a process is asked for. Out: a template of each. Segments that look like identifiers are ``*`` at
once; those that turn out to vary (more than :data:`CHILDREN` below one node) are ``*`` from then on. What a process
is asked for beyond :data:`NODES` nodes is ``/*``: the number of its routes is bounded.

Example: ``/v1/users/42/files`` → ``/v1/users/*/files`` at once; ``/wiki/Otter``, ``/wiki/Beaver`` … are routes of
their own until the 33rd, which is ``/wiki/*`` as are all after it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from msgspec import Struct, field

CHILDREN: Final = 32
NODES: Final = 512
_DEPTH: Final = 4
_LONGEST: Final = 24
_HAS_DIGIT: Final = re.compile(r"\d").search
_VERSION: Final = re.compile(r"v\d{1,2}").fullmatch


@lru_cache(maxsize=4096)
def template(path: str) -> str:
    """A path with what looks like an identifier replaced by ``*``, cut after four segments.

    ``/v1/users/42/files`` → ``/v1/users/*/files``.
    """
    segments = path.split("/")[1:]
    kept = ["*" if len(s) > _LONGEST or (_HAS_DIGIT(s) and not _VERSION(s)) else s for s in segments[:_DEPTH]]
    return "/" + "/".join(kept) + ("/*" if len(segments) > _DEPTH else "")


class _Node(Struct):
    children: dict[str, _Node] = field(default_factory=dict)
    varies: bool = False


class _Process(Struct):
    root: _Node = field(default_factory=_Node)
    nodes: int = 0
    known: dict[str, str] = field(default_factory=dict)  # template → route, until a node turns out to vary


class Routes:
    """The routes of a session's processes."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}

    def route(self, tgid: int, path: str) -> str:
        """The route of a path that a process is asked for."""
        process = self._processes.get(tgid)
        if process is None:
            process = self._processes[tgid] = _Process()
        wanted = template(path)
        known = process.known.get(wanted)
        if known is None:
            known = self._find(process, wanted)
            if len(process.known) < NODES:
                process.known[wanted] = known
        return known

    def _find(self, process: _Process, wanted: str) -> str:
        node = process.root
        found: list[str] = []
        for segment in wanted[1:].split("/"):
            name = "*" if node.varies else segment
            below = node.children.get(name)
            if below is None:
                if process.nodes >= NODES:
                    return "/".join(["", *found, "*"])
                if name != "*" and len(node.children) >= CHILDREN:
                    node.varies, name = True, "*"
                    process.known.clear()
                below = node.children.setdefault(name, _Node())
                process.nodes += 1
            found.append(name)
            node = below
        return "/" + "/".join(found)

    def forget(self, tgid: int) -> None:
        """A process ended."""
        self._processes.pop(tgid, None)
