"""Stacks of programs that are hard to get hold of: their file is gone, they are in other namespaces, or they change."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.families.profiles.discover.unwind_tables import UnwindTables
from otelgpu.model.profiling import ProfileKind
from tests.kernel.test_unwinding import (
    COMPLETE,
    SETTLED_S,
    Functions,
    Tables,
    build,
    collect,
    profiling,
    running,
    sample,
)
from tests.unit.elf.elf_builders import compile_c

LOADED = "void spin_there(void) { for (volatile long i = 0; i < 3000000; i++) ; }"
LOADS = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words)
{
	(void)count;
	puts("ready");
	fflush(stdout);
	for (;;) {
		void *library = dlopen(words[1], RTLD_NOW);

		((void (*)(void))dlsym(library, "spin_there"))();
		dlclose(library);
	}
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stacks") / "stacks")


@pytest.fixture(scope="module")
def tables(kernel: None) -> Iterator[Tables]:
    with profiling(ProfileKind.CPU) as loaded:
        unwind = UnwindTables(loaded)
        yield loaded, unwind
        unwind.close()


def ends_of(tables: Tables, tgid: int) -> Counter[str]:
    """Why the stacks of a process end."""
    loaded, unwind = tables
    list(loaded.drain())
    unwind.see(tgid)
    assert unwind.settle(SETTLED_S)
    sample(loaded, tgid)
    unwind.forget(tgid)
    return collect(loaded, Functions()).ends


def test_a_program_whose_file_was_deleted_is_followed(tables: Tables, program: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(program, tmp_path / "gone"))
    with running(path, "recursion") as process:
        path.unlink()
        ends = ends_of(tables, process.pid)
    assert ends[COMPLETE] > 0.98 * ends.total() > 50, ends


def test_a_program_in_another_pid_namespace_is_followed(tables: Tables, program: Path) -> None:
    """By the number that it has here; where it is, it is 1."""
    command = ["unshare", "--pid", "--fork", "--kill-child", str(program), "recursion"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        if outer.stdout.readline() != "ready\n":
            pytest.skip("unshare --pid is refused here")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        ends = ends_of(tables, int(children[0]))
        outer.kill()
    assert ends[COMPLETE] > 0.98 * ends.total() > 50, ends


def test_a_program_that_loads_and_unloads_all_the_time_is_followed(tables: Tables, tmp_path: Path) -> None:
    """Its library is there, not yet known or gone: what is not whole says which."""
    library = compile_c(tmp_path, "libspin.so", LOADED, "-shared", "-fPIC")
    program = compile_c(tmp_path, "loads", LOADS, "-ldl")
    loaded, unwind = tables
    list(loaded.drain())
    with running(program, str(library)) as process:
        unwind.see(process.pid)
        for _ in range(3):
            unwind.mapped(process.pid)
            assert unwind.settle(SETTLED_S)
            sample(loaded, process.pid)
        assert process.poll() is None
        unwind.forget(process.pid)
        assert unwind.settle(SETTLED_S)
        assert loaded.map("unwind_processes").list_keys() == []
    ends = collect(loaded, Functions()).ends
    assert ends[COMPLETE] > 50, ends
    assert set(ends) <= {COMPLETE, "STACK_NOT_READY", "STACK_UNMAPPED", "STACK_NO_ROW", "STACK_UNREADABLE"}
