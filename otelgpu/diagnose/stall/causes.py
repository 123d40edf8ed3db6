"""What a thread does in a call or waits for, by the names of its frames; what each cause means, and what to do. Pure.

Native frames win over the system call, Python's over both where a module of the standard library reports more than the
call does: a ``read`` of a pipe under ``multiprocessing/connection.py`` is a wait for a worker process.

Example: ``[syscall futex] < PyThread_acquire_lock_timed < loop.py:12 step`` is :data:`LOCK`; the same with
``threading.py:629 wait < queue.py:171 get`` between is :data:`INPUT`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from otelgpu.render.frames import Frame, Kind

FILE_WRITE: Final = "file_write"
FILE_SYNC: Final = "file_sync"
FILE_READ: Final = "file_read"
FILE_CHANGE: Final = "file_change"
INPUT: Final = "input"
SLEEP: Final = "sleep"
LOCK: Final = "lock"
GIL: Final = "gil"
SUBPROCESS: Final = "subprocess"
CPU_CONTENTION: Final = "cpu_contention"
CGROUP_THROTTLING: Final = "cgroup_throttling"
PAGE_FAULTS: Final = "page_faults"
GARBAGE_COLLECTION: Final = "garbage_collection"
NETWORK: Final = "network"
IDLE: Final = "idle"
DEVICE_SYNC: Final = "device_sync"
DEVICE_COPY: Final = "device_copy"
DEVICE_MEMORY: Final = "device_memory"
COLLECTIVE: Final = "collective"
COMPILE: Final = "compile"
OTHER: Final = "other_wait"

FOR_A_CPU: Final = frozenset((CGROUP_THROTTLING, CPU_CONTENTION))
"""What holds a thread back that is ready to run: in each step, and by chance in some of them for longer."""

FILES: Final = frozenset((FILE_WRITE, FILE_SYNC, FILE_READ, FILE_CHANGE))
"""One piece of code opens, writes, syncs and closes a file: that is one stall, named by the longest of these."""


class Cause(Struct, frozen=True, kw_only=True):
    """What is said of a cause.

    ``says``: of a thread that does it; ``steady``: the least share of all time for which it is reported although every
    step has it alike (None: then it is how the program is meant); ``next``: what to do, ``code``: how.
    """

    meaning: str
    says: str
    steady: float | None
    next: str
    code: str = ""


CAUSES: Final[Mapping[str, Cause]] = {
    FILE_WRITE: Cause(
        meaning="a file is written on the thread that everything waits for",
        says="writes",
        steady=0.2,
        next="write it in another thread, of a copy, while the next step runs, or less often",
        code="writer = ThreadPoolExecutor(max_workers=1)  # once\n"
        "pending = writer.submit(save, path, bytes(state))  # in the loop; pending.result() before the next one",
    ),
    FILE_SYNC: Cause(
        meaning="a file is written and waited for until it is on the disk (fsync, fdatasync)",
        says="writes and syncs",
        steady=0.2,
        next="sync in another thread, or once at the end in place of every time",
        code="writer = ThreadPoolExecutor(max_workers=1)  # once\n"
        "pending = writer.submit(write_and_sync, path, data)  # in the loop; pending.result() before the next one",
    ),
    FILE_READ: Cause(
        meaning="a file is read on the thread that everything waits for",
        says="reads",
        steady=0.2,
        next="read the next batch in another thread while this one is computed, or keep it in memory",
        code="reader = ThreadPoolExecutor(max_workers=1)  # once\n"
        "following = reader.submit(load, path)  # in the loop; batch = following.result() in the next step",
    ),
    FILE_CHANGE: Cause(
        meaning="a file is opened, truncated, renamed, deleted or closed, and the file system takes long",
        says="opens, truncates, renames, deletes or closes",
        steady=0.2,
        next="do it in another thread, and write to a new name in place of truncating the old file",
        code="temporary.write_bytes(state); os.replace(temporary, path)  # in a thread: executor.submit(…)",
    ),
    INPUT: Cause(
        meaning="the next batch is not there yet: its producer (a worker process or thread, a pipe) is slower",
        says="waits for input",
        steady=0.2,
        next="more workers, or cheaper work in them, and batches that are fetched ahead",
        code="DataLoader(dataset, num_workers=8, prefetch_factor=4, persistent_workers=True)",
    ),
    SLEEP: Cause(
        meaning="the program itself sleeps, longer in some steps than in others",
        says="sleeps",
        steady=None,
        next="wait for what is waited for (a condition, an event) in place of a fixed time",
        code="ready = threading.Event()\nready.wait(timeout=5)  # ends as soon as somebody calls ready.set()",
    ),
    LOCK: Cause(
        meaning="another thread holds a lock",
        says="waits for a lock",
        steady=0.2,
        next="hold the lock for less: do slow work before taking it",
        code="result = slow()  # outside\nwith lock:\n    shared.update(result)",
    ),
    GIL: Cause(
        meaning="another thread runs Python code and holds the interpreter's lock (GIL)",
        says="waits for the interpreter's lock (GIL)",
        steady=0.15,
        next="move the other thread's Python work into a process",
        code="pool = ProcessPoolExecutor(max_workers=1)  # once\npool.submit(work, data)",
    ),
    SUBPROCESS: Cause(
        meaning="another program was started and is waited for",
        says="waits for another program that it started",
        steady=0.2,
        next="start it and go on: collect its result when it is needed",
        code="child = subprocess.Popen(command)\n…\nchild.wait()  # when its result is needed",
    ),
    COMPILE: Cause(
        meaning="code is compiled while the program works: by a compiler that was started, torch.compile, Triton, "
        "Numba, the driver, or a library that tries out which of its kernels is fastest",
        says="compiles code, or waits for a compiler",
        steady=0.1,
        next="compile before the loop, for each shape that comes; keep shapes the same, and the cache on disk",
        code="torch._dynamo.mark_dynamic(batch, 0)  # or pad batches to a few sizes, one of each before the loop\n"
        "os.environ['TORCHINDUCTOR_CACHE_DIR'] = os.environ['TRITON_CACHE_DIR'] = '/var/cache/kernels'\n"
        "torch.backends.cudnn.benchmark = False  # where shapes change",
    ),
    CPU_CONTENTION: Cause(
        meaning="the thread is ready and gets no CPU: others run there",
        says="is ready to run and waits for a CPU",
        steady=0.25,
        next="give the program CPUs of its own, or fewer threads to itself (OMP_NUM_THREADS)",
        code="taskset -c 2-5 python …  # CPUs that nobody else uses; OMP_NUM_THREADS=4 for its own threads",
    ),
    CGROUP_THROTTLING: Cause(
        meaning="the thread is ready and its control group has used up its CPU quota",
        says="is ready to run and is held back by the CPU quota of its control group",
        steady=0.1,
        next="raise the quota (Kubernetes: resources.limits.cpu), or use fewer threads",
        code="resources: {limits: {cpu: 4}}  # or no limit, with a request",
    ),
    PAGE_FAULTS: Cause(
        meaning="memory is not there when it is used: it comes from a file, from swap, or has to be zeroed",
        says="waits for or makes memory pages",
        steady=0.2,
        next="read mapped files ahead, keep buffers in place of making them anew, and give the program more memory",
        code="mapped.madvise(mmap.MADV_WILLNEED)  # before it is used; out = np.empty(shape) once, and op(…, out=out)",
    ),
    GARBAGE_COLLECTION: Cause(
        meaning="Python looks for garbage (gc), and everything waits",
        says="collects garbage",
        steady=0.15,
        next="freeze what lives long, collect less often, or at a time of your choice",
        code="gc.collect(); gc.freeze()  # when all is loaded\ngc.set_threshold(100_000, 50, 50)",
    ),
    NETWORK: Cause(
        meaning="a peer on a socket has not sent or taken data yet",
        says="waits for a peer on a socket",
        steady=None,
        next="ask ahead, in another thread, for what the next step needs",
        code="pending = executor.submit(fetch, url)  # in the loop; data = pending.result() in the next step",
    ),
    DEVICE_SYNC: Cause(
        meaning="the host waits until the device has done what was asked of it (`.item()`, `.cpu()`, synchronize)",
        says="waits for the device",
        steady=None,
        next="keep results on the device, and look at them every so many steps",
        code="total += loss.detach()  # on the device\nif step % 50 == 0:\n    print(total.item())",
    ),
    DEVICE_COPY: Cause(
        meaning="a copy between host and device that the host waits for: of memory that is not pinned",
        says="copies between host and device",
        steady=0.2,
        next="pin the memory, and copy without waiting",
        code="loader = DataLoader(dataset, pin_memory=True)\nbatch = batch.to(device, non_blocking=True)",
    ),
    DEVICE_MEMORY: Cause(
        meaning="memory of the device is allocated or freed, which waits for the device",
        says="allocates or frees memory of the device",
        steady=0.1,
        next="keep buffers, or use a caching allocator, and do not empty its cache in the loop",
        code="# no torch.cuda.empty_cache() in the loop; buffers = torch.empty(shape, device=device)  # once",
    ),
    COLLECTIVE: Cause(
        meaning="the host waits in a call of NCCL: for other ranks, which `diagnose ranks` compares",
        says="waits in a collective",
        steady=None,
        next="otelgpu diagnose ranks, with the files of all ranks, says who is waited for",
    ),
    OTHER: Cause(
        meaning="the thread is off the CPU for another reason, which its stack shows",
        says="waits",
        steady=None,
        next="look at the stack under which it waits",
    ),
}
"""Cause → what it means. :data:`IDLE` is none: who waits for anything to come may have nothing to do."""

COLLECTORS: Final = frozenset(
    ("gc_collect_main", "gc_collect_generations", "gc_collect_full", "_PyGC_CollectNoFail")
)
"""Functions of CPython's garbage collector (Modules/gcmodule.c; Python/gc.c from 3.13)."""
FAULTS: Final = frozenset(
    (
        *("asm_exc_page_fault", "exc_page_fault", "do_user_addr_fault", "handle_mm_fault", "page_fault"),
        *("do_anonymous_page", "filemap_fault", "do_swap_page", "__do_fault", "do_page_fault"),
    )
)
"""Functions of the kernel in which a page is made or waited for."""

