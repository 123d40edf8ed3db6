"""Other tracers with the same hooks: what a user of bpftrace or bcc would write."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.bench.machine import SYSTEM_PYTHON
from tests.bench.programs import BenchError, observer
from tests.rig import RigError
from tests.rig.kernel_headers import kernel_headers

EMPTY = """
uprobe:{library}:cudaLaunchKernel {{ $none = 0; }}
uretprobe:{library}:cudaLaunchKernel {{ $none = 0; }}
BEGIN {{ printf("attached\\n"); }}
"""
"""Nothing but the traps: what no tracer can go below."""

PRINTED = """
uprobe:{library}:cudaLaunchKernel /pid == {pid}/ {{ @call[tid] = (nsecs, arg0, arg1, arg2, arg3, arg4, sarg0, sarg1); }}
uretprobe:{library}:cudaLaunchKernel /@call[tid].0/ {{
  $c = @call[tid];
  printf("%llu %llu %d %d %d %llx %llx %llx %llx %llx %llu %llx\\n", $c.0, nsecs - $c.0, pid, tid, (int32)retval,
         $c.1, $c.2, $c.3, $c.4, $c.5, $c.6, $c.7);
  delete(@call[tid]);
}}
BEGIN {{ printf("attached\\n"); }}
"""
"""A line for each call, with every field of struct cuda_launch: the same information as a record."""

COUNTED = """
uprobe:{library}:cudaLaunchKernel /pid == {pid}/ {{
  @start[tid] = nsecs; @function[tid] = arg0; @grid_xy[tid] = arg1; @grid_z[tid] = arg2; @block_xy[tid] = arg3;
  @block_z[tid] = arg4; @shared[tid] = sarg0; @stream[tid] = sarg1;
}}
uretprobe:{library}:cudaLaunchKernel /@start[tid]/ {{
  @ns[@function[tid], retval] = sum(nsecs - @start[tid]);
  delete(@start[tid]); delete(@function[tid]); delete(@grid_xy[tid]); delete(@grid_z[tid]); delete(@block_xy[tid]);
  delete(@block_z[tid]); delete(@shared[tid]); delete(@stream[tid]);
}}
BEGIN {{ printf("attached\\n"); }}
"""
"""One map a field, as older bpftrace must; only a sum per kernel leaves the kernel, so no call is reported."""

AGGREGATED = """
uprobe:{library}:cudaLaunchKernel /pid == {pid}/ {{ @start[tid] = nsecs; @function[tid] = arg0; }}
uretprobe:{library}:cudaLaunchKernel /@start[tid]/ {{
  @ns[@function[tid]] = sum(nsecs - @start[tid]); delete(@start[tid]); delete(@function[tid]);
}}
BEGIN {{ printf("attached\\n"); }}
"""
"""The least that still times calls: two fields, a sum per kernel and no call reported."""

SYSCALLS = """
tracepoint:syscalls:sys_enter_read,tracepoint:syscalls:sys_enter_write /pid == {pid}/ {{ @start[tid] = nsecs; }}
tracepoint:syscalls:sys_exit_read,tracepoint:syscalls:sys_exit_write /@start[tid]/ {{ delete(@start[tid]); }}
BEGIN {{ printf("attached\\n"); }}
"""
"""read() and write() of one process, timed."""

WRITES_EMPTY = """
tracepoint:syscalls:sys_enter_write,tracepoint:syscalls:sys_exit_write {{ $none = 0; }}
BEGIN {{ printf("attached\\n"); }}
"""
"""Nothing but the kernel's way to a tracepoint of a system call: what no tracer can go below."""

WRITES_PRINTED = """
tracepoint:syscalls:sys_enter_write /pid == {pid}/ {{ @call[tid] = (nsecs, args->fd, args->buf); }}
tracepoint:syscalls:sys_exit_write /@call[tid].0/ {{
  $c = @call[tid];
  printf("%llu %llu %d %d %d %d %r\\n", $c.0, nsecs - $c.0, pid, tid, $c.1, args->ret, buf($c.2, 120));
  delete(@call[tid]);
}}
BEGIN {{ printf("attached\\n"); }}
"""
"""A line for each write(), with what a record of it holds, its 120 bytes among that."""

NCCL_EMPTY = """
uprobe:{library}:pncclAllReduce /pid == {pid}/ {{ $none = 0; }}
uretprobe:{library}:pncclAllReduce /pid == {pid}/ {{ $none = 0; }}
BEGIN {{ printf("attached\\n"); }}
"""
"""The traps of an ncclAllReduce."""

NCCL_PRINTED = """
uprobe:{library}:pncclAllReduce /pid == {pid}/ {{
  @call[tid] = (nsecs, arg2, arg3, arg4, arg5, sarg0, *(uint64*)(arg5 + 1066184), *(int64*)(arg5 + 1066192),
                *(int32*)(arg5 + 1066200), *(uint64*)(arg5 + 1075728 + 32));
}}
uretprobe:{library}:pncclAllReduce /@call[tid].0/ {{
  $c = @call[tid];
  printf("%llu %llu %d %d %d %llx %llx %llx %llx %llx %llx %llx %d %llu\\n", $c.0, nsecs - $c.0, pid, tid,
         (int32)retval, $c.1, $c.2, $c.3, $c.4, $c.5, $c.6, $c.7, $c.8, $c.9);
  delete(@call[tid]);
}}
BEGIN {{ printf("attached\\n"); }}
"""
"""A line for each call with the fields of struct nccl_call, those of the communicator of 2.28.9 included."""


def bpftrace(program: str, **values: object) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run one of the programs above until the end of the block."""
    command = ["bpftrace", "-e", program.format(**values)]
    return observer(command, "attached", settle_s=1.0, env={"BPFTRACE_STRLEN": "128"})


@contextlib.contextmanager
def bcc(library: Path, pid: int) -> Iterator[None]:
    """Run bcc_probe.py until the end of the block. Raises :class:`BenchError` where bcc cannot be used."""
    tried = subprocess.run([SYSTEM_PYTHON, "-c", "import bcc"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise BenchError("bcc is not installed (Debian: apt-get install python3-bpfcc linux-headers-amd64)")
    command = [SYSTEM_PYTHON, str(Path(__file__).with_name("bcc_probe.py")), str(library), str(pid)]
    with _headers(), observer(command, "attached"):
        yield


@contextlib.contextmanager
def _headers() -> Iterator[None]:
    try:
        with kernel_headers():
            yield
    except RigError as error:
        raise BenchError(str(error)) from error
