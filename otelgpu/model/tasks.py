"""Tasks: what a runtime runs on a thread now, where it keeps several there (a goroutine, an asyncio task's context)."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

_READER_SHIFT: Final = 31
_STREAM: Final = 1 << 63
_READERS: Final = _STREAM >> _READER_SHIFT


class Asked(NamedTuple):
    """When a task had another one write a request, and when it had been given the context under which it did.

    The request that it worked for is the one that holds both times. CLOCK_MONOTONIC ns.
    """

    at_ns: int
    since_ns: int


class TaskService(Struct, frozen=True, kw_only=True, gc=False):
    """What is known of the task that serves a request: told when its head is read, and when it is over.

    A task is named by 64 bits of its process, never 0, which may name another one once it has ended.
    Times: CLOCK_MONOTONIC ns.
    """

    exchange: int  # Exchange.key
    tgid: int
    begin_ns: int  # the read of the end of its head returned; of a pipelined one: the former's response ended
    is_over: bool = False  # nothing more will be learnt of it
    task: int = 0  # wrote the first bytes of the response; 0: not known
    connection: int = 0  # Exchange.connection
    is_read_by_task: bool = (
        False  # the same task read the end of the head: it was done with the former's work
    )
    is_framed: bool = False  # of a stream of HTTP/2, of which another's thread may write frames with its own
    end_ns: int = 0  # the last write of that task returned of which it is known that it is of this response


def stream_task(reader: int, stream: int) -> int:
    """The task that does what a handler of Go does for a stream of HTTP/2: ``enum go_stream_task`` of bpf/http/http.h.

    In: the goroutine that reads the connection's frames, the stream's number. 0: there is no such task.
    """
    return _STREAM | reader << _READER_SHIFT | stream if 0 < reader < _READERS and stream > 0 else 0