_COMPILING: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("/torch/_dynamo/convert_frame.py", "/torch/utils/cpp_extension.py"), frozenset()),
    **{
        f"/torch/_inductor/{name}.py": frozenset()
        for name in ("graph", "lowering", "scheduler", "async_compile")
    },
    **dict.fromkeys(("/torch/_inductor/codegen/", "/torch/_inductor/compile_worker/"), frozenset()),
    **dict.fromkeys(("/triton/compiler/", "/triton/runtime/build.py"), frozenset()),
    **{f"/triton/backends/{name}compiler.py": frozenset() for name in ("", "nvidia/", "amd/")},
    "/triton/runtime/autotuner.py": frozenset(("_bench",)),
    "/torch/_inductor/runtime/triton_heuristics.py": frozenset(("precompile", "benchmark_all_configs")),
    **dict.fromkeys(("/numba/core/", "/jax/_src/compiler.py", "/jax/_src/interpreters/mlir.py"), frozenset()),
    "/cupy/cuda/compiler.py": frozenset(),
}
"""Part of the path of a Python module → its functions that compile; empty: all of them do.

What compiled code is called through (``torch/_dynamo/eval_frame.py``, ``triton/runtime/jit.py``) is not among them.
"""
_JITS: Final = (
    *(
        "nvrtcCompile",
        "nvrtcGetPTX",
        "nvJitLink",
        "nvPTXCompiler",
        "cuLinkAdd",
        "cuLinkComplete",
        "cuModuleLoad",
    ),
    *("cuLibraryLoad", "cudnnFind", "cublasLtMatmulAlgoGetHeuristic", "hiprtcCompile"),
    *("miopenFind", "LLVMRunPasses", "LLVMTargetMachineEmit", "LLVMPY_"),
)
"""How functions begin that compile, load what has to be compiled, or try out kernels (NVRTC, the driver, cuDNN)."""

