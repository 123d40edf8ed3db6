"""What the kernel makes of seccomp filters, asked of a process of one thread, which a killed thread ends.

``python -m tests.rig.seccomp_answers`` answers each line, a filter in hexadecimal and the arguments of a call, with a
number: errno of the call, 0 without one; below 0, that of a filter which the kernel refuses; ``killed``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

PROBE: Final = 1_000
"""A number that no system call has."""
_KILLED: Final = "killed"


class Kernel:
    """Within ``with``: that process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def answer(self, program: bytes, arguments: Sequence[int]) -> int | None:
        """errno of that call, 0 without one; None: it ends the process. Raises OSError: that is no filter."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(program.hex(), *arguments, file=self._process.stdin, flush=True)
        said = self._process.stdout.readline().strip()
        if said == _KILLED:
            return None
        if int(said) < 0:
            raise OSError(-int(said), os.strerror(-int(said)))
        return int(said)


def _answer(program: bytes, arguments: Sequence[int]) -> int | str:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    says, said = os.pipe()
    child = os.fork()
    if not child:
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        answer = 0
        if libc.prctl(22, 2, header, 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
            answer = -ctypes.get_errno()
        elif libc.syscall(PROBE, *map(ctypes.c_uint64, arguments)) < 0:
            answer = ctypes.get_errno()
        os.write(said, struct.pack("@i", answer))
        os._exit(0)
    os.close(said)
    with os.fdopen(says, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if data:
        return int(struct.unpack("@i", data)[0])
    assert os.WTERMSIG(status) == signal.SIGSYS
    return _KILLED


def main() -> None:
    """Until standard input ends."""
    for line in sys.stdin:
        program, *arguments = line.split()
        print(_answer(bytes.fromhex(program), [int(each) for each in arguments]), flush=True)


if __name__ == "__main__":
    main()
