"""Asks workers, for so long and no longer, and on somebody's account.

Whose bytes are read pays for it: each owner (a cgroup and user) has a share of a processor, with some in advance. Who
has spent it is refused until it has filled again, which others do not notice.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
from msgspec import Struct, structs

from otelgpu.kernel.readable import is_readable
from otelgpu.model.losses import Reasons
from otelgpu.processes.reader import pace
from otelgpu.processes.reader.accounts import Accounts, Owner
from otelgpu.processes.reader.forker import Forker
from otelgpu.processes.reader.messages import (
    Answered,
    Asked,
    MessageError,
    answer_type,
    decode,
    encode,
    raised_by,
    receive,
    send,
)
from otelgpu.processes.reader.server import FORKED_BYTES, Confinement

P = ParamSpec("P")
R = TypeVar("R")

REASONS: Final = Reasons(
    "reader",
    {
        "worker_died": "reading what a process wrote ended the worker that did it (a file that shrank, memory without "
        "end): that question has no answer",
        "worker_timed_out": "reading what a process wrote took too long, or waited for a file system that does not "
        "answer: that question has no answer",
        "worker_not_started": "no worker could be started: what was asked has no answer",
        "owner_over_budget": "a container's or user's files have cost their share of time: what was asked about them "
        "has no answer for now",
        "owner_holds_worker": "a worker is still held by a container's or user's file system: what was asked about "
        "their files has no answer for now",
    },
)
"""What one count of (``reader``, reason) means."""

_log = logging.getLogger("otelgpu.processes.reader")

_AT_ONCE_S: Final = 0.001
"""An answer that comes so soon is charged by the clock; of others it is looked up what they waited for."""


class ReaderError(OSError):
    """No answer: the worker died, took too long, or is refused to this owner. ``reason`` is one of REASONS."""

    def __init__(self, reason: str, about: str) -> None:
        super().__init__(f"{about}: {REASONS[reason]}")
        self.reason = reason


class Limits(Struct, frozen=True, kw_only=True):
    """Seconds, of a machine of usual pace.

    ``busy_s``: of one question, without the time that it waited for a processor; ``wall_s``: with it.
    ``share``: of a processor that an owner may take in the long run, ``advance_s`` what it has at first;
    ``failure_s``: for how long nothing is read for it after a question that ended its worker, ``end_s``: for how long
    that is seen to its end.
    """

    busy_s: float = 0.5
    wall_s: float = 5.0
    share: float = 0.1
    advance_s: float = 5.0
    failure_s: float = 0.0
    start_s: float = 5.0
    end_s: float = 0.3

    def at_pace(self, slowness: float) -> Limits:
        """The same for a machine that is so many times slower; an owner's share of it is the same."""
        if slowness == 1.0:
            return self
        return Limits(
            busy_s=self.busy_s * slowness,
            wall_s=self.wall_s * slowness,
            share=self.share,
            advance_s=self.advance_s * slowness,
            failure_s=self.failure_s * slowness,
            start_s=self.start_s * slowness,
            end_s=self.end_s * slowness,
        )


