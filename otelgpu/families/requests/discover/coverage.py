"""What ``otelgpu check`` reports on requests: which of a process's connections are seen, and what hides others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.families.requests.protocols import BUILT_IN, installed
from otelgpu.kernel.features import Feature
from otelgpu.kernel.kernel_btf import has_typed_tracepoint
from otelgpu.model.runtimes import CPYTHON, RUNTIMES, multiplexing
from otelgpu.processes.coverage import Blind, Findings, Inspection, Machine, Observed, file_names
from otelgpu.processes.linked_tls import GO


def examine_machine() -> Sequence[Feature]:
    """Arrival times, and protocols."""
    return _arrivals(), _protocols()


def _arrivals() -> Feature:
    present = has_typed_tracepoint("tcp_probe")
    return Feature(
        name="arrival times",
        present=present,
        required=False,
        detail="tracepoint tcp/tcp_probe" if present else "the kernel has no tracepoint tcp/tcp_probe",
        consequence="a request begins when it is read: what it waited in the socket before is not known",
        remedy="use a kernel of 4.16 or later built with CONFIG_TRACEPOINTS=y and CONFIG_DEBUG_INFO_BTF=y",
    )


def _protocols() -> Feature:
    plugins = installed()
    left_out = "; ".join(f"{name}: {_one_line(why)}" for name, why in plugins.failed.items())
    known = ", ".join(spec.name for spec in (*BUILT_IN, *plugins.specs))
    return Feature(
        name="protocols",
        present=not left_out,
        required=False,
        detail=f"left out: {left_out}" if left_out else known,
        consequence="connections of a plug-in's protocol are not followed",
        remedy="mend the plug-in, or pip uninstall it",
    )


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def judge(process: Observed, machine: Machine) -> Findings:
    """HTTP on server sockets."""
    if not machine.syscalls:
        missing = Blind(
            what="HTTP requests",
            why="the kernel's syscall tracepoints are not there",
            do="mount tracefs; see the machine's part above",
        )
        return Findings(blind=[missing])
    open_now = f"{process.connections} open now" if process.connections else "none open now"
    sees = [f"HTTP, gRPC, WebSocket and ZeroMQ on its connections, accepted ({open_now}) and made"]
    blind = []
    if process.io_uring and process.has_libuv:
        sees.append(
            f"all on its sockets, though it has {process.io_uring} io_uring(s): libuv has files and epoll_ctl in these"
        )
    elif process.io_uring:
        blind.append(
            Blind(
                what="requests that go through io_uring",
                why=f"it has {process.io_uring} io_uring(s), whose reads and writes make no system call",
                do="turn io_uring off in the server",
            )
        )
    if process.sockets:
        encrypted = _encrypted(process, machine)
        sees += encrypted.sees
        blind += encrypted.blind
        shared = _shared_threads(process)
        sees += shared.sees
        blind += shared.blind
    return Findings(sees, blind)


def _encrypted(process: Observed, machine: Machine) -> Findings:
    """TLS, in clear where its library's functions can be probed at their returns."""
    sees: list[str] = []
    blind: list[Blind] = []
    probed = [stack for stack in process.tls if stack.probed]
    off = [stack.name for stack in probed if stack.by_return_probes and machine.return_probes is False]
    if off:
        why = "what SSL_read has read is known at its return only, and return probes are off (see above)"
        blind.append(Blind(what=f"what {file_names(off)} encrypts", why=why, do=_END_TLS))
    if clear := [stack.name for stack in probed if stack.name not in off]:
        sees.append(f"the same in TLS, as {file_names(clear)} gives and takes it in clear")
    hidden = [stack.name for stack in process.tls if not stack.probed]
    of_go = [name for name in hidden if name.startswith(GO)]
    for names, why in (
        ([name for name in hidden if name not in of_go], _NO_NAMES),
        (of_go, _NOT_UNDERSTOOD),
    ):
        if names:
            blind.append(Blind(what=f"what {file_names(names)} encrypts, if anything", why=why, do=_END_TLS))
    return Findings(sees, blind)


_NO_NAMES: Final = "no file exports its functions under OpenSSL's names, by which they would be found"
_NOT_UNDERSTOOD: Final = (
    "Go's table of functions, or their code, is not of a form that is known (x86-64, Go 1.20 and later)"
)
_END_TLS: Final = "let a proxy in front of the service end TLS, or use a shared OpenSSL"


def _shared_threads(process: Observed) -> Findings:
    """Whose work a call is where there is no context that is exact."""
    found = multiplexing(process.runtimes)
    if not found:
        by_thread = CPYTHON in process.runtimes
        return Findings(
            [f"which request a call belongs to, by its thread: {_LABELS[CPYTHON]}"] if by_thread else ()
        )
    labels = ", ".join(_LABELS[name] for name in found)
    why = "; ".join(f"{_LABELS[name]} {RUNTIMES[name].does}" for name in found)
    remedies = dict.fromkeys(RUNTIMES[name].remedy for name in found)
    return Findings(
        blind=[
            Blind(
                what=f"which request a call belongs to, by its thread ({labels})",
                why=f"{why}, and a call names only its thread",
                do="nothing is lost: requests have their spans, and the calls are under 'unattributed gpu work', as "
                f"`multiplexed`. For links: {'; or '.join(remedies)}",
            )
        ]
    )


_LABELS: Final = {name: runtime.label for name, runtime in RUNTIMES.items()}


EXAMINATION: Final = Inspection(judge=judge, machine=examine_machine)
