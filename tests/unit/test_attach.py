"""``SEC()`` names say where a program belongs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.kernel.attach import (
    Hook,
    attach_hooks,
    attach_tracepoints,
    expand,
    hooks,
    hooks_of,
    is_for,
    places,
)
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import entries_of, needed_programs, read_image

ENTRY_ONLY = 1 << 32


@dataclass
class Program:
    """Stands for a loaded program; remembers where it was put. One link that has a refused offset is refused."""

    section: str
    refused: tuple[int, ...] = ()
    put: list[Any] = field(default_factory=list)

    @property
    def probes(self) -> str:
        return self.section.partition("/")[0]

    def attach(self) -> str:
        self.put.append(())
        return self.section

    def attach_tracepoint(self, category: str, name: str) -> str:
        self.put.append((category, name))
        return name

    def attach_uprobes(
        self, path: str, offsets: Sequence[int], cookies: Sequence[int], *, tgid: int = -1
    ) -> list[str]:
        bad = set(self.refused) & set(offsets)
        if bad:
            raise BpfError(f"no probe at {sorted(bad)}")
        self.put.append((path, tuple(offsets), tuple(cookies)))
        return [f"{self.probes}@{','.join(map(str, offsets))}"]


def found(*sections: str, numbers: dict[str, int] | None = None) -> list[Hook]:
    return hooks([Program(section) for section in sections], numbers)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("sys_exit_read,write", ["sys_exit_read", "sys_exit_write"]),
        ("sched_process_exec", ["sched_process_exec"]),
        ("sys_enter_accept,accept4,close", ["sys_enter_accept", "sys_enter_accept4", "sys_enter_close"]),
        ("single", ["single"]),
    ],
)
def test_a_list_of_tracepoints_shares_the_prefix_of_its_first(listed: str, names: list[str]) -> None:
    assert expand(listed) == names


def test_a_section_lists_symbols_of_several_libraries() -> None:
    assert places("uprobe/liba:x,y,;libb:z") == [("liba", "x"), ("liba", "y"), ("libb", "z")]
    assert places("uretprobe/trial") == []


def test_only_probes_of_libraries_are_hooks() -> None:
    sections = (
        "uprobe/libcudart:cudaFree",
        "tp_btf/sched_process_exit",
        "tracepoint/syscalls/sys_exit_read",
        "uprobe",
    )
    assert [(hook.library, hook.symbol, hook.is_return) for hook in found(*sections)] == [
        ("libcudart", "cudaFree", False)
    ]


def test_returns_are_attached_before_entries() -> None:
    sections = ("uprobe/libcudart:a,b", "uretprobe/libcudart:b,a", "usession/libcudart:c")
    assert [(h.program.probes, h.symbol) for h in found(*sections)] == [
        ("uretprobe", "b"),
        ("uretprobe", "a"),
        ("usession", "c"),
        ("uprobe", "a"),
        ("uprobe", "b"),
    ]


def attached(wanted: Iterable[Hook], offsets: dict[str, int], **options: Any) -> tuple[list[Any], list[Any]]:
    return attach_hooks(wanted, "/lib/x.so", offsets, **({"with_returns": True} | options))


def test_the_symbols_of_a_program_share_a_link_and_each_has_its_cookie() -> None:
    program = Program("uprobe/libcudart:a,b,c")
    wanted = hooks([program], {"a": 7, "b": 9})  # type: ignore[list-item]
    assert attached(wanted, {"a": 64, "b": 32, "c": 96}) == (["uprobe@64,32,96"], [])
    assert program.put == [("/lib/x.so", (64, 32, 96), (7, 9, 0))]


def test_what_is_to_be_said_of_a_file_is_in_the_cookies_of_its_library() -> None:
    program = Program("uprobe/libnccl:a;libcuda:b")
    wanted = hooks([program], {"a": 7, "b": 9})  # type: ignore[list-item]
    attached(wanted, {"a": 64, "b": 32}, file_cookies={"libnccl": 5}, with_returns=False)
    assert program.put[0][2] == (5 << 33 | ENTRY_ONLY | 7, ENTRY_ONLY | 9)


def test_the_cookies_of_cuda_are_the_numbers_of_its_functions() -> None:
    loaded = SimpleNamespace(
        family="cuda", image=read_image("cuda"), programs=[Program("usession/libcudart:cudaMalloc")]
    )
    number = loaded.image.btf.enumerators("cuda_api")["API_cudaMalloc"]
    assert [hook.cookie for hook in hooks_of(loaded)] == [number]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("section", "only"),
    [
        ("uprobe/libgo:a", True),
        ("usession/libgo:a;go:b,c", True),
        ("uprobe/libgo:a;libssl:b", False),
        ("uretprobe/libssl:b", False),
        ("uretprobe/trial", False),
        ("tracepoint/syscalls/sys_enter_read", False),
        ("tp_btf/go:a", False),
    ],
)
def test_a_program_is_for_some_libraries_alone(section: str, only: bool) -> None:
    assert is_for(Program(section), {"libgo", "go"}) == only  # type: ignore[arg-type]


def test_a_symbol_that_the_file_lacks_is_passed_over() -> None:
    links, refused = attached(found("uprobe/libcudart:here,not"), {"here": 64})
    assert (links, refused) == (["uprobe@64"], [])


def test_names_of_one_function_are_probed_once() -> None:
    sections = ("uprobe/l:a,alias", "uretprobe/l:a,alias", "uprobe/l:later")
    links, _ = attached(found(*sections), {"a": 64, "alias": 64, "later": 64})
    assert links == ["uretprobe@64", "uprobe@64"]


def test_without_returns_only_entries_are_attached_and_reported_so() -> None:
    entry, both = Program("uprobe/l:a"), Program("usession/l:b")
    wanted = hooks([Program("uretprobe/l:a"), entry, both], {"a": 3, "b": 4})  # type: ignore[list-item]
    links, _ = attached(wanted, {"a": 64, "b": 32}, with_returns=False)
    assert links == ["usession@32", "uprobe@64"]
    assert [program.put[0][2] for program in (entry, both)] == [(ENTRY_ONLY | 3,), (ENTRY_ONLY | 4,)]


@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_probes_that_the_kernel_refuses_do_not_lose_the_others(count: int, refused: set[int]) -> None:
    symbols = [f"s{i}" for i in range(count)]
    program = Program(f"uprobe/l:{','.join(symbols)}", refused=tuple(refused))
    wanted = hooks([program], {symbol: i for i, symbol in enumerate(symbols)})  # type: ignore[list-item]
    _, errors = attached(wanted, {symbol: i for i, symbol in enumerate(symbols)})
    placed = [
        (offset, cookie)
        for _, offsets, cookies in program.put
        for offset, cookie in zip(offsets, cookies, strict=True)
    ]
    assert placed == [(i, i) for i in range(count) if i not in refused]
    assert [str(error) for error in errors] == [f"no probe at [{i}]" for i in range(count) if i in refused]


PROGRAMS = {
    "both": "usession/l:a",
    "entry": "uprobe/l:a",
    "return": "uretprobe/l:a",
    "reported_at_entry": "uprobe/l:b",
    "trial": "uretprobe/trial",
    "fork": "tp_btf/sched_process_fork",
}


@pytest.mark.parametrize(
    ("sessions", "returns", "chosen"),
    [
        (True, True, {"both"}),
        (False, True, {"entry", "return"}),
        (True, False, {"entry"}),
        (False, False, {"entry"}),
    ],
)
def test_of_programs_for_the_same_functions_those_are_loaded_that_the_kernel_can_attach(
    sessions: bool, returns: bool, chosen: set[str]
) -> None:
    loaded = needed_programs(PROGRAMS, sessions=sessions, returns=returns)
    assert loaded == chosen | {"reported_at_entry", "trial", "fork"}


def test_tracepoints_and_typed_tracepoints_are_attached_and_kept() -> None:
    @dataclass
    class Loaded:
        programs: list[Program]
        links: list[Any] = field(default_factory=list)

    sections = ("tracepoint/syscalls/sys_exit_read,write", "tp_btf/sched_process_exit", "uprobe/l:a")
    loaded = Loaded([Program(section) for section in sections])
    attach_tracepoints(loaded)  # type: ignore[arg-type]
    assert loaded.links == ["sys_exit_read", "sys_exit_write", "tp_btf/sched_process_exit"]
    assert loaded.programs[-1].put == []


@pytest.mark.parametrize(
    ("processors", "entries"), [(1, 4096), (8, 4096), (16, 8192), (32, 16384), (512, 16384)]
)
def test_tables_of_what_is_under_way_are_as_large_as_the_machine(processors: int, entries: int) -> None:
    assert entries_of(16384, processors) == entries
