"""The live side of family ``cuda``: CUDA runtimes that are linked into programs and libraries."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from otelgpu.kernel.loader import Image, LoadedFamily
from otelgpu.kernel.trap_cost import measure_trap
from otelgpu.model.profiling import DEVICE_PROFILES, ProfileKind
from otelgpu.model.settings import Settings
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
from otelgpu.processes.discovery import Choice, Discovery, Profiles
from otelgpu.processes.probes import ProbePlacer
from otelgpu.processes.process_probes import ProcessProbes

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

_LAUNCHES: Final = "launch_"
"""What the programs of launches are called that bpf/cuda has: they are hit by far the most."""
_FREQUENT: Final = ("CUDA_LAUNCH", "CUDA_GRAPH_LAUNCH", "CUDA_COPY", "CUDA_SET", "CUDA_EVENT")
"""Kinds of calls that no other is to be understood by: KINDS_FREQUENT of bpf/cuda, which counts them."""
_WORK_NS: Final = 400.0
"""What a launch's record costs beside the traps (docs/reference/measured/benchmarks.md, ``probe_cost``)."""


def _choose(settings: Settings) -> Choice:
    return Choice(constants={"count_frequent": int(settings.get("max_overhead", 0.0) > 0)})


def _frequent(image: Image) -> list[str]:
    """The functions that are called frequently."""
    kinds, apis = image.btf.enumerators("cuda_kind"), image.btf.enumerators("cuda_api")
    wanted, specs = {kinds[name] for name in _FREQUENT}, image.constants("specs", "spec")
    numbers = {name.removeprefix("API_"): number for name, number in apis.items() if number < len(specs)}
    return [symbol for symbol, number in numbers.items() if int(specs[number]["kind"]) in wanted]


def _watch(loaded: LoadedFamily, placer: ProbePlacer, settings: Settings) -> tuple[object, ...]:
    percent = settings.get("max_overhead", 0.0)
    if not percent:
        return ()
    table, key = loaded.map("frequent_hits"), struct.Struct("<I")
    programs = [each for each in loaded.programs if each.name.startswith(_LAUNCHES)]

    def read_hits() -> dict[int, int]:
        found = ((key.unpack(raw)[0], table.get(raw)) for raw in table.list_keys())
        return {tgid: int.from_bytes(hits, "little") for tgid, hits in found if hits is not None}

    placer.process_probes = ProcessProbes(
        _frequent(loaded.image),
        percent,
        lambda: measure_trap(programs) + _WORK_NS,
        read_hits,
        lambda tgid: table.delete(key.pack(tgid)),
    )
    return (placer.process_probes,)


DISCOVERY: Final = Discovery(
    choose=_choose,
    watch={"cuda": _watch},
    profiles=Profiles(kinds=_KINDS, suggested={DRIVER: DEVICE_PROFILES, "libcudart": DEVICE_PROFILES}),
    inspect=lambda: Inspection(judge=judge),
)
