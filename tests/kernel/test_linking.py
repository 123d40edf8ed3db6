"""However CUDA gets into a program: every call is seen once, under its name, with its kernel's name.

Each program (tests/fakes/programs) makes an exact number of calls; its runtime reaches the fake libcuda as
the real one does, so that a call recorded twice, or at the wrong level, shows.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.kernel.observing import OTELGPU, PROBED, Session, Span, Watch, probed, read_spans
from tests.rig import (
    PROGRAM_KINDS,
    ProgramKind,
    ProgramTruth,
    fake_cuda_path,
    fake_cudart_path,
    run_program,
    second_copy,
    start_program,
)

pytestmark = pytest.mark.long

COUNTS: Final = ("--launches=23", "--mallocs=7", "--copies=11", "--sets=5", "--synchronizations=3")
FULL_NAMES: Final = {
    "_Z10scale_rowsPfi": "scale_rows(float*, int)",
    "_Z11sum_columnsPKfPfi": "sum_columns(float const*, float*, int)",
    "_Z9flash_fwdPKfPfi": "flash_fwd(float const*, float*, int)",
}
LATE: Final[tuple[ProgramKind, ...]] = ("late", "two_copies", "stripped", "ctypes")
"""What opens, while it runs, the library that is to be seen: held at the mapping, nothing is missed."""
ATTACHABLE: Final[tuple[ProgramKind, ...]] = tuple(kind for kind in PROGRAM_KINDS if kind != "fork_exec")


def options(kind: ProgramKind) -> tuple[str, ...]:
    if kind == "ctypes":
        return COUNTS[:2]
    # A program that ends within milliseconds of its exec may leave no map to name its kernels by.
    return (*COUNTS, "--linger-ms=200")


def expected(kind: ProgramKind, said: ProgramTruth) -> dict[str, int]:
    """The calls that can be seen: in a stripped program those into libcuda, else the outermost."""
    return probed(dict(said.driver_calls if kind == "stripped" else said.calls))


def hold(kind: ProgramKind) -> tuple[str, ...]:
    return ("--hold-on-load",) if kind in LATE else ()


def function_of(span: Span) -> str:
    return str(span["name"]).split()[0]


def calls_of(spans: list[Span], pid: int) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for span in spans:
        if span["resource"]["process.pid"] == pid and function_of(span) in PROBED:
            calls[function_of(span)] += span["attributes"].get("otelgpu.count", 1)
    return dict(calls)


def kernels_of(spans: list[Span], pid: int) -> dict[str, int]:
    """Launches by full kernel name."""
    kernels: Counter[str] = Counter()
    for span in spans:
        if span["resource"]["process.pid"] == pid and "LaunchKernel" in function_of(span):
            name = span["attributes"].get("cuda.kernel.name", "")
            kernels[name] += span["attributes"].get("otelgpu.count", 1)
    return dict(kernels)


def named(said: ProgramTruth) -> dict[str, int]:
    return {FULL_NAMES.get(name, name): count for name, count in said.kernels.items()}


@pytest.mark.parametrize("kind", PROGRAM_KINDS)
def test_run_sees_every_call_and_names_every_kernel(kind: ProgramKind, tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    reported = run_program(
        kind,
        *options(kind),
        prefix=(OTELGPU, "run", *hold(kind), "--detail=all", "--quiet", f"--export=file:{traces}", "--"),
        ledger=tmp_path / "ledger.jsonl",
    )
    spans = read_spans(traces)
    assert len(reported) == (2 if kind == "fork_exec" else 1)
    for said in reported:
        assert calls_of(spans, said.pid) == expected(kind, said)
        if kind == "ctypes":  # it launches an address that is no function
            (unknown,) = kernels_of(spans, said.pid)
            assert unknown.startswith("[unknown]")
        else:
            assert kernels_of(spans, said.pid) == named(said)


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> dict[ProgramKind, tuple[ProgramTruth, list[Span]]]:
    """What programs did that ran already, and what was seen: a session for those that are held, one for the others."""
    found: dict[ProgramKind, tuple[ProgramTruth, list[Span]]] = {}
    for held in ((), ("--hold-on-load",)):
        folder = tmp_path_factory.mktemp("attached")
        kinds = [kind for kind in ATTACHABLE if hold(kind) == held]
        with ExitStack() as stack:
            programs = [
                stack.enter_context(start_program(kind, *options(kind), ledger=folder / f"{kind}.jsonl"))
                for kind in kinds
            ]
            pids = [f"-p{program.pid}" for program in programs]
            stack.enter_context(
                Session("attach", *held, "--detail=all", *pids, traces=folder / "traces.jsonl")
            )
            reported = [program.finish() for program in programs]
        spans = read_spans(folder / "traces.jsonl")
        found |= {kind: (said, spans) for kind, (said,) in zip(kinds, reported, strict=True)}
    return found


@pytest.mark.parametrize("kind", ATTACHABLE)
def test_attach_sees_every_call_of_a_program_that_already_runs(
    kind: ProgramKind, attached: dict[ProgramKind, tuple[ProgramTruth, list[Span]]]
) -> None:
    said, spans = attached[kind]
    assert calls_of(spans, said.pid) == expected(kind, said)
    if kind != "ctypes":
        assert kernels_of(spans, said.pid) == named(said)


@pytest.mark.parametrize("kind", ["graph"])
def test_a_graph_launch_reports_how_many_nodes_it_stands_for(watching: Watch, kind: ProgramKind) -> None:
    with start_program(kind) as program:
        watching.observe(program.pid)
        (said,) = watching.during(program.finish)
    launches = watching.column("cuda_graph_launch", "extra")
    assert Counter(launches.tolist()) == {said.graph["nodes"]: said.graph["launches"]}


@pytest.mark.parametrize("kind", ["shared", "static", "static_library", "two_copies"])
def test_what_the_runtime_asks_of_the_driver_is_not_recorded_again(
    watching: Watch, kind: ProgramKind, tmp_path: Path
) -> None:
    for library in (fake_cudart_path(), fake_cuda_path(), second_copy()):
        watching.source.prepare_file(library)  # nothing here is about libraries that come late
    with start_program(kind, *COUNTS, ledger=tmp_path / "ledger.jsonl") as program:
        watching.observe(program.pid)
        (said,) = watching.during(program.finish)
    assert said.driver_calls["cuLaunchKernel"] == said.calls["cudaLaunchKernel"]
    seen = watching.calls(said.pid)
    assert seen == probed(dict(said.calls))
    assert not [name for name in seen if not name.startswith("cuda")]
