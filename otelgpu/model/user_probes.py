"""Probes that a user asks for: where each one sits, what it reads, and what becomes of a hit.

They come from a file (:mod:`otelgpu.families.user_probes.probe_file`, docs/how-to/probes.md) and are placed by
:mod:`otelgpu.families.user_probes.discover.watcher`. A probe's *number* is its place in the session's list, from 1
on, and the ``api`` of its operations.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from msgspec import Struct

MOST_PROBES: Final = 255
MOST_ARGUMENTS: Final = 4


class ArgumentSource(IntEnum):
    """Where a value is read from: numbers of ``enum argument_source`` in bpf/probe/probe.h."""

    NONE = 0
    REGISTER = 1  # ``register`` itself
    MEMORY = 2  # at ``register`` + ``offset``
    CONSTANT = 3  # ``offset``
    FIELD = 4  # of a tracepoint: ``offset`` bytes into its record
    RESULT = 5  # what the function returned


REGISTERS: Final = (
    *("rdi", "rsi", "rdx", "rcx", "r8", "r9"),
    *("rax", "rbx", "rbp", "rsp", "r10", "r11", "r12", "r13", "r14", "r15"),
)
"""By number: the first six are those of a function's arguments (System V ABI, x86-64)."""


class Reading(Struct, frozen=True, kw_only=True):
    """How a value is fetched: ``size`` bytes (1, 2, 4 or 8), with its sign or without."""

    source: ArgumentSource
    size: int = 8
    signed: bool = False
    register: int = 0  # position in REGISTERS
    offset: int = 0


class Argument(Struct, frozen=True, kw_only=True):
    """A value that a probe reads. ``where``: ``arg1`` … ``arg24``, ``result``, a USDT argument, or a field's name."""

    name: str
    where: str
    size: int = 8
    signed: bool = False


class Functions(Struct, frozen=True, kw_only=True):
    """A function of a library or program, by the name that its symbol table has."""

    library: str  # a path as the process sees it, or a base name, which may have the wildcards of fnmatch
    symbol: str


class Usdt(Struct, frozen=True, kw_only=True):
    """A statically defined tracepoint of a library or program (``.note.stapsdt``).

    ``until``: what is there at one ``provider:name`` of the same function lasts until the thread comes to this one.
    """

    library: str
    provider: str
    name: str
    until: str = ""


class Tracepoint(Struct, frozen=True, kw_only=True):
    """One of the kernel's, as in tracefs: ``sched/sched_process_fork``."""

    category: str
    name: str


class Kprobe(Struct, frozen=True, kw_only=True):
    """A function of the kernel."""

    symbol: str


Target = Functions | Usdt | Tracepoint | Kprobe


class MetricOutput(Struct, frozen=True, kw_only=True):
    """Hits as a counter, or values of an argument as a counter or a histogram."""

    name: str
    unit: str = "1"
    histogram: bool = False
    value: str = ""  # name of an argument; "": one per hit, or of a histogram how long the call took


class UserProbe(Struct, frozen=True, kw_only=True):
    """One probe: what becomes of a hit is a span, a point of ``metric``, a sample of a profile, or several of them."""

    number: int
    name: str
    target: Target
    arguments: tuple[Argument, ...] = ()
    span: bool = False
    metric: MetricOutput | None = None
    profile: bool = False
    least_us: int = 0  # with ``until``: what lasts for less is no hit
    program: str = ""  # the function of the user's own program that runs in place of ours
    place: str = ""  # file and line where it was asked for

    @property
    def returns(self) -> bool:
        """Whether it lasts until the function returns."""
        return (
            isinstance(self.target, Functions)
            and not self.program
            and (
                self.span
                or any(argument.where == "result" for argument in self.arguments)
                or (self.metric is not None and self.metric.histogram and not self.metric.value)
            )
        )
