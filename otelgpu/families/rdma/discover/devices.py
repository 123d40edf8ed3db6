"""Functions of RDMA providers before anybody uses them: a child process of ours opens each device and reports.

In: a libibverbs, and where its structures have functions (``enum verbs_context_offset``). Out: the functions' addresses
by symbol, while the child that they are true of still lives. A program's first queue pair may post within a
millisecond of opening its device; whoever attaches only then has missed it.

The child is another program and no fork: this process has threads, and a provider may crash or hang. It is killed
after :data:`LIMIT_S`. Nothing of it is observed, as libibverbs has no probes yet when it runs.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

LIBRARY: Final = "libibverbs.so.1"
DEVICES: Final = Path("/sys/class/infiniband")
LIMIT_S: Final = 5.0
_OUTPUT_BYTES: Final = 1 << 16
_STOPPED_S: Final = 0.02  # how often is looked whether it was stopped, as programs are that map a library
_ENVIRONMENT: Final = ("LD_LIBRARY_PATH",)

# Structures: infiniband/verbs.h. A device that cannot be opened (no access, no driver) is left out. A queue pair with
# extended functions is made where there can be one: struct ibv_qp_init_attr_ex with comp_mask PD | SEND_OPS_FLAGS, of
# type RC, for all operations that any such has; its functions are those from wr_atomic_cmp_swp to wr_abort.
_PROGRAM: Final = """
import ctypes, json, struct, sys
from ctypes import c_int, c_uint64, c_void_p
def pair_of(context, maker):
    library.ibv_alloc_pd.restype = library.ibv_create_cq.restype = library.ibv_qp_to_qp_ex.restype = c_void_p
    domain = library.ibv_alloc_pd(c_void_p(context))
    queue = library.ibv_create_cq(c_void_p(context), c_int(1), None, None, c_int(0))
    if not (domain and queue and maker):
        return []
    wanted = struct.pack("4Q8I2QI4x4QI4xQ", 0, queue, queue, 0, 1, 1, 1, 1, 0, 2, 0, 65, domain, *[0] * 7, 127)
    made = ctypes.CFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(maker)(context, wanted)
    extended = made and library.ibv_qp_to_qp_ex(c_void_p(made))
    return [c_uint64.from_address(extended + 184 + 8 * place).value for place in range(20)] if extended else []
library, offsets = ctypes.CDLL(sys.argv[1]), json.loads(sys.argv[2])
library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
library.ibv_open_device.restype = c_void_p
count = c_int()
devices = library.ibv_get_device_list(ctypes.byref(count))
found = []
for place in range(count.value if devices else 0):
    context = library.ibv_open_device(c_void_p(devices[place]))
    if context:
        words = {name: c_uint64.from_address(context + at).value for name, at in offsets.items()}
        extended = words["extended"] == (1 << 64) - 1
        found.append(words | {"pair": pair_of(context, words["create_qp_ex"] if extended else 0)})
print(json.dumps({"devices": count.value, "contexts": found}), flush=True)
sys.stdin.read()
"""

_PLAIN: Final = ("post_send", "post_recv", "poll_cq", "post_srq_recv")
_MAKERS: Final = ("create_qp_ex", "create_cq_ex")

REASONS: Final[Mapping[str, str]] = {
    "devices_not_opened": "RDMA devices that could not be opened: a program's first posts may be missed",
    "devices_unanswered": "the trial to open the RDMA devices took too long, crashed or could not be started",
}
"""What is counted, and what one count means."""

Learn = Callable[[int, int, dict[str, int], list[int]], None]
"""Process, a number of the context, functions by symbol, and those of an extended queue pair in their order."""


def have_devices(folder: Path = DEVICES) -> bool:
    """Whether the kernel has any."""
    with suppress(OSError):
        return any(folder.iterdir())
    return False


def open_devices(
    offsets: Mapping[str, int], learn: Learn, *, library: str = LIBRARY, limit_s: float = LIMIT_S
) -> dict[str, int]:
    """Call ``learn`` for each device that can be opened, while the process with it lives. Failures, by reason."""
    wanted = {symbol: offsets[f"CONTEXT_{symbol.upper()}"] for symbol in (*_PLAIN, *_MAKERS)}
    wanted["extended"] = offsets["CONTEXT_ABI_COMPAT"]
    ends: list[int] = []
    child = 0
    try:
        question, _ = _pipe(ends)
        answer, theirs = _pipe(ends)
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _PROGRAM, library, json.dumps(wanted)],
            {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, question, 0),
                (os.POSIX_SPAWN_DUP2, theirs, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
        )
        os.close(theirs)
        ends.remove(theirs)
        reported = _answer(child, answer, time.monotonic() + limit_s)
        contexts = _contexts(reported)
        if contexts is None:
            return {"devices_unanswered": 1}
        count, found = contexts
        for number, (functions, pair) in enumerate(found):
            learn(child, -1 - number, functions, pair)
        return {"devices_not_opened": count - len(found)} if count > len(found) else {}
    except OSError:
        return {"devices_unanswered": 1}
    finally:
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)
        for end in ends:
            os.close(end)


def _pipe(ends: list[int]) -> tuple[int, int]:
    made = os.pipe2(os.O_CLOEXEC)
    ends += made
    return made


def _answer(child: int, answer: int, until: float) -> bytes:
    """Its line; what there is of it when it ends or the time is up."""
    reported = b""
    while not reported.endswith(b"\n") and len(reported) < _OUTPUT_BYTES and time.monotonic() < until:
        if select.select([answer], [], [], _STOPPED_S)[0]:
            more = os.read(answer, _OUTPUT_BYTES)
            if not more:
                break
            reported += more
        elif os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG) is not None:
            os.kill(child, signal.SIGCONT)  # it was held at a library that we are not to look at
    return reported


def _contexts(reported: bytes) -> tuple[int, list[tuple[dict[str, int], list[int]]]] | None:
    """How many devices there are, and the functions of those that could be opened; None: it is no answer."""
    try:
        answer = json.loads(reported)
        count, found = int(answer["devices"]), list(answer["contexts"])
        return count, [(_functions(each), [int(at) for at in each["pair"]]) for each in found]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _functions(reported: Mapping[str, Any]) -> dict[str, int]:
    """Constructors lie in a structure around the context, which those of older providers lack."""
    words = {symbol: int(reported[symbol]) for symbol in (*_PLAIN, *_MAKERS, "extended")}
    is_extended = words["extended"] == (1 << 64) - 1
    return {symbol: words[symbol] for symbol in (*_PLAIN, *(_MAKERS if is_extended else ())) if words[symbol]}
