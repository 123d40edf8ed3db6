"""The sequence: refuse, hold a thread at a safe point, have it start one that loads the library, put all back.

In: a process, a library's file, the function in it to call and what that is given. Out: its answer. What is left behind
is what the library does; memory of ours is unmapped again.

The process need not see the file, nor a socket of ours: its new thread makes a pair of sockets, of which we take one
half (:mod:`otelgpu.kernel.offered_socket`) and send the library's descriptor over it. So it may be in a container, or
of another user.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct, field

from otelgpu.kernel.offered_socket import check_may_take, take_socket
from otelgpu.kernel.ptrace import HeldThread, ThreadEnded
from otelgpu.kernel.readable import is_readable
from otelgpu.kernel.shared_file import open_unwritable
from otelgpu.processes.live_injection import amd64
from otelgpu.processes.live_injection.refusals import (
    InjectionRefused,
    has_filter,
    no_access,
    refuse_by_filters,
    refuse_unsuitable,
    shares_files,
    unknown_filter,
)
from otelgpu.processes.live_injection.safe_point import why_not_here
from otelgpu.processes.live_injection.target import Target

_T = TypeVar("_T")

TRY_FOR_S: Final = 10.0
"""How long a thread at a safe point is looked for."""
LOAD_FOR_S: Final = 30.0
"""How long the new thread may take: it may have to wait for whoever else loads a library."""
_STOP_S: Final = 2.0
_CALL_S: Final = 5.0
_PAUSE_S: Final = 0.002
_NICE: Final = -15
_PAGE: Final = 4096
_PROT_READ_EXEC: Final = 5
_PROT_READ_WRITE: Final = 3
_MAP: Final = 0x2 | 0x20 | 0x100000  # MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE
_MOST_THREADS: Final = 4096
_MOST_ERRNO: Final = 4095
_WORD: Final = b"\0\0\0\0"  # what a descriptor travels with


class InjectionFailed(InjectionRefused):
    """It was tried, and the process is as it was before."""


class Loaded(Struct, frozen=True):
    """``answer`` of the library's function; ``held_s`` is how long a thread of the process was held in all."""

    answer: int
    held_s: float
    attempts: int
    code: int
    """Where the memory for it was, which is unmapped again."""


class _Held(Struct):
    seconds: float = 0.0
    attempts: int = 0
    reason: str = "no thread of it could be stopped"
    allowed: set[tuple[bytes, ...]] = field(default_factory=lambda: {()})
    """Filters of system calls that have been looked at: they let it do all that it takes."""


def load_library(
    pid: int, library: Path, function: str, request: bytes, answer: Callable[[socket.socket], None]
) -> Loaded:
    """Call ``function`` of ``library`` on a thread of its own in process ``pid``, with a pointer to ``request``.

    It is given a socket, too: what it says over that is for ``answer`` to read, which is called once, in a thread of
    this function's, and closes what it is given. Raises :class:`InjectionRefused`: nothing was done.
    :class:`InjectionFailed`: it was tried.
    """
    refuse_unsuitable(pid)
    try:
        check_may_take(pid)
        target = Target(pid)
    except PermissionError as error:
        raise no_access(pid) from error
    except OSError as error:
        raise InjectionRefused(
            f"no library is loaded into process {pid}: it may not be traced ({error.strerror})"
        ) from error
    try:
        with _Offer(pid, _open_library(pid, library), answer) as offer:
            return _in_own_thread(lambda: _load(target, offer, function, request))
    except (OSError, ThreadEnded) as error:
        if not Path(f"/proc/{pid}").exists():
            raise InjectionFailed(f"process {pid} ended") from error
        raise InjectionFailed(f"no library is loaded into process {pid}: {error}") from error
    finally:
        target.close()


def _open_library(pid: int, library: Path) -> int:
    """A descriptor that ``pid`` may have. Raises OSError; InjectionRefused: it could write the library by it."""
    try:
        return open_unwritable(library)
    except FileNotFoundError:
        raise
    except OSError as error:
        if shares_files(pid):  # it has the file already
            return os.open(library, os.O_RDONLY | os.O_CLOEXEC)
        raise InjectionRefused(
            f"no library is loaded into process {pid}: it is in a container, and could write to otelgpu's own file "
            f"by what it would be given ({error.strerror})",
            hint="give otelgpu CAP_SYS_ADMIN, or have its files on a read-only file system "
            "(readOnlyRootFilesystem: true)",
        ) from error


class _Offer:
    """The socket that the process has made for us. First the library's descriptor goes over it, then one answer."""

    def __init__(self, pid: int, library: int, answer: Callable[[socket.socket], None]) -> None:
        self._pid, self._library, self._answer = pid, library, answer
        self._socket: socket.socket | None = None
        self._is_done = False

    def __enter__(self) -> _Offer:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._library)
        if self._socket is not None and not self._is_done:
            self._socket.close()

    def serve(self, number: int) -> None:
        """Do what is to be done now; ``number``: of the descriptor, there. Raises OSError: it is none of his."""
        if self._socket is None:
            self._socket = take_socket(self._pid, number)
            socket.send_fds(self._socket, [_WORD], [self._library])
        elif not self._is_done and is_readable(self._socket):
            self._is_done = True
            self._answer(self._socket)


