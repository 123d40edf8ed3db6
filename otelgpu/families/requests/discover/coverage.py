"""What ``otelgpu check`` reports on requests: which of a process's connections are seen, and what hides others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.families.requests.protocols import BUILT_IN, installed
from otelgpu.kernel.features import Feature
from otelgpu.kernel.kernel_btf import has_typed_tracepoint
from otelgpu.processes.coverage import Blind, Findings, Inspection, Machine, Observed, file_names


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
    if process.io_uring:
        blind.append(
            Blind(
                what="requests that go through io_uring",
                why=f"it has {process.io_uring} io_uring(s), whose reads and writes make no system call",
                do="turn io_uring off in the server (Node.js and libuv: UV_USE_IO_URING=0)",
            )
        )
    if process.sockets:
        encrypted = _encrypted(process, machine)
        sees += encrypted.sees
        blind += encrypted.blind
        if one := _shared_threads(process):
            blind.append(one)
    return Findings(sees, blind)


def _encrypted(process: Observed, machine: Machine) -> Findings:
    """TLS, in clear where its library's functions can be probed at their returns."""
    sees: list[str] = []
    blind: list[Blind] = []
    if probed := [stack.name for stack in process.tls if stack.probed]:
        if machine.return_probes is False:
            why = "what SSL_read has read is known at its return only, and return probes are off (see above)"
            blind.append(Blind(what=f"what {file_names(probed)} encrypts", why=why, do=_END_TLS))
        else:
            sees.append(f"the same in TLS, as {file_names(probed)} gives and takes it in clear")
    if hidden := [stack.name for stack in process.tls if not stack.probed]:
        why = "no file exports its functions under OpenSSL's names, by which they would be found"
        blind.append(Blind(what=f"what {file_names(hidden)} encrypts, if anything", why=why, do=_END_TLS))
    return Findings(sees, blind)


_END_TLS: Final = "let a proxy in front of the service end TLS, or use a shared OpenSSL"


def _shared_threads(process: Observed) -> Blind | None:
    """Servers in which a thread works for several requests at a time."""
    loops = ("goroutines",) if process.is_go else process.event_loops
    if not loops:
        return None
    return Blind(
        what="which request a CUDA call belongs to, while requests overlap",
        why=f"with {file_names(loops)} a thread serves several requests at once, and a call names only its thread",
        do="nothing is lost: requests have their spans, and the calls are under 'unattributed gpu work'; "
        "a server with a thread per request gets the links, and one with opentelemetry-python by "
        "OTEL_PYTHON_CONTEXT=otelgpu (docs/bridge.md)",
    )


EXAMINATION: Final = Inspection(judge=judge, machine=examine_machine)
