"""Communicators: groups of ranks that call collectives together. What a process's agent learns of one."""

from __future__ import annotations

from msgspec import Struct


class CommunicatorSeen(Struct, frozen=True, kw_only=True):
    """What a call reported of a communicator of process ``tgid`` at ``time_ns``; it replaces what was reported before.

    ``hash`` is the same on all ranks, 0 where it is not known; ``rank``, ``ranks`` and ``device`` are -1 then.
    ``parent``: address of the communicator that it was split, shrunk or grown from; 0 for none.
    ``created``: it was made under the agent's eyes, so that its counts begin at 0. ``ended``: it was destroyed
    or aborted, and its address may become another's. ``async_error``: the library's result code, 0 for none.
    """

    tgid: int
    time_ns: int
    address: int
    hash: int
    rank: int
    ranks: int
    device: int = -1
    parent: int = 0
    created: bool = False
    ended: bool = False
    async_error: int = 0
    duration_ns: int = 0  # how long the call took that made it, until time_ns; 0: another call reports


def hash_text(code: int) -> str:
    """``nccl.communicator.hash``; 0 is that of a communicator that could not be read."""
    return f"{code:016x}" if code else "unknown"
