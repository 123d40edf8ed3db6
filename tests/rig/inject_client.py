"""This process, as if it had the in-process library in it: connects, gets memory, and writes what it is reported to."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from otelgpu.elf.btf import Btf
from otelgpu.kernel.injection.server import InjectListener, interface_digest

HEADER_BYTES = 8
_TIMEOUT = struct.pack("@ll", 5, 0)  # struct timeval: seconds, microseconds
Bytes = npt.NDArray[np.uint8]


class InjectClient:
    """``threads`` is the memory's array of struct inject_thread, ``rings`` has one row for each."""

    def __init__(self, listener: InjectListener, layout: Btf, btf: Btf) -> None:
        self.layout, self.btf = layout, btf
        numbers = layout.enumerators("inject_number")
        hello = np.zeros(1, dtype=layout.dtype("inject_hello"))
        hello["magic"], hello["version"] = numbers["INJECT_MAGIC"], numbers["INJECT_VERSION"]
        hello["digest"] = interface_digest(btf.enumerators("cuda_api"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            # The kernel's: with one of Python's, connect() fails at once while others wait to be accepted.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEOUT)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEOUT)
            connection.connect(str(listener.path))
            connection.send(hello.tobytes())
            _, (descriptor,), _, _ = socket.recv_fds(connection, 16, 1)
        whole = np.frombuffer(mmap.mmap(descriptor, 0), dtype=np.uint8)
        os.close(descriptor)
        header = layout.dtype("inject_header")
        reported = whole[: header.itemsize].view(header)[0]
        count, table = int(reported["threads"]), numbers["INJECT_HEADER_BYTES"]
        thread = layout.dtype("inject_thread")
        self.threads: npt.NDArray[np.void] = whole[table : table + count * thread.itemsize].view(thread)
        self.rings = whole[int(reported["rings"]) :].reshape(count, int(reported["ring_bytes"]))

    def call(self, **fields: Any) -> npt.NDArray[np.void]:
        """A record that is as it should be, but for ``fields``: shape (1,)."""
        record = np.zeros(1, dtype=self.btf.dtype("cuda_call"))
        head = record["head"]
        head["time_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - 1000
        head["tgid"], head["tid"] = os.getpid(), os.getpid()
        head["kind"] = self.btf.enumerators("cuda_kind")["CUDA_FREE"]
        record["api"] = self.btf.enumerators("cuda_api")["API_cudaFree"]
        for name, value in fields.items():
            (head if name in (head.dtype.names or ()) else record)[name] = value
        return record

    def write(self, *records: npt.NDArray[np.void] | bytes) -> None:
        """Put them into the first ring, whose end must not be reached."""
        for record in records:
            data = record if isinstance(record, bytes) else record.tobytes()
            self.fill(0, np.frombuffer(data, dtype=np.uint8).reshape(1, -1))

    def fill(self, thread: int, records: Bytes) -> None:
        """Put records of one length, shape (n, length), into a ring."""
        framed = np.zeros((len(records), HEADER_BYTES + records.shape[1]), dtype=np.uint8)
        framed[:, :4] = np.frombuffer(np.uint32(records.shape[1]).tobytes(), dtype=np.uint8)
        framed[:, HEADER_BYTES:] = records
        at = int(self.threads["producer"][thread])
        self.rings[thread, at : at + framed.size] = framed.reshape(-1)
        self.threads["producer"][thread] = at + framed.size


def launches(btf: Btf, count: int, *, ends_ns: int, apart_ns: int = 1000) -> Bytes:
    """Launches that follow each other, the last of which ends then: shape (count, length)."""
    records = np.zeros(count, dtype=btf.dtype("cuda_call"))
    head = records["head"]
    head["tid"], head["kind"] = os.getpid(), btf.enumerators("cuda_kind")["CUDA_LAUNCH"]
    head["duration_ns"] = apart_ns // 2
    head["time_ns"] = ends_ns - np.arange(count, 0, -1) * apart_ns
    records["api"] = btf.enumerators("cuda_api")["API_cudaLaunchKernel"]
    shaped: Bytes = records.view(np.uint8).reshape(count, -1)
    return shaped
