"""The child's side: one process that forks workers, because the agent soon has threads and much memory, and workers.

The first is made before that and reads nothing of anybody's; each worker answers over one socket until that ends.
"""

from __future__ import annotations

import gc
import logging
import os
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
from otelgpu.kernel.privileges.capabilities import Need
from otelgpu.kernel.privileges.confinement import confine, keep_only
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
_IMPORTED_WHEN_NEEDED: Final = ("numpy.ma",)  # by numpy.unique and what is made of it


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


def start(confinement: Confinement) -> tuple[int, socket.socket]:
    """The process that forks workers: its number, and the socket that it takes requests from."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gc.freeze()  # what is there is shared with the child until somebody counts references in it
    child = os.fork()
    if child:
        theirs.close()
        return child, ours
    try:
        gc.enable()
        os.setsid()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps workers
        signal.signal(signal.SIGBUS, signal.SIG_DFL)  # a file that is cut off is the worker's end
        close_all_but({_STANDARD_ERROR, theirs.fileno()})
        logging.disable(logging.WARNING)  # what is given up here is no news of the session
        for module in (*_IMPORTED_WHEN_NEEDED, *confinement.modules):
            with suppress(ImportError):
                import_module(module)
        keep_only(confinement.needs)
        _fork_workers(theirs, confinement)
    finally:
        os._exit(0)


def _fork_workers(requests: socket.socket, confinement: Confinement) -> None:
    """A socket comes; a worker is made that answers on it, and its pidfd goes back."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, 16, 1)
        if not data:
            return
        child = os.fork()
        if child == 0:
            connection = socket.socket(fileno=descriptors[0])
            try:
                close_all_but({_STANDARD_ERROR, descriptors[0]})
                _work(connection, confinement)
            finally:
                os._exit(1)
        os.close(descriptors[0])
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(child)
            socket.send_fds(requests, [str(child).encode()], [pidfd])
            os.close(pidfd)
            continue
        requests.send(b"0")


def _work(connection: socket.socket, confinement: Confinement) -> NoReturn:
    confine(
        memory_bytes=confinement.memory_bytes,
        seconds=confinement.cpu_seconds,
        descriptors=confinement.descriptors,
    )
    connection.sendall(b"\0")  # it is shut in: questions may come
    while True:
        try:
            data, descriptors = receive(connection)
        except (EOFError, MessageError, OSError):
            os._exit(0)
        _answer(connection, data, descriptors)


def _answer(connection: socket.socket, data: bytes, descriptors: list[int]) -> None:
    began = time.process_time()
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
