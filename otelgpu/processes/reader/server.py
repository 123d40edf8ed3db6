"""The children's side: a process that forks workers, because the agent soon has threads and much memory, and workers.

The first is made before that and reads nothing of anybody's; each worker answers over one socket until that ends.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Final, NoReturn

import msgspec
from msgspec import Struct

from otelgpu.kernel.descriptors import close_all_but
from otelgpu.kernel.heap import give_back
from otelgpu.kernel.privileges.capabilities import Need
from otelgpu.kernel.privileges.confinement import confine, keep_only
from otelgpu.kernel.quiet_imports import spare_masked_arrays
from otelgpu.kernel.readable import is_readable
from otelgpu.kernel.stop_guard import Watch
from otelgpu.processes.reader.messages import (
    Answered,
    Asked,
    Failed,
    MessageError,
    argument_types,
    decode,
    encode,
    function_of,
    receive,
    send,
)

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_STANDARD_ERROR: Final = 2
_MESSAGE_CHARACTERS: Final = 500
_TOLD_BYTES: Final = 4096
FORKED_BYTES: Final = 48
"""At most, of what a reader asks with (a number of its own) and is answered (that and the worker's number)."""
_TOLD_WITHIN_S: Final = 1.0
"""How long who forks has all privileges at least, to import what it is told of."""
_AT_REST_S: Final = 1.0
"""Who was asked nothing for so long gives memory back: for some milliseconds, in which a question would wait."""
_ENDS_AFTER_S: Final = 10.0
"""Who was asked nothing for so long more ends, and gives back all: 8 to 15 MiB, where forking takes milliseconds."""


class Confinement(Struct, frozen=True, kw_only=True):
    """What a worker has for all that it is asked in its life. ``memory_bytes``: beyond what the fork gave it.

    ``needs``: of the agent's privileges, what both the workers and who forks them keep. ``modules``: imported by who
    forks them, since workers open nothing; where one is not installed, they are without it.
    """

    needs: tuple[Need, ...] = ()
    modules: tuple[str, ...] = ()
    memory_bytes: int = 256 << 20
    cpu_seconds: int = 60
    descriptors: int = 64


class Told(Struct, array_like=True, frozen=True):
    """What the agent tells who forks workers: of a reader, with the socket that it asks at, or only of modules.

    With ``grace_s`` the two descriptors are those of a :class:`~otelgpu.kernel.stop_guard.Watch`.
    """

    modules: tuple[str, ...] = ()
    memory_bytes: int = 0
    cpu_seconds: int = 0
    descriptors: int = 0
    grace_s: float = 0.0


def start(needs: tuple[Need, ...], modules: tuple[str, ...]) -> tuple[int, socket.socket]:
    """The process that forks workers: its number, and the socket on which it is :class:`Told`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gc.freeze()  # what is there is shared with the child until somebody counts references in it
    child = os.fork()
    if child:
        theirs.close()
        return child, ours
    try:
        gc.disable()  # what it has stays; workers collect
        os.setsid()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps workers
        signal.signal(signal.SIGBUS, signal.SIG_DFL)  # a file that is cut off is the worker's end
        close_all_but({_STANDARD_ERROR, theirs.fileno()})
        spare_masked_arrays()
        logging.disable(logging.WARNING)  # what is given up here is no news of the session
        _Forking(theirs, needs, modules).serve()
    finally:
        os._exit(0)


class _Forking:
    """In the process that forks: it does what it is told, and imports meanwhile.

    What it is told of later has time until its privileges end, when the agent has started, or until a worker needs it.
    A socket comes from a reader; a worker is made that answers on it, and its pidfd goes back. The worker waits for the
    modules of its own reader, and for no others. It has nothing to hang in, so it watches over the agent's end, too.
    """

    def __init__(self, control: socket.socket, needs: tuple[Need, ...], modules: tuple[str, ...]) -> None:
        self._control, self._needs = control, needs
        self._readers: dict[int, tuple[socket.socket, Told]] = {}  # by descriptor
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._waiting = dict.fromkeys(modules, 0.0)  # modules, and from when on
        self._watch: Watch | None = None
        self._keeps_all_until_s: float | None = time.monotonic() + _TOLD_WITHIN_S

    def serve(self) -> None:
        """Until the agent has closed all that it has of this."""
        while True:
            ready = [descriptor for descriptor, _ in self._poll.poll(self._wait_ms())]
            if self._control.fileno() in ready and not self._told():
                return
            for each in ready:
                if each in self._readers and not self._fork_for(*self._readers[each]):
                    self._poll.unregister(each)
                    self._readers.pop(each)[0].close()
            self._watch_over(ready)
            if not ready:
                now_s = time.monotonic()
                self._import(next((name for name, from_s in self._waiting.items() if from_s <= now_s), ""))
                self._give_up()

    def _wait_ms(self) -> float | None:
        due_s = [*self._waiting.values()]
        due_s += [] if self._keeps_all_until_s is None else [self._keeps_all_until_s]
        lefts = [max(each - time.monotonic(), 0) for each in due_s]
        lefts += [left] if self._watch and (left := self._watch.left_s()) is not None else []
        return min(lefts) * 1e3 if lefts else None

    def _watch_over(self, ready: list[int]) -> None:
        if (watch := self._watch) is None:
            return
        if watch.pipe in ready and not watch.read():
            self._poll.unregister(watch.pipe)
            watch.close()
            self._watch = None
        else:
            watch.kill_if_late()

    def _give_up(self) -> None:
        """Of the privileges what is not to be kept, when there is nothing to import with them."""
        until_s = self._keeps_all_until_s
        if until_s is not None and not self._waiting and time.monotonic() >= until_s:
            self._keeps_all_until_s = None
            keep_only(self._needs)

    def _import(self, module: str) -> None:
        if module in self._waiting:
            del self._waiting[module]
            with suppress(ImportError):
                import_module(module)
            gc.freeze()  # for workers, as above

    def _told(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, _TOLD_BYTES, 2)
        if not data:
            return False
        told = msgspec.msgpack.decode(data, type=Told)
        for module in told.modules:
            self._waiting.setdefault(module, self._keeps_all_until_s or 0.0)
        if told.grace_s:
            watched, pipe = descriptors
            self._watch = Watch(watched, pipe, told.grace_s)
            self._poll.register(self._watch.pipe, select.POLLIN)
            return True
        for each in descriptors:
            self._readers[each] = socket.socket(fileno=each), told
            self._poll.register(each, select.POLLIN)
        return True

    def _fork_for(self, reader: socket.socket, told: Told) -> bool:
        asked, descriptors, _, _ = socket.recv_fds(reader, FORKED_BYTES, 1)
        if not asked or not descriptors:
            return False
        for module in told.modules:
            self._import(module)
        try:
            child = os.fork()
            if child == 0:
                self._be_worker(descriptors[0], told)
            pidfd = os.pidfd_open(child)
        except OSError:  # there can be no more processes, or it has ended already
            child, sent = 0, []
        else:
            sent = [pidfd]
        try:
            socket.send_fds(reader, [b"%s %d" % (asked, child)], sent)
        except OSError:  # who asked is gone; others may ask
            return False
        finally:
            for each in (*descriptors, *sent):
                os.close(each)
        return True

    def _be_worker(self, descriptor: int, told: Told) -> NoReturn:
        try:
            connection = socket.socket(fileno=descriptor)
            gc.enable()
            close_all_but({_STANDARD_ERROR, descriptor})
            if self._keeps_all_until_s is not None:
                keep_only(self._needs)
            _work(connection, told)
        finally:
            os._exit(1)


def _work(connection: socket.socket, told: Told) -> NoReturn:
    confine(
        memory_bytes=told.memory_bytes,
        seconds=told.cpu_seconds,
        descriptors=told.descriptors,
    )
    connection.sendall(b"\0")  # it is shut in: questions may come
    began = time.process_time()
    while True:
        if not is_readable(connection, _AT_REST_S):
            gc.collect()
            give_back()  # what the answers took
            if not is_readable(connection, _ENDS_AFTER_S):
                os._exit(0)  # what comes now was not received, and who sent it is told so
        try:
            data, descriptors = receive(connection)
        except (EOFError, MessageError, OSError):
            os._exit(0)
        _answer(connection, data, descriptors, began)
        began = time.process_time()


def _answer(connection: socket.socket, data: bytes, descriptors: list[int], began: float) -> None:
    """``began``: how much of a processor this process had had at the end of its last answer."""
    sent: list[int] = []
    try:
        asked: Asked = decode(data, Asked)
        function = function_of(asked)
        arguments = decode(asked.arguments, argument_types(function), descriptors)
        value, sent = _call(function, arguments)
        answer = Answered(time.process_time() - began, value=value)
    except MemoryError:
        os._exit(1)
    except Exception as error:
        answer = Answered(time.process_time() - began, failed=_failure(error))
    try:
        send(connection, encode(answer)[0], sent)
    finally:
        for each in (*sent, *descriptors):
            with suppress(OSError):
                os.close(each)


def _call(function: Callable[..., object], arguments: Iterable[object]) -> tuple[msgspec.Raw, list[int]]:
    data, sent = encode(function(*arguments))
    return msgspec.Raw(data), sent


def _failure(error: Exception) -> Failed:
    number = error.errno or 0 if isinstance(error, OSError) else 0
    name = "OSError" if isinstance(error, OSError) else type(error).__name__
    return Failed(name, number, str(error)[:_MESSAGE_CHARACTERS])