class Reader:
    """Workers, one at a time; made anew when one is gone. For one thread.

    ``forker``: who forks them, for others too; without, one of its own, and it is to be made before threads are.
    ``counters``: those of :data:`REASONS`. ``accounts``: what each owner has left. ``slowness``: of this machine,
    :func:`~.pace.slowness` where it is not given.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        confinement: Confinement | None = None,
        *,
        forker: Forker | None = None,
        slowness: float | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._slowness = pace.slowness() if slowness is None else slowness
        self._limits = (limits or Limits()).at_pace(self._slowness)
        confinement = confinement or Confinement()
        cpu_seconds = math.ceil(confinement.cpu_seconds * self._slowness)
        confinement = structs.replace(confinement, cpu_seconds=cpu_seconds)
        self._worker_s = confinement.cpu_seconds / 2
        used = forker or Forker(confinement.needs, confinement.modules)
        self._own = used if forker is None else None
        self._requests = used.connect(confinement)
        self._requests.settimeout(self._limits.start_s)
        self._worker: _Worker | None = None
        self._asked = 0
        self.accounts = Accounts(share=self._limits.share, advance_s=self._limits.advance_s)
        self._held: dict[Owner, list[_Worker]] = {}

    def ask(self, owner: Owner, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What ``function``, a :func:`~.messages.question`, answers. ``kwargs`` must be empty.

        Raises :class:`ReaderError`, and what the function does.
        """
        return self._ask(self._limits, owner, function, *args, **kwargs)

    def ask_within(
        self, limits: Limits, owner: Owner, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """The same with other bounds of time and another pause after a failure; an owner's share is what it is."""
        return self._ask(limits.at_pace(self._slowness), owner, function, *args, **kwargs)

    def _ask(
        self, limits: Limits, owner: Owner, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        assert not kwargs, "questions have positional arguments"
        raises = raised_by(function)
        data, descriptors = encode(args)
        asked = Asked(function.__module__, function.__name__, msgspec.Raw(data))
        account = self.accounts.of(owner)
        if self._holds_worker(owner):
            raise self._failed("owner_holds_worker", function)
        if account.is_spent():
            raise self._failed("owner_over_budget", function)
        worker, answered, received = self._answered(owner, function, encode(asked)[0], descriptors, limits)
        busy_s = worker.busy_s()
        account.spend(busy_s)
        worker.taken_s += max(busy_s, answered.seconds)
        if worker.taken_s > self._worker_s:  # before the kernel ends it in the middle of a question
            self._retire(worker)
        if answered.failed is not None:
            _close(received)
            failed = answered.failed
            if failed.name == "OSError":
                raise OSError(failed.number, failed.message)
            for each in raises:
                if each.__name__ == failed.name:
                    raise each(failed.message)
            _log.warning("%s failed in its worker: %s: %s", function.__name__, failed.name, failed.message)
            raise self._failed("worker_died", function)
        try:
            answer: R = decode(answered.value, answer_type(function), received)
        except MessageError as error:
            _close(received)
            self._end(worker, owner, limits)
            raise self._failed("worker_died", function) from error
        return answer

    def _answered(
        self,
        owner: Owner,
        function: Callable[..., object],
        question: bytes,
        descriptors: list[int],
        limits: Limits,
    ) -> tuple[_Worker, Answered, list[int]]:
        """Who answered, what, and the descriptors with it."""
        may_have_left = self._worker is not None
        while True:
            worker = self._worker = self._worker or self._start(function)
            try:
                return worker, *worker.ask(question, descriptors, limits)
            except (EOFError, OSError, MessageError) as error:
                if may_have_left and isinstance(error, (BrokenPipeError, ConnectionResetError)):
                    may_have_left = False  # before it read this, as it was asked nothing for long
                    self._retire(worker)
                    continue
                self._end(worker, owner, limits)
                is_late = isinstance(error, TimeoutError)
                raise self._failed("worker_timed_out" if is_late else "worker_died", function) from error

    def _retire(self, worker: _Worker) -> None:
        """The next question has another."""
        self._worker = None
        worker.end(self._limits.end_s)

    def close(self) -> None:
        """End all of them; idempotent."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
        self._requests.close()
        if self._own is not None:
            self._own.close()

    def _start(self, function: Callable[..., object]) -> _Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._asked += 1
            socket.send_fds(self._requests, [str(self._asked).encode()], [theirs.fileno()])
            worker = _Worker(*self._forked(), ours)
        except OSError as error:
            ours.close()
            raise self._failed("worker_not_started", function) from error
        finally:
            theirs.close()
        try:
            worker.wait_until_ready(self._limits.start_s)
        except OSError as error:
            worker.end()
            raise self._failed("worker_not_started", function) from error
        return worker

    def _forked(self) -> tuple[int, int]:
        """A worker's number and pidfd, as asked last: who was asked before, and waited for in vain, may come yet."""
        while True:
            answer, descriptors, _, _ = socket.recv_fds(self._requests, FORKED_BYTES, 1)
            asked, number = map(int, answer.split() or (b"0", b"0"))
            if asked == self._asked and descriptors:
                return number, descriptors[0]
            _close(descriptors)
            if asked in (0, self._asked):
                raise OSError("a worker ended at once")

    def _end(self, worker: _Worker, owner: Owner, limits: Limits) -> None:
        self._worker = None
        account = self.accounts.of(owner)
        account.spend(max(worker.busy_s(), limits.busy_s))
        if limits.failure_s:
            account.stop(limits.failure_s)
        if not worker.end(limits.end_s):
            self._held.setdefault(owner, []).append(worker)

    def _holds_worker(self, owner: Owner) -> bool:
        """Whether a worker that was ended for this owner has not gone yet."""
        held = [each for each in self._held.pop(owner, ()) if not each.has_ended()]
        if held:
            self._held[owner] = held
        return bool(held)

    def _failed(self, reason: str, function: Callable[..., object]) -> ReaderError:
        self.counters[reason] += 1
        return ReaderError(reason, function.__name__)


class _Worker:
    """One of them, as the agent sees it."""

    def __init__(self, number: int, pidfd: int, connection: socket.socket) -> None:
        self._number, self._pidfd, self._connection = number, pidfd, connection
        self.taken_s = 0.0
        self._began_s = 0.0
        self._before_s: tuple[float, float] | None = None

    def wait_until_ready(self, seconds: float) -> None:
        self._connection.settimeout(seconds)
        if self._connection.recv(1) != b"\0":
            raise ConnectionError("a worker ended before it was shut in")
        self._connection.settimeout(None)

    def ask(self, data: bytes, descriptors: list[int], limits: Limits) -> tuple[Answered, list[int]]:
        """Raises TimeoutError, EOFError, OSError, :class:`MessageError`."""
        self._began_s, self._before_s = time.monotonic(), None
        bounded = _Bounded(self._connection, lambda: self._wait(limits))
        self._connection.settimeout(limits.wall_s)
        send(self._connection, data, descriptors)
        answer, received = receive(bounded)
        try:
            return decode(answer, Answered), received
        except MessageError:
            _close(received)
            raise

    def busy_s(self) -> float:
        """How long the last question has kept it, without what it waited for a processor."""
        if self._before_s is None:
            return time.monotonic() - self._began_s
        is_runnable = self._is_runnable()
        ran_s, waited_s = self._scheduled_s() or self._before_s
        if is_runnable:  # what it waits at this moment is counted when it is over
            return ran_s - self._before_s[0]
        return max(time.monotonic() - self._began_s - (waited_s - self._before_s[1]), 0.0)

    def end(self, wait_s: float = 0.0) -> bool:
        """Kill it; whether it has gone, for which this waits so long. Idempotent."""
        self._connection.close()
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        return self.has_ended(wait_s)

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Whether it has gone; the last time that it is asked of it, then."""
        if self._pidfd < 0:
            return True
        if not is_readable(self._pidfd, wait_s):
            return False
        os.close(self._pidfd)
        self._pidfd = -1
        return True

    def _wait(self, limits: Limits) -> None:
        """Until there is something to receive. Raises TimeoutError."""
        if is_readable(self._connection, _AT_ONCE_S):
            return
        self._before_s = self._before_s or self._scheduled_s()
        wait_s = limits.busy_s
        while not is_readable(self._connection, wait_s):
            wall_left_s = limits.wall_s - (time.monotonic() - self._began_s)
            left_s = min(limits.busy_s - self.busy_s(), wall_left_s)
            is_late = left_s <= 0
            wait_s = max(left_s, 0.005)
            if is_late and not is_readable(self._connection):  # it may be us who came late
                raise TimeoutError

    def _scheduled_s(self) -> tuple[float, float] | None:
        """Since it began: on a processor, and waiting for one (Documentation/scheduler/sched-stats.rst).

        A wait that is not over yet is in neither. None: it is gone.
        """
        try:
            with open(f"/proc/{self._number}/schedstat", "rb", buffering=0) as file:
                ran, waited = file.read(128).split()[:2]
                return int(ran) * 1e-9, int(waited) * 1e-9
        except (OSError, ValueError):
            return None

    def _is_runnable(self) -> bool:
        """Whether it runs, or waits for nothing but a processor."""
        try:
            with open(f"/proc/{self._number}/stat", "rb", buffering=0) as file:
                return file.read(512).rpartition(b")")[2].split()[0] == b"R"
        except (OSError, IndexError):
            return False


class _Bounded:
    """A socket that waits only as long as it may."""

    def __init__(self, connection: socket.socket, wait: Callable[[], None]) -> None:
        self._connection, self._wait = connection, wait

    def recv(self, size: int) -> bytes:
        self._wait()
        return self._connection.recv(size)

    def recvmsg(self, size: int, room: int, flags: int) -> tuple[bytes, list[Any], int, Any]:
        self._wait()
        return self._connection.recvmsg(size, room, flags)


def _close(descriptors: list[int]) -> None:
    for each in descriptors:
        with suppress(OSError):
            os.close(each)
