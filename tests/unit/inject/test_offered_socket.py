"""Which descriptor of another process is taken for a socket that it made for us."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from otelgpu.kernel.offered_socket import NotOffered, check_may_take, take_socket


@contextmanager
def child(offer: Callable[[], int]) -> Iterator[tuple[int, int]]:
    """(pid, number) of a process that has made a descriptor, which stays until it is closed."""
    says, said = os.pipe()
    waits, go = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(go)
        os.write(said, str(offer()).encode())
        os.read(waits, 1)
        os._exit(0)
    try:
        yield pid, int(os.read(says, 16))
    finally:
        for descriptor in (says, said, waits, go):
            os.close(descriptor)
        os.waitpid(pid, 0)


def pair() -> int:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.send(b"hello")
    own.detach()
    return other.detach()


def test_half_of_a_pair_that_the_process_made_is_taken_and_does_not_wait() -> None:
    with child(pair) as (pid, number), take_socket(pid, number) as taken:
        assert taken.recv(16) == b"hello"
        with pytest.raises(BlockingIOError):
            taken.recv(16)


def test_whether_anything_may_be_taken_is_known_before_it_is_offered() -> None:
    with child(pair) as (pid, _):
        check_may_take(pid)
    with pytest.raises(OSError) as error:
        check_may_take(pid)  # it has ended
    assert error.value.errno == errno.ESRCH


def test_what_is_no_socket_or_not_its_own_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with child(lambda: os.memfd_create("file")) as (pid, number):
            with pytest.raises(NotOffered, match="no socket"):
                take_socket(pid, number)
            with pytest.raises(NotOffered, match="another's"):
                take_socket(pid, theirs.fileno())
        with child(lambda: socket.socket().detach()) as (pid, number), pytest.raises(NotOffered):
            take_socket(pid, number)
        with child(lambda: 1000) as (pid, number), pytest.raises(OSError) as error:
            take_socket(pid, number)
        assert error.value.errno == errno.EBADF
    assert os.listdir("/proc/self/fd") == before