_WAITED: Final = {
    **dict.fromkeys(("do_fsync", "vfs_fsync_range", "ext4_sync_file", "xfs_file_fsync"), FILE_SYNC),
    **dict.fromkeys(("filemap_read", "generic_file_read_iter", "ext4_file_read_iter"), FILE_READ),
    **dict.fromkeys(("generic_perform_write", "balance_dirty_pages", "ext4_file_write_iter"), FILE_WRITE),
    "pipe_read": INPUT,
    "anon_pipe_read": INPUT,
    "fifo_open": INPUT,
    "wait_for_partner": INPUT,
    "pipe_write": INPUT,
    "do_nanosleep": SLEEP,
    "do_wait": SUBPROCESS,
    "kernel_wait4": SUBPROCESS,
    "do_epoll_wait": IDLE,
    "unix_stream_read_generic": NETWORK,
    "unix_stream_data_wait": NETWORK,
    "tcp_recvmsg": NETWORK,
    "tcp_recvmsg_locked": NETWORK,
    "sk_wait_data": NETWORK,
    "tcp_sendmsg": NETWORK,
    "sk_stream_wait_memory": NETWORK,
    "inet_csk_accept": IDLE,
    "do_poll": IDLE,
    "do_select": IDLE,
    "n_tty_read": IDLE,
}
"""Function of the kernel on the stack of a wait → what for."""
_CALLED: Final = {
    **dict.fromkeys(("fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "sync"), FILE_SYNC),
    **dict.fromkeys(("openat", "open", "creat", "openat2", "close", "ftruncate", "truncate"), FILE_CHANGE),
    **dict.fromkeys(("rename", "renameat", "renameat2", "unlink", "unlinkat", "fallocate"), FILE_CHANGE),
    **dict.fromkeys(("clock_nanosleep", "nanosleep"), SLEEP),
    **dict.fromkeys(("wait4", "waitid"), SUBPROCESS),
    **dict.fromkeys(("epoll_wait", "epoll_pwait", "epoll_pwait2", "accept", "accept4", "pause"), IDLE),
    **dict.fromkeys(("poll", "ppoll", "select", "pselect6", "rt_sigtimedwait"), IDLE),
    **dict.fromkeys(("recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "connect"), NETWORK),
    **dict.fromkeys(("madvise", "munmap", "mmap", "brk", "mremap"), PAGE_FAULTS),
}
_FILE_CALLS: Final = {"read": FILE_READ, "write": FILE_WRITE, "sync": FILE_SYNC}
_CREATES: Final = frozenset(("vfork", "fork", "clone", "clone3", "execve"))
_WORKERS: Final = ("/multiprocessing/", "/torch/utils/data/", "/concurrent/futures/", "/queue.py")
_LOCKS: Final = (
    "PyThread_acquire_lock",
    "acquire_timed",
    "rlock_acquire",
    "lock_PyThread_acquire_lock",
    "_PyMutex_Lock",
)
_MUTEXES: Final = ("__lll_lock_wait", "__GI___lll_lock_wait", "pthread_mutex_lock", "___pthread_mutex_lock")
_CONDITIONS: Final = ("pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait")


def cause_of_call(name: str) -> str:
    """Of a function of a vendor's library that takes long; "" of one that only queues work."""
    if name.startswith(_JITS):
        return COMPILE
    if name.startswith("nccl"):
        return COLLECTIVE
    if "Memcpy" in name:
        return "" if "Async" in name else DEVICE_COPY
    if any(part in name for part in ("Synchronize", "StreamQuery", "EventQuery")):
        return DEVICE_SYNC
    return DEVICE_MEMORY if any(part in name for part in ("Malloc", "Free", "MemAlloc")) else ""


def cause_of(
    frames: Sequence[Frame], *, syscall: str = "", file_call: str = "", state: str = "", call: str = ""
) -> str:
    """A key of :data:`CAUSES`, or :data:`IDLE`; "" of who runs. ``state``: of a wait."""
    if call:
        return cause_of_call(call)
    if _is_compiling(frames):
        return COMPILE
    if file_call:
        return _FILE_CALLS.get(file_call, FILE_CHANGE)
    names = {frame.name for frame in frames}
    python = [frame.file for frame in frames if frame.kind is Kind.PYTHON]
    if "[waiting for the GIL]" in names:
        return GIL
    if COLLECTORS & names:
        return GARBAGE_COLLECTION
    if syscall and any(file.endswith("/subprocess.py") for file in python):
        return SUBPROCESS
    if syscall in _CREATES:
        return SUBPROCESS
    if state == "runnable":
        return _runnable(names, syscall)
    waited = next((_WAITED[frame.name] for frame in frames if frame.name in _WAITED), "")
    found = waited or _CALLED.get(syscall, "")
    if found in (IDLE, INPUT, NETWORK) or _is_lock(frames) or syscall == "futex":
        if any(part in file for file in python for part in _WORKERS):
            return INPUT
        if any(file.endswith("/subprocess.py") for file in python):
            return SUBPROCESS
    if found:
        return found
    if _is_lock(frames):
        return IDLE if any(file.endswith("/threading.py") for file in python) else LOCK
    if FAULTS & names:
        return PAGE_FAULTS
    if syscall == "futex" or any(name.startswith(_CONDITIONS) for name in names):
        return IDLE
    if not syscall and not state:
        return ""
    return OTHER


def _is_compiling(frames: Sequence[Frame]) -> bool:
    return any(map(_compiles, frames))


@lru_cache(maxsize=4096)
def _compiles(frame: Frame) -> bool:
    if frame.kind is not Kind.PYTHON:
        return frame.name.startswith(_JITS)
    return any(part in frame.file and (not own or frame.name in own) for part, own in _COMPILING.items())


def _runnable(names: set[str], syscall: str) -> str:
    """Who is preempted in a call waits in that; who is preempted while it computes, for a CPU."""
    if FAULTS & names and "irqentry_exit_to_user_mode" not in names:
        return PAGE_FAULTS
    return _CALLED.get(syscall, "") or CPU_CONTENTION


def _is_lock(frames: Sequence[Frame]) -> bool:
    return any(
        frame.name.startswith((*_LOCKS, *_MUTEXES)) for frame in frames if frame.kind is not Kind.PYTHON
    )


_LIBRARIES: Final = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python3",
    "/lib64/python3",
    "<frozen ",
    "<string>",
)


_SHARED: Final = ("/lib/", "/lib64/", "/site-packages/", "/dist-packages/", "[")
_INTERPRETER: Final = re.compile(r"(?:.*/)?(?:lib)?python[0-9.]*(?:\.so.*)?")


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost Python frame of the program's own code; of a library's where there is no other.

    Where no Python runs: the innermost function of an executable, or of a library that is not installed as one.
    """
    python = [frame for frame in frames if frame.kind is Kind.PYTHON]
    if not python:
        return next(filter(_is_own_native, frames), None)
    own = (each for each in python if not any(part in each.file for part in _LIBRARIES))
    return next(own, python[0])


def own_path(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Names of the Python functions on a stack, the innermost first; where there are none, of the program's own."""
    python = tuple(frame.name for frame in frames if frame.kind is Kind.PYTHON)
    return python or tuple(frame.name for frame in frames if _is_own_native(frame))


def _is_own_native(frame: Frame) -> bool:
    return (
        frame.kind is Kind.NATIVE
        and bool(frame.file)
        and not frame.name.startswith("[")
        and not any(part in frame.file for part in _SHARED)
        and _INTERPRETER.fullmatch(frame.file) is None
    )


_SCHEDULING: Final = frozenset(
    (
        *(
            "schedule",
            "__schedule",
            "schedule_timeout",
            "io_schedule",
            "io_schedule_timeout",
            "preempt_schedule",
        ),
        *(
            "__cond_resched",
            "preempt_schedule_common",
            "preempt_schedule_thunk",
            "irqentry_exit_cond_resched",
        ),
        *(
            "irqentry_exit",
            "irqentry_exit_to_user_mode",
            "exit_to_user_mode_loop",
            "exit_to_user_mode_prepare",
        ),
        *("do_syscall_64", "x64_sys_call", "entry_SYSCALL_64_after_hwframe", "__do_sys_", "ret_from_fork"),
        *("asm_sysvec_apic_timer_interrupt", "sysvec_apic_timer_interrupt", "asm_common_interrupt"),
    )
)


def kernel_frames(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Names of the kernel's functions, the innermost first, without those of the scheduler and of entering it."""
    kernel = (frame.name for frame in frames if frame.kind is Kind.KERNEL)
    return tuple(
        name
        for name in kernel
        if name not in _SCHEDULING and not name.startswith(("[", "__x64_sys_", "asm_sysvec_", "sysvec_"))
    )
