"""What a worker that was taken over may answer, and what mounts a process may have."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from otelgpu.families.rdma.discover.contexts import contexts_at
from otelgpu.processes.demangler import demangled
from otelgpu.processes.function_finder import (
    FoundFunctions,
    FoundRegistrations,
    functions_in,
    registrations_in,
)
from otelgpu.processes.go_functions import GoFunction, GoFunctions
from otelgpu.processes.memory import memory_at
from otelgpu.processes.mounts import kind_in
from otelgpu.processes.reader.messages import (
    Answered,
    Failed,
    MessageError,
    answer_type,
    decode,
    encode,
    receive,
)
from otelgpu.processes.struct_finder import members_in

_QUESTIONS: Final[tuple[Callable[..., object], ...]] = (
    *(demangled, memory_at, functions_in, registrations_in, members_in, contexts_at),
)
_LENGTH: Final = struct.Struct("<I")


class _Connection:
    """A socket from which some bytes come, in pieces of ``step``."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step = data, step

    def recv(self, size: int) -> bytes:
        found, self._data = self._data[: min(size, self._step)], self._data[min(size, self._step) :]
        return found

    def recvmsg(self, size: int, _: int, __: int) -> tuple[bytes, list[Any], int, Any]:
        return self.recv(size), [], 0, None


def answers(data: bytes) -> None:
    """The first byte: of which question, and how the rest comes. As ``Reader.ask`` takes it."""
    if not data:
        return
    question = _QUESTIONS[data[0] % len(_QUESTIONS)]
    connection = _Connection(data[1:], 1 + data[0] // len(_QUESTIONS))
    try:
        message, _ = receive(connection)
        answered: Answered = decode(message, Answered)
        assert isinstance(answered.seconds, float)
        if answered.failed is not None:
            assert isinstance(answered.failed.name + answered.failed.message, str)
            raise OSError(answered.failed.number, os.strerror(answered.failed.number & 0xFFFF))
        value = decode(answered.value, answer_type(question))
    except (MessageError, EOFError, OSError):
        return
    _check(question, value)


def _check(question: Callable[..., object], value: Any) -> None:
    """Of the declared type, to the last number: what the agent does with it relies on that."""
    if question is demangled:
        assert isinstance(value, str)
    elif question is memory_at:
        assert all(isinstance(part, bytes) for part in value)
    elif question is functions_in:
        assert isinstance(value, FoundFunctions)
        assert all(isinstance(at, int) for at in value.offsets.values())
        assert all(isinstance(at, int) for one in value.go.found.values() for at in (one.entry, *one.returns))
    elif question is registrations_in:
        assert isinstance(value, FoundRegistrations)
        assert all(key >= 0 and at >= 0 for key, at in value.stubs.items())
    encode(value)


def _answer(question: Callable[..., object], value: object) -> bytes:
    message = encode(Answered(0.5, value=msgspec.Raw(encode(value)[0])))[0]
    return bytes((_QUESTIONS.index(question) + 20 * len(_QUESTIONS),)) + _LENGTH.pack(len(message)) + message


def answer_seeds() -> tuple[bytes, ...]:
    """An answer to each kind of question, and a failure."""
    failed = encode(Answered(0.1, failed=Failed("OSError", 5, "Input/output error")))[0]
    return (
        _answer(demangled, "f(int)"),
        _answer(memory_at, (b"OTEL_CTX", b"")),
        _answer(
            functions_in,
            FoundFunctions({"cudaLaunchKernel": 4096}, True, GoFunctions({"a.b": GoFunction(64, (72,))})),
        ),
        _answer(registrations_in, FoundRegistrations({16: 4096}, {"fatbin_damaged": 1})),
        _answer(members_in, None),
        _answer(contexts_at, [{"address": 4096}]),
        b"\0" + _LENGTH.pack(len(failed)) + failed,
    )


def mounts(data: bytes) -> None:
    """The first two bytes are the number of a mount, the rest a mountinfo file."""
    number = int.from_bytes(data[:2], "little")
    kind = kind_in(data[2:].splitlines(keepends=True), number)
    assert " " not in kind


MOUNT_SEEDS: Final = (
    b"\x16\0"
    + b"22 27 0:21 / /proc rw,relatime - proc proc rw\n27 1 254:0 / / rw shared:1 - ext4 /dev/root rw\n",
    b"\x1b\0" + b"27 1 0:44 / /a\\040-\\040b rw - overlay overlay rw,lowerdir=/a",
)