def _in_own_thread(function: Callable[[], _T]) -> _T:
    """Who is still held when that thread ends, whatever happened, is let go by the kernel."""
    results: list[_T] = []
    faults: list[BaseException] = []

    def run() -> None:
        with contextlib.suppress(OSError):  # it takes a right; who is held waits for this thread alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            results.append(function())
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=run, name="otelgpu-live")
    thread.start()
    thread.join()
    if faults:
        raise faults[0]
    return results[0]


def _load(target: Target, offer: _Offer, function: str, request: bytes) -> Loaded:
    functions = {name: target.functions[name] for name in amd64.FUNCTIONS}
    block = functools.partial(amd64.loader_block, functions, function.encode(), request)
    _ = target.way_back, target.unsafe, target.modules  # looked up now, while nobody is held for it
    held = _Held()
    code = _at_safe_point(target, held, lambda calls: _start(target, calls, block))
    data = code + _PAGE
    _await_end(target, data, offer)
    answer, said = _read_answer(target, data)
    _at_safe_point(
        target, held, lambda calls: calls(target.functions["munmap"], code, 2 * _PAGE), needs_locks=False
    )
    if not answer:
        raise InjectionFailed(f"process {target.pid} cannot load the library: {said}")
    return Loaded(answer, held.seconds, held.attempts, code)


def _start(target: Target, call: _Calls, block: Callable[[int], bytes]) -> int:
    """In a thread that is held: map two pages, and start a thread on them."""
    code = target.room(2 * _PAGE)
    mmap = target.functions["mmap"]
    call(mmap, code, _PAGE, _PROT_READ_EXEC, _MAP, (1 << 64) - 1, 0)
    call(mmap, code + _PAGE, _PAGE, _PROT_READ_WRITE, _MAP, (1 << 64) - 1, 0)
    try:
        target.write(code, amd64.LOADER)
        target.write(code + _PAGE, block(code + _PAGE))
    except OSError as error:
        raise InjectionFailed(
            f"no library is loaded into process {target.pid}: it may not map memory to be executed"
        ) from error
    call(target.functions["pthread_create"], code + _PAGE + amd64.THREAD_AT, 0, code, code + _PAGE)
    if not any(target.read(code + _PAGE + amd64.THREAD_AT, 8)):
        call(target.functions["munmap"], code, 2 * _PAGE)
        raise InjectionFailed(f"no library is loaded into process {target.pid}: it cannot start a thread")
    return code


def _await_end(target: Target, data: int, offer: _Offer) -> None:
    """Return once the thread that calls the function has ended. Raises InjectionFailed: it takes too long."""
    until = time.monotonic() + LOAD_FOR_S
    while True:
        words = target.read(data, amd64.SYMBOL_AT)
        done, tid = struct.unpack_from("<II", words, amd64.DONE_AT)
        number, is_offered = struct.unpack_from("<4xiI", words, amd64.SOCKETS_AT)
        if done:
            break
        if is_offered:
            offer.serve(number)
        if time.monotonic() >= until:
            raise InjectionFailed(
                f"process {target.pid} has not loaded the library within {LOAD_FOR_S:g} s",
                hint="another of its threads is loading one for as long; it goes on with ours then, unobserved",
            )
        time.sleep(_PAUSE_S)
    while tid in {_own_number(target.pid, each) for each in _threads(target.pid)}:
        if time.monotonic() >= until:
            raise InjectionFailed(f"process {target.pid}: the thread that loaded the library does not end")
        time.sleep(_PAUSE_S)


def _read_answer(target: Target, data: int) -> tuple[int, str]:
    """The function's answer, and what the dynamic linker said, or the kernel, where there is none: 0."""
    (answer,) = struct.unpack("<Q", target.read(data + amd64.ANSWER_AT, 8))
    (result,) = struct.unpack("<i", target.read(data + amd64.RESULT_AT, 4))
    if result <= 0 and not answer:
        why = os.strerror(-result) if -_MOST_ERRNO <= result < 0 else "nothing came"
        return answer, f"it was not given it ({why})"
    text = target.read(data + amd64.ERROR_AT, amd64.ERROR_BYTES).partition(b"\0")[0].decode(errors="replace")
    return answer, "".join(letter if letter.isprintable() else "?" for letter in text)


def _threads(pid: int) -> list[int]:
    return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))


def _own_number(pid: int, tid: int) -> int:
    """As the thread itself knows it, in its PID namespace; 0: it has ended."""
    try:
        text = Path(f"/proc/{pid}/task/{tid}/status").read_text(errors="replace")
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith("NSpid:")), "")
    return int(line.split()[-1]) if line else tid


