"""``SEC()`` names say where a program belongs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from otelgpu.kernel.attach import Hook, attach_hooks, attach_tracepoints, expand, hooks
from otelgpu.kernel.libbpf import BpfError


@dataclass
class Program:
    """Stands for a loaded program; remembers where it was put."""

    section: str
    refused: tuple[str, ...] = ()
    put: list[Any] = field(default_factory=list)

    def attach(self) -> str:
        self.put.append(())
        return self.section

    def attach_tracepoint(self, category: str, name: str) -> str:
        self.put.append((category, name))
        return name

    def attach_uprobe(self, path: str, offset: int, *, is_return: bool) -> str:
        if path in self.refused:
            raise BpfError(f"no probe on {path}")
        self.put.append((path, offset, is_return))
        return f"{self.section}@{offset}"


def found(*sections: str) -> list[Hook]:
    return hooks([Program(section) for section in sections])  # type: ignore[arg-type]


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


def test_only_probes_of_libraries_are_hooks() -> None:
    sections = (
        "uprobe/libcudart:cudaFree",
        "tp_btf/sched_process_exit",
        "tracepoint/syscalls/sys_exit_read",
        "uprobe",
    )
    assert [(hook.stem, hook.symbol, hook.is_return) for hook in found(*sections)] == [
        ("libcudart", "cudaFree", False)
    ]


def test_returns_are_attached_before_entries() -> None:
    sections = ("uprobe/libcudart:a", "uretprobe/libcudart:b", "uprobe/libcudart:b", "uretprobe/libcudart:a")
    assert [(h.is_return, h.symbol) for h in found(*sections)] == [
        (True, "a"),
        (True, "b"),
        (False, "a"),
        (False, "b"),
    ]


def attached(wanted: Iterable[Hook], offsets: dict[str, int], **options: bool) -> tuple[list[Any], list[Any]]:
    return attach_hooks(wanted, "/lib/x.so", offsets, **({"with_returns": True} | options))


def test_a_symbol_that_the_file_lacks_is_passed_over() -> None:
    links, refused = attached(found("uprobe/libcudart:here", "uprobe/libcudart:not"), {"here": 64})
    assert (links, refused) == (["uprobe/libcudart:here@64"], [])


def test_without_returns_only_entries_are_attached() -> None:
    sections = ("uprobe/libcudart:a", "uretprobe/libcudart:a")
    links, _ = attached(found(*sections), {"a": 64}, with_returns=False)
    assert links == ["uprobe/libcudart:a@64"]


def test_a_probe_that_the_kernel_refuses_does_not_stop_the_others() -> None:
    stubborn, willing = Program("uprobe/l:a", refused=("/lib/x.so",)), Program("uprobe/l:b")
    links, refused = attached(hooks([stubborn, willing]), {"a": 1, "b": 2})  # type: ignore[list-item]
    assert (links, [str(error) for error in refused]) == (["uprobe/l:b@2"], ["no probe on /lib/x.so"])


def test_tracepoints_and_typed_tracepoints_are_attached_and_kept() -> None:
    @dataclass
    class Opened:
        programs: dict[str, Program]

    @dataclass
    class Loaded:
        object: Opened
        links: list[Any] = field(default_factory=list)

    sections = ("tracepoint/syscalls/sys_exit_read,write", "tp_btf/sched_process_exit", "uprobe/l:a")
    loaded = Loaded(Opened({section: Program(section) for section in sections}))
    attach_tracepoints(loaded)  # type: ignore[arg-type]
    assert loaded.links == ["sys_exit_read", "sys_exit_write", "tp_btf/sched_process_exit"]
    assert loaded.object.programs["uprobe/l:a"].put == []
