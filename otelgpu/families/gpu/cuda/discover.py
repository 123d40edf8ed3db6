"""The live side of family ``cuda``: CUDA runtimes that are linked into programs and libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.model.profiling import DEVICE_PROFILES, ProfileKind
from otelgpu.processes.coverage import (
    Blind,
    EmbeddedRuntime,
    Findings,
    Inspection,
    Machine,
    Observed,
    file_names,
    is_seen,
)
from otelgpu.processes.discovery import Discovery, Profiles

DRIVER: Final = "libcuda"
"""Library name of the CUDA driver, through which every runtime goes."""


def judge(process: Observed, machine: Machine) -> Findings:
    """What is linked into other files and has no symbols: by what it asks of the driver."""
    if not machine.wanted:
        return Findings()
    nameless = [file for file in process.embedded if not file.symbols]
    if not nameless:
        return Findings()
    driver = any(library.name == DRIVER and is_seen(library) for library in process.libraries)
    if driver:
        paths = file_names([file.path for file in nameless])
        return Findings([f"what {paths} launch by a CUDA runtime of their own, as calls of the driver"])
    blind = [_static_program(file) for file in nameless if file.is_program]
    if others := [file.path for file in nameless if not file.is_program]:
        blind.append(_static_libraries(others))
    return Findings(blind=blind)


def _static_program(file: EmbeddedRuntime) -> Blind:
    state = "the program is stripped" if file.stripped else "its symbol table names none of the functions"
    return Blind(
        what=f"CUDA runtime calls of {file.path}",
        why=f"the runtime is linked into the program statically, and {state}",
        do="link it with -cudart shared, or keep its symbol table (no strip, no -s)",
    )


def _static_libraries(paths: Sequence[str]) -> Blind:
    return Blind(
        what=f"CUDA calls that {file_names(paths)} make by themselves",
        why="they bring a runtime of their own (libcudart_static), and no driver is mapped that could be probed",
        do="nothing while the process has no libcuda: it cannot reach a GPU; else see the line on libcuda above",
    )


_KINDS: Final = frozenset((*DEVICE_PROFILES, ProfileKind.NCCL))  # a collective's kernels are launched too

DISCOVERY: Final = Discovery(
    profiles=Profiles(kinds=_KINDS, suggested={DRIVER: DEVICE_PROFILES, "libcudart": DEVICE_PROFILES}),
    inspect=lambda: Inspection(judge=judge),
)
