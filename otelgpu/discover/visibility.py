"""What can be seen of a process, what is blind, why, and what to do: the verdicts of ``otelgpu check``.

In: :class:`Machine` and :class:`Observed`, facts that others gathered. Out: a :class:`Verdict` for each
process. Nothing is opened or asked here, so that every rule can be tried with facts made up in a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from otelgpu.model.resource import AttributeValue

SECCOMP_FILTER: Final = 2
"""``Seccomp:`` of proc_pid_status(5): SECCOMP_MODE_FILTER."""

DRIVER: Final = "libcuda"
"""Library stem of the CUDA driver, through which every runtime goes."""

TLS: Final = "libssl"
"""Library stem of OpenSSL, whose functions show what it encrypts."""

NCCL: Final = "libnccl"
VERBS: Final = "libibverbs"
"""Library stems of NCCL and of the RDMA verbs."""

TORCH: Final = "libc10"
"""Library stem of PyTorch's core, to which its allocators report."""

_SHOWN_NAMES: Final = 6  # of a list of files in one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the kernel, the privileges and the settings allow.

    ``wanted``: stem of a GPU library → symbols that some probe is for. ``http``: whether requests are wanted;
    ``syscalls``: whether the tracepoints that show them exist. ``return_probes``: None when not tried.
    """

    wanted: Mapping[str, frozenset[str]]
    http: bool = True
    syscalls: bool = True
    return_probes: bool | None = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A mapped file that probes are for. ``symbols``: those of the wanted that it has.

    ``error``: why it could not be read, or "". ``refusal``: what the kernel said to a probe on it, or "".
    """

    path: str
    stem: str
    inode: int
    deleted: bool = False
    symbols: tuple[str, ...] = ()
    error: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRuntime:
    """A mapped file with GPU code in it that does not use a shared CUDA runtime, so it brings its own.

    ``symbols``: the wanted ones that a symbol table still names. ``stripped``: it has no ``.symtab``.
    What such a runtime does is seen as calls of the driver all the same, where that can be probed.
    """

    path: str
    is_program: bool
    symbols: tuple[str, ...] = ()
    stripped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsStack:
    """Something mapped that can encrypt. ``probed``: it exports OpenSSL's functions, which have probes."""

    name: str
    probed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCopy:
    """A mapped file with NCCL in it. ``version``: "" where it tells none; ``layout``: how communicators are known."""

    path: str
    version: str
    layout: Literal["listed", "debug_info", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """RDMA devices that a process has open, of one provider. ``refusal``: why their functions get no probes, or ""."""

    provider: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One process at one moment.

    ``closed``: "denied" when its mappings may not be read, "empty" when it has none. ``libraries``: the CUDA
    driver among them. ``tls``: what could encrypt. ``event_loops``: those loaded, by name. ``io_uring``: its
    rings. ``connections``: accepted and open now; ``sockets``: all it has. ``devices``: of RDMA, one for each provider.
    ``identity``: where it runs, and how that is known. ``claimed``: where it says that it runs, where it is not so.
    """

    pid: int
    name: str
    executable: str
    ns_pids: tuple[int, ...] = ()
    container_id: str = ""
    seccomp: int = 0
    is_go: bool = False
    closed: Literal["", "denied", "empty"] = ""
    libraries: tuple[Library, ...] = ()
    embedded: tuple[EmbeddedRuntime, ...] = ()
    tls: tuple[TlsStack, ...] = ()
    event_loops: tuple[str, ...] = ()
    io_uring: int = 0
    connections: int = 0
    sockets: int = 0
    nccl: tuple[NcclCopy, ...] = ()
    devices: tuple[OpenDevice, ...] = ()
    identity: tuple[tuple[str, AttributeValue, str], ...] = ()
    claimed: tuple[tuple[str, AttributeValue], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blind:
    """Something that happens unseen: ``what``, ``why`` that is so, and what the user can ``do``."""

    what: str
    why: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What ``otelgpu check`` says about one process. ``found`` is False when there is no such process."""

    pid: int
    found: bool = True
    sees: tuple[str, ...] = ()
    blind: tuple[Blind, ...] = ()
    process: Observed | None = field(default=None, repr=False)


def judge(process: Observed, machine: Machine) -> Verdict:
    """Apply every rule to one process."""
    if process.closed:
        return Verdict(pid=process.pid, process=process, blind=(_closed(process),))
    sees: list[str] = []
    blind: list[Blind] = []
    for part in (_libraries, _own_runtimes, _communicators, _rdma, _tensors, _returns, _requests):
        found, missed = part(process, machine)
        sees += found
        blind += missed
    return Verdict(pid=process.pid, process=process, sees=tuple(sees), blind=tuple(blind))


def gone(pid: int) -> Verdict:
    """For a process that ended, or never was."""
    missing = Blind(
        what="everything", why=f"there is no process {pid} (any more)", do="list processes with: ps -e"
    )
    return Verdict(pid=pid, found=False, blind=(missing,))


def is_thread(pid: int, tgid: int) -> Verdict:
    """For a number that names a thread."""
    why = f"{pid} is a thread of process {tgid}"
    wrong = Blind(what="everything", why=why, do=f"give the process: -p {tgid}")
    return Verdict(pid=pid, found=False, blind=(wrong,))


def _closed(process: Observed) -> Blind:
    if process.closed == "empty":
        why = "it has no program mapped: it is a kernel thread, or it is ending"
        return Blind(what="everything", why=why, do="nothing: there is nothing to see in it")
    return Blind(
        what="everything",
        why="what it has mapped may not be read by this user",
        do="run otelgpu as root, or grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
    )


_Found = tuple[list[str], list[Blind]]


def _libraries(process: Observed, machine: Machine) -> _Found:
    """Calls of the wanted libraries, each copy for itself."""
    sees: list[str] = []
    blind: list[Blind] = []
    for library in process.libraries:
        wanted = machine.wanted.get(library.stem, frozenset())
        where = library.path + (" (deleted on disk, still mapped)" if library.deleted else "")
        what = f"calls of {where}"
        if library.error:
            blind.append(
                Blind(what=what, why=library.error, do="run as root; if the file is damaged, reinstall it")
            )
        elif library.refusal:
            blind.append(
                Blind(what=what, why=f"the kernel takes no probe on it: {library.refusal}", do=_MOVE)
            )
        elif not library.symbols and library.stem == TORCH:
            why = "it reports what it gives to tensors in no way that is known: PyTorch 1.10 to 2.15 do"
            blind.append(Blind(what=f"tensors' memory by {where}", why=why, do="use such a version"))
        elif not library.symbols:
            why = f"it exports none of the {len(wanted)} functions that probes are for"
            blind.append(Blind(what=what, why=why, do="use the vendor's own build of the library"))
        elif library.stem != TORCH:  # each version has some of them
            sees.append(f"{_of(library.symbols, wanted)} functions of {where}")
    if machine.wanted.keys() - {TORCH} and not (process.libraries or process.embedded):
        stems = " or ".join(sorted(machine.wanted.keys() - {TORCH}))
        sees.append(f"{stems}: not loaded; caught when the process maps it")
    return sees, blind


def _own_runtimes(process: Observed, machine: Machine) -> _Found:
    """What is linked into other files: by its symbols, else by what it asks of the driver."""
    if not machine.wanted:
        return [], []
    sees = [
        f"{len(file.symbols)} functions linked statically into {file.path}"
        for file in process.embedded
        if file.symbols
    ]
    nameless = [file for file in process.embedded if not file.symbols]
    if not nameless:
        return sees, []
    driver = any(library.stem == DRIVER and _is_seen(library) for library in process.libraries)
    if driver:
        paths = _names([file.path for file in nameless])
        return [*sees, f"what {paths} launch by a CUDA runtime of their own, as calls of the driver"], []
    blind = [_static_program(file) for file in nameless if file.is_program]
    if others := [file.path for file in nameless if not file.is_program]:
        blind.append(_static_libraries(others))
    return sees, blind


def _is_seen(library: Library) -> bool:
    return bool(library.symbols) and not library.error and not library.refusal


_MOVE: Final = "put the file on an ordinary disk file system (ext4, xfs, overlayfs, tmpfs)"


def _static_program(file: EmbeddedRuntime) -> Blind:
    state = "the program is stripped" if file.stripped else "its symbol table names none of the functions"
    return Blind(
        what=f"CUDA runtime calls of {file.path}",
        why=f"the runtime is linked into the program statically, and {state}",
        do="link it with -cudart shared, or keep its symbol table (no strip, no -s)",
    )


def _static_libraries(paths: Sequence[str]) -> Blind:
    return Blind(
        what=f"CUDA calls that {_names(paths)} make by themselves",
        why="they bring a runtime of their own (libcudart_static), and no driver is mapped that could be probed",
        do="nothing while the process has no libcuda: it cannot reach a GPU; else see the line on libcuda above",
    )


def _communicators(process: Observed, machine: Machine) -> _Found:
    """Which communicator a call of NCCL is of: read of a structure that differs from version to version."""
    sees: list[str] = []
    blind: list[Blind] = []
    for copy in process.nccl:
        what = f"communicators of NCCL {copy.version or 'of no known version'} in {copy.path}"
        if copy.layout == "unknown":
            why = "how this version lays them out is not known, and the file has no debugging information"
            do = "nothing where one is made while observed, which tells the layout; else use a version of docs/nccl.md"
            blind.append(Blind(what=f"hash, rank and sequence of {what}", why=why, do=do))
        else:
            how = "" if copy.layout == "listed" else ", by the file's debugging information"
            sees.append(what + how)
    return sees, blind


def _rdma(process: Observed, machine: Machine) -> _Found:
    """Posts and polls, which are functions of a device's provider and no library's exports."""
    if not any(library.stem == VERBS and _is_seen(library) for library in process.libraries):
        return [], []
    if not process.devices:
        return ["RDMA posts and polls of devices that it opens: none was found open"], []
    blind = [
        Blind(what="RDMA posts and polls", why=device.refusal, do=_PROVIDER)
        for device in process.devices
        if device.refusal
    ]
    return [f"RDMA posts and polls by {each.provider}" for each in process.devices if each.provider], blind


def _tensors(process: Observed, machine: Machine) -> _Found:
    """What PyTorch's allocators give to tensors."""
    return [
        f"tensors' memory by PyTorch's allocator in {library.path}, where it is asked for: "
        "profiles of mem, or family torch"
        for library in process.libraries
        if library.stem == TORCH and _is_seen(library)
    ], []


_PROVIDER: Final = "use a provider of rdma-core or of the vendor's packages; ports are counted all the same"


def _returns(process: Observed, machine: Machine) -> _Found:
    """Durations and results need return probes, which harm on some kernels."""
    probed = any(lib.symbols for lib in process.libraries) or any(e.symbols for e in process.embedded)
    if machine.return_probes is not False or not probed:
        return [], []
    why = "on this kernel a return probe gets a process with a seccomp filter killed, so none is used"
    if process.seccomp == SECCOMP_FILTER:
        why += "; this process has such a filter"
        do = "update the kernel; do not set return_probes: on while this process runs"
    else:
        do = "update the kernel; or set return_probes: on if no process with a filter maps these libraries"
    return [], [Blind(what="durations and results of library calls", why=why, do=do)]


def _requests(process: Observed, machine: Machine) -> _Found:
    """HTTP on server sockets."""
    if not machine.http:
        return [], []
    if not machine.syscalls:
        missing = Blind(
            what="HTTP requests",
            why="the kernel's syscall tracepoints are not there",
            do="mount tracefs; see the machine's part above",
        )
        return [], [missing]
    open_now = f"{process.connections} open now" if process.connections else "none open now"
    sees = [f"HTTP, gRPC, WebSocket and ZeroMQ on its connections, accepted ({open_now}) and made"]
    blind = []
    if process.io_uring:
        blind.append(
            Blind(
                what="requests that go through io_uring",
                why=f"it has {process.io_uring} io_uring(s), whose reads and writes make no system call",
                do="turn io_uring off in the server (Node.js and libuv: UV_USE_IO_URING=0)",
            )
        )
    if process.sockets:
        seen, unseen = _encrypted(process, machine)
        sees += seen
        blind += unseen
        if one := _shared_threads(process):
            blind.append(one)
    return sees, blind


def _encrypted(process: Observed, machine: Machine) -> _Found:
    """TLS, in clear where its library's functions can be probed at their returns."""
    sees: list[str] = []
    blind: list[Blind] = []
    if probed := [stack.name for stack in process.tls if stack.probed]:
        if machine.return_probes is False:
            why = "what SSL_read has read is known at its return only, and return probes are off (see above)"
            blind.append(Blind(what=f"what {_names(probed)} encrypts", why=why, do=_END_TLS))
        else:
            sees.append(f"the same in TLS, as {_names(probed)} gives and takes it in clear")
    if hidden := [stack.name for stack in process.tls if not stack.probed]:
        why = "no file exports its functions under OpenSSL's names, by which they would be found"
        blind.append(Blind(what=f"what {_names(hidden)} encrypts, if anything", why=why, do=_END_TLS))
    return sees, blind


_END_TLS: Final = "let a proxy in front of the service end TLS, or use a shared OpenSSL"


def _shared_threads(process: Observed) -> Blind | None:
    """Servers in which a thread works for several requests at a time."""
    loops = ("goroutines",) if process.is_go else process.event_loops
    if not loops:
        return None
    return Blind(
        what="which request a CUDA call belongs to, while requests overlap",
        why=f"with {_names(loops)} a thread serves several requests at once, and a call names only its thread",
        do="nothing is lost: requests have their spans, and the calls are under 'unlinked gpu work'; "
        "a server with a thread per request gets the links, and one with opentelemetry-python by "
        "OTEL_PYTHON_CONTEXT=otelgpu (docs/bridge.md)",
    )


def _of(found: Sequence[str], wanted: frozenset[str]) -> str:
    return f"all {len(wanted)}" if len(found) == len(wanted) else f"{len(found)} of {len(wanted)}"


def _names(paths: Sequence[str]) -> str:
    """File names in a sentence, the first few of them."""
    shown = list(dict.fromkeys(path.rpartition("/")[2] or path for path in paths))
    more = len(shown) - _SHOWN_NAMES
    return ", ".join(shown[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
