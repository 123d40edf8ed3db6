"""What can be seen of a process, what is blind, why, and what to do: the reports of ``otelgpu check``.

In: :class:`Machine` and :class:`Observed`, facts that others gathered. Out: a :class:`ProcessReport` for each
process: by the rules for any library here, and by those that families have. Nothing is opened or asked here, so that
every rule can be tried with facts made up in a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from otelgpu.processes.coverage import Blind, Findings, Inspection, Machine, Observed

SECCOMP_FILTER: Final = 2
"""``Seccomp:`` of proc_pid_status(5): SECCOMP_MODE_FILTER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """What ``otelgpu check`` says about one process. ``found`` is False when there is no such process."""

    pid: int
    found: bool = True
    sees: tuple[str, ...] = ()
    blind: tuple[Blind, ...] = ()
    process: Observed | None = field(default=None, repr=False)


def judge(process: Observed, machine: Machine, families: Sequence[Inspection]) -> ProcessReport:
    """Apply every rule to one process, those of ``families`` too."""
    if process.closed:
        return ProcessReport(pid=process.pid, process=process, blind=(_closed(process),))
    sees: list[str] = []
    blind: list[Blind] = []
    own = frozenset().union(*(family.libraries for family in families))
    for found in (
        _libraries(process, machine, own),
        _linked(process),
        _returns(process, machine),
        *(family.judge(process, machine) for family in families),
    ):
        sees += found.sees
        blind += found.blind
    return ProcessReport(pid=process.pid, process=process, sees=tuple(sees), blind=tuple(blind))


def gone(pid: int) -> ProcessReport:
    """For a process that ended, or never was."""
    missing = Blind(
        what="everything", why=f"there is no process {pid} (any more)", do="list processes with: ps -e"
    )
    return ProcessReport(pid=pid, found=False, blind=(missing,))


def is_thread(pid: int, tgid: int) -> ProcessReport:
    """For a number that names a thread."""
    why = f"{pid} is a thread of process {tgid}"
    wrong = Blind(what="everything", why=why, do=f"give the process: -p {tgid}")
    return ProcessReport(pid=pid, found=False, blind=(wrong,))


def _closed(process: Observed) -> Blind:
    if process.closed == "empty":
        why = "it has no program mapped: it is a kernel thread, or it is ending"
        return Blind(what="everything", why=why, do="nothing: there is nothing to see in it")
    return Blind(
        what="everything",
        why="what it has mapped may not be read by this user",
        do="run otelgpu as root, or grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
    )


def _libraries(process: Observed, machine: Machine, own: frozenset[str]) -> Findings:
    """Calls of the wanted libraries, each copy for itself. ``own``: names of those that families judge."""
    sees: list[str] = []
    blind: list[Blind] = []
    for library in process.libraries:
        wanted = machine.wanted.get(library.name, frozenset())
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
        elif library.name in own:
            continue
        elif not library.symbols:
            why = f"it exports none of the {len(wanted)} functions that probes are for"
            blind.append(Blind(what=what, why=why, do="use the vendor's own build of the library"))
        else:
            sees.append(f"{_of(library.symbols, wanted)} functions of {where}")
    if machine.wanted.keys() - own and not (process.libraries or process.embedded):
        names = " or ".join(sorted(machine.wanted.keys() - own))
        sees.append(f"{names}: not loaded; caught when the process maps it")
    return Findings(sees, blind)


def _linked(process: Observed) -> Findings:
    """What is linked into other files and has its symbols."""
    return Findings(
        [
            f"{len(file.symbols)} functions linked statically into {file.path}"
            for file in process.embedded
            if file.symbols
        ]
    )


_MOVE: Final = "put the file on an ordinary disk file system (ext4, xfs, overlayfs, tmpfs)"


def _returns(process: Observed, machine: Machine) -> Findings:
    """Durations and results need return probes, which harm on some kernels."""
    probed = any(lib.symbols for lib in process.libraries) or any(e.symbols for e in process.embedded)
    if machine.return_probes is not False or not probed:
        return Findings()
    why = "on this kernel a return probe gets a process with a seccomp filter killed, so none is used"
    if process.seccomp == SECCOMP_FILTER:
        why += "; this process has such a filter"
        do = "update the kernel; do not set return_probes: on while this process runs"
    else:
        do = "update the kernel; or set return_probes: on if no process with a filter maps these libraries"
    return Findings(blind=[Blind(what="durations and results of library calls", why=why, do=do)])


def _of(found: Sequence[str], wanted: frozenset[str]) -> str:
    return f"all {len(wanted)}" if len(found) == len(wanted) else f"{len(found)} of {len(wanted)}"
