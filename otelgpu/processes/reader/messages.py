"""Questions and answers between a :class:`~.client.Reader` and its worker, as msgpack over a stream socket.

A message is its length (u32, little-endian) and so many bytes. Numpy arrays travel as (dtype, shape, bytes) and open
files, :class:`Descriptor`, beside the message (SCM_RIGHTS). Answers are decoded into the type that the question's
function declares, and nothing else: a worker that was taken over cannot make the agent build what it likes.
"""

from __future__ import annotations

import array
import socket
import struct
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, ParamSpec, Protocol, TypeVar, get_type_hints

import msgspec
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

MAX_MESSAGE_BYTES: Final = 64 << 20
"""Of one answer: libtorch_cpu's 348,000 functions are 10 MB."""
MAX_DESCRIPTORS: Final = 4

_LENGTH: Final = struct.Struct("<I")
_KINDS: Final = "biufSV"  # of numpy arrays: plain bytes, no objects
_RAISES: Final = "__question_raises__"
_NOTHING: Final = msgspec.Raw(b"\xc0")


class Descriptor(int):
    """An open file that travels with a message. Who receives it closes it."""


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """A question: where its function is, and its arguments."""

    module: str
    name: str
    arguments: msgspec.Raw


class Failed(msgspec.Struct, array_like=True, frozen=True):
    """What a function raised: the name of its class, errno for an OSError, and what it said."""

    name: str
    number: int
    message: str


class Answered(msgspec.Struct, array_like=True, frozen=True):
    """What it returned, or raised. ``seconds``: of CPU, that it took."""

    seconds: float
    value: msgspec.Raw = _NOTHING
    failed: Failed | None = None


class Receiving(Protocol):
    """What a message is received from: a socket, or one that waits only so long."""

    def recv(self, bufsize: int, /) -> bytes:
        """As ``socket.recv``."""

    def recvmsg(
        self, bufsize: int, ancbufsize: int, flags: int, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        """As ``socket.recvmsg``."""


class MessageError(ValueError):
    """What came is no message, or none that was to come."""


def question(*raises: type[Exception]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function at module level that a worker may be asked; ``raises``: what it says with an exception.

    OSError is passed on always. Arguments and answer are plain: numbers, text, bytes, tuples, lists, dicts, frozen
    structs, numpy arrays without objects, and :class:`Descriptor`.
    """

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        setattr(function, _RAISES, raises)
        return function

    return mark


def raised_by(function: Callable[..., object]) -> tuple[type[Exception], ...]:
    """What it may raise besides OSError. TypeError: it is no question."""
    found = getattr(function, _RAISES, None)
    if found is None:
        raise TypeError(f"{function!r} is not a question")
    return tuple(found)


def function_of(asked: Asked) -> Callable[..., object]:
    """The function that is asked; raises what importing it does, and TypeError for what is no question."""
    found: Callable[..., object] = getattr(import_module(asked.module), asked.name)
    raised_by(found)
    return found


def encode(value: object) -> tuple[bytes, list[int]]:
    """As msgpack, and the descriptors that go with it."""
    descriptors: list[int] = []

    def plain(item: Any) -> Any:
        if isinstance(item, Descriptor):
            descriptors.append(int(item))
            return len(descriptors) - 1
        if isinstance(item, np.ndarray) and item.dtype.kind in _KINDS:
            return (np.lib.format.dtype_to_descr(item.dtype), item.shape, item.tobytes())
        if isinstance(item, np.integer):
            return int(item)
        raise TypeError(f"{type(item).__name__} is no plain data")

    return msgspec.msgpack.encode(value, enc_hook=plain), descriptors


def decode(data: bytes | msgspec.Raw, wanted: Any, descriptors: Sequence[int] = ()) -> Any:
    """A value of the type ``wanted``. Raises :class:`MessageError`."""

    def made(kind: type, item: Any) -> Any:
        if kind is Descriptor:
            return Descriptor(descriptors[item])
        if kind is np.ndarray:
            return _array(*item)
        raise TypeError(f"{kind.__name__} is not sent")

    try:
        return msgspec.msgpack.decode(data, type=wanted, dec_hook=made)
    except (msgspec.MsgspecError, IndexError, TypeError, ValueError) as error:
        raise MessageError(f"not a message that was to come: {error}") from error


def _array(description: Any, shape: Sequence[int], data: bytes) -> np.ndarray:
    dtype = np.lib.format.descr_to_dtype(_fields(description))
    if dtype.hasobject:
        raise ValueError("an array of objects")
    return np.frombuffer(data, dtype).reshape(shape)


def _fields(description: Any) -> Any:
    """A dtype's description, whose fields are tuples."""
    if isinstance(description, list):
        return [(name, _fields(kind), *map(tuple, shape)) for name, kind, *shape in description]
    return description


@cache
def answer_type(function: Callable[..., object]) -> Any:
    """What the function declares to return."""
    return get_type_hints(function)["return"]


@cache
def argument_types(function: Callable[..., object]) -> Any:
    """Of its parameters, as one tuple."""
    hints = get_type_hints(function)
    hints.pop("return", None)
    return tuple[tuple(hints.values())] if hints else tuple[()]  # type: ignore[misc]


def send(connection: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """One message. Raises OSError, TimeoutError among them."""
    head = _LENGTH.pack(len(data))
    if descriptors:
        rights = array.array("i", descriptors)
        connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        connection.sendall(data)
    else:
        connection.sendall(head + data)


def receive(connection: Receiving) -> tuple[bytes, list[int]]:
    """One message and its descriptors. Raises :class:`MessageError`, OSError, and EOFError at the end."""
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    head, ancillary, _, _ = connection.recvmsg(_LENGTH.size, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    while len(head) < _LENGTH.size:
        head += _some(connection, _LENGTH.size - len(head))
    length = _LENGTH.unpack(head)[0]
    if length > MAX_MESSAGE_BYTES:
        raise MessageError(f"a message of {length} bytes")
    parts = bytearray()
    while len(parts) < length:
        parts += _some(connection, length - len(parts))
    return bytes(parts), list(descriptors)


def _some(connection: Receiving, size: int) -> bytes:
    data = connection.recv(min(size, 1 << 20))
    if not data:
        raise EOFError("the other side has ended")
    return data