def _candidates(pid: int) -> Iterator[int]:
    """Threads that wait first, last of them those whose call would report EINTR if we were killed; then who runs."""
    failing, running = [], []
    for tid in _threads(pid)[:_MOST_THREADS]:
        try:
            word = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
        except OSError:
            continue
        number = int(word[0]) if word and word[0].isdigit() else -1
        if number in amd64.FAIL_WHEN_INTERRUPTED:
            failing.append(tid)
        elif number in amd64.WAITING:
            yield tid
        elif word and word[0] == "running":
            running.append(tid)
    yield from failing
    yield from running


def _at_safe_point(
    target: Target, held: _Held, act: Callable[[_Calls], _T], *, needs_locks: bool = True
) -> _T:
    """What ``act`` gives, of the first thread that is found at a safe point. Raises InjectionRefused: none was."""
    until = time.monotonic() + TRY_FOR_S
    while True:
        for tid in _candidates(target.pid):
            try:
                thread = HeldThread(tid)
            except ProcessLookupError:
                continue
            began = time.monotonic()
            held.attempts += 1
            try:
                done = _try(target, thread, act, held, needs_locks=needs_locks)
            except ThreadEnded:
                continue
            finally:
                held.seconds += time.monotonic() - began
            if done is not None:
                return done[0]
            if time.monotonic() >= until:
                break
        if time.monotonic() >= until:
            raise InjectionRefused(
                f"no library is loaded into process {target.pid}: within {TRY_FOR_S:g} s no thread of it was "
                f"where it may be interrupted; the last one: {held.reason}",
                hint="try again",
            )
        time.sleep(_PAUSE_S)


def _try(
    target: Target, thread: HeldThread, act: Callable[[_Calls], _T], held: _Held, *, needs_locks: bool
) -> tuple[_T] | None:
    """None: not here."""
    if not thread.stop(_STOP_S):
        held.reason = "it does not stop"
        raise InjectionFailed(
            f"no library is loaded into process {target.pid}: thread {thread.tid} does not stop"
        )
    filters = _filters(thread, target.pid)
    if filters not in held.allowed:
        thread.let_go()  # while its filters are looked at
        held.reason = "it has a seccomp filter of its own"
        if needs_locks:
            refuse_by_filters(target.pid, filters)
            held.allowed.add(filters)
        return None
    registers, state, blocked = thread.registers(), thread.extended_state(), thread.blocked_signals()
    target.refresh()
    if (reason := _why_not(target, registers, state, needs_locks)) is not None:
        held.reason = reason
        thread.let_go()
        return None
    frame, data = amd64.signal_frame(registers, state, blocked, target.way_back)
    target.write(frame, data)
    calls = _Calls(target, thread, registers, frame)
    try:
        return (act(calls),)
    finally:
        if calls.are_made:
            if not calls.returned:
                thread.stop(_STOP_S)  # it finds its own way back
            else:
                thread.set_registers(amd64.before_sigreturn(thread.registers(), target.way_back))
                thread.interrupt_again(_STOP_S)
                thread.set_extended_state(state)
                thread.block_signals(blocked)
                thread.set_registers(amd64.resumed(registers))
        thread.let_go()


def _filters(thread: HeldThread, pid: int) -> tuple[bytes, ...]:
    """Raises InjectionRefused: they cannot be read."""
    try:
        is_filtered = has_filter(thread.tid)
    except OSError as error:
        raise ThreadEnded(thread.tid) from error
    try:
        return thread.seccomp_filters() if is_filtered else ()
    except OSError as error:
        thread.let_go()
        raise unknown_filter(pid, error) from error


class _Calls:
    """Calls functions in a thread that is held, one after the other."""

    def __init__(self, target: Target, thread: HeldThread, registers: dict[str, int], frame: int) -> None:
        self._target, self._thread, self._registers, self._frame = target, thread, registers, frame
        self.are_made = self.returned = False

    def __call__(self, function: int, *arguments: int) -> None:
        """Return when it has, but for its result. Raises InjectionFailed when that takes too long."""
        # In this order: from the first line on the thread finds its own way back, with its own signals.
        self.are_made, self.returned = True, False
        self._thread.set_registers(amd64.call(self._registers, self._frame, function, *arguments))
        self._thread.block_signals(amd64.ALL_SIGNALS)
        until = time.monotonic() + _CALL_S
        while not self.returned:
            if not self._thread.next_syscall(max(until - time.monotonic(), 0)):
                raise InjectionFailed(
                    f"process {self._target.pid}: a call in thread {self._thread.tid} takes too long"
                )
            self.returned = amd64.at_sigreturn(self._thread.registers(), self._frame, self._target.way_back)


def _why_not(target: Target, registers: dict[str, int], state: bytes, needs_locks: bool) -> str | None:
    if not needs_locks:
        stack = target.mapping_at(registers["rsp"])
        if stack is None or (registers["rsp"] - stack.start < amd64.ROOM and stack.path != "[stack]"):
            return "its stack has no room left"
        return "it computes with AMX" if amd64.uses_tiles(state) else None
    return why_not_here(target, registers, state)
