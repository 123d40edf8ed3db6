"""Which files get probes: by what is in them, once, and not for longer than they stay what they were."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from otelgpu.kernel.attach import hooks
from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.uprobe_links import UprobeLinks
from otelgpu.processes import probes, process_probes
from otelgpu.processes.function_finder import session_function_finder
from otelgpu.processes.maps import executable_mappings
from otelgpu.processes.probes import ProbedFile, ProbePlacer
from otelgpu.processes.process_probes import ProcessProbes
from otelgpu.processes.reader.client import ReaderError
from tests.unit.elf.go_builders import FUNCTION, go_elf

LIBRARY = "int {name}(void) {{ return {value}; }}\n"


class Link:
    """Stands for one that the kernel gave."""

    detached = 0

    def detach(self) -> None:
        Link.detached += 1


@dataclass
class Program:
    """Stands for a loaded program."""

    section: str
    put: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def probes(self) -> str:
        return self.section.partition("/")[0]

    def attach_uprobes(
        self, path: str, offsets: Sequence[int], cookies: Sequence[int], *, tgid: int = -1
    ) -> list[Link]:
        self.put.append(tuple(offsets))
        return [Link()]


@pytest.fixture
def program() -> Program:
    return Program("usession/libcudart:cudaMalloc,cudaFree;libcuda:cuMemAlloc_v2")


@pytest.fixture
def placer(program: Program, monkeypatch: pytest.MonkeyPatch) -> ProbePlacer:
    monkeypatch.setattr(probes, "detach_all", lambda links: [link.detach() for link in links])
    return ProbePlacer(hooks([program]), session_function_finder(), with_returns=True)  # type: ignore[list-item]


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    def make(file: str, *names: str, value: int = 0, options: Sequence[str] = ()) -> Path:
        source = tmp_path / "source.c"
        source.write_text("".join(LIBRARY.format(name=name, value=value) for name in names))
        path = tmp_path / file
        subprocess.run(["gcc", "-shared", "-fPIC", *options, "-o", path, source], check=True)
        return path

    return make


def mapped(path: Path) -> tuple[int, int, tuple[int, int]]:
    """Map a file into this process, as the loader would: where, and its inode as the kernel says it."""
    import ctypes

    ctypes.CDLL(str(path))
    found = next(each for each in executable_mappings(os.getpid()) if each.path == str(path))
    return found.start, found.end, (found.device[0] << 20 | found.device[1], found.inode)


@pytest.mark.parametrize(
    "name",
    [
        "libcudart.so.12",
        "libcudart-d0da41ae.so.11.0",
        "libcuda.so.550.54.14",
        "libengine.so",
        "_C.cpython-311.so",
    ],
)
def test_a_library_is_reported_by_its_functions_whatever_it_is_called(
    placer: ProbePlacer, build: Callable[..., Path], name: str
) -> None:
    probed_file = placer.examine_file(build(name, "cudaMalloc", "other"))
    assert probed_file is not None and probed_file.symbols == ("cudaMalloc",)


def test_functions_of_both_libraries_in_one_file_are_probed(
    placer: ProbePlacer, program: Program, build: Callable[..., Path]
) -> None:
    probed_file = placer.examine_file(build("libcudart.so.12", "cudaMalloc", "cudaFree", "cuMemAlloc_v2"))
    assert probed_file is not None and len(probed_file.symbols) == 3
    assert [len(offsets) for offsets in program.put] == [3]


def test_what_each_process_has_for_itself_is_not_probed_for_all(
    program: Program, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Program("usession/libcudart:cudaLaunchKernel")
    placer = ProbePlacer(hooks([program, launches]), session_function_finder(), with_returns=True)  # type: ignore[list-item]
    monkeypatch.setattr(process_probes, "uprobe_links", lambda: UprobeLinks.MULTI)
    monkeypatch.setattr(process_probes, "kernel_version", lambda: (6, 10))
    own = ProcessProbes(["cudaLaunchKernel"], 1.0, lambda: 1.0, dict, lambda tgid: None)
    placer.process_probes = own
    probed_file = placer.examine_file(build("libcudart.so.12", "cudaMalloc", "cudaLaunchKernel"))
    assert probed_file is not None and probed_file.symbols == ("cudaLaunchKernel", "cudaMalloc")
    assert ([len(put) for put in program.put], launches.put) == ([1], [])
    assert probed_file.of_process is not None
    links, _ = probed_file.of_process.attach(7)
    assert len(links) == len(launches.put) == 1
    own.close()


def test_a_library_that_only_calls_them_gets_none(
    placer: ProbePlacer, program: Program, tmp_path: Path
) -> None:
    source = tmp_path / "user.c"
    source.write_text("int cudaMalloc(void); int work(void) { return cudaMalloc(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libuser.so", source], check=True)
    assert placer.examine_file(tmp_path / "libuser.so") is None
    assert program.put == []


def test_a_file_is_attached_to_once_however_often_it_is_met(
    placer: ProbePlacer, program: Program, build: Callable[..., Path]
) -> None:
    path = build("libcudart.so.12", "cudaMalloc")
    start, end, inode = mapped(path)
    first = placer.examine_file(path)
    assert placer.examine_mapping(os.getpid(), start, end, path.name, 0, inode) is first
    assert placer.examine_mapping(os.getpid(), start, end, str(path), 0) is first
    # Other tests' libraries are still mapped here.
    probed_files = placer.examine_process(os.getpid())
    assert probed_files.count(first) == 1
    assert len(program.put) == len(probed_files)


def test_a_file_without_any_is_not_opened_again_for_a_while(
    placer: ProbePlacer, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build("libplain.so", "work")
    start, end, inode = mapped(path)
    opened: list[Any] = []
    true_open = os.open

    def noted(name: Any, *rest: Any) -> int:
        if "/self/fd/" not in str(name):  # where what was found is opened for reading
            opened.append(name)
        return true_open(name, *rest)

    monkeypatch.setattr(os, "open", noted)
    for _ in range(3):
        assert placer.examine_mapping(os.getpid(), start, end, str(path), 0, inode) is None
    assert len(opened) == 1
    monkeypatch.setattr(probes, "_PLAIN_NS", 0)
    placer.examine_mapping(os.getpid(), start, end, str(path), 0, inode)
    assert len(opened) == 2


def test_a_process_of_a_file_that_was_not_looked_into_is_looked_at_again(
    placer: ProbePlacer, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, me = build("libcudart.so.12", "cudaMalloc"), os.getpid()
    start, end, inode = mapped(path)
    finder = placer._finder
    refusal = ReaderError("owner_over_budget", "functions_in")
    with monkeypatch.context() as refused:
        refused.setattr(finder, "find", lambda *_: (_ for _ in ()).throw(refusal))
        assert placer.examine_mapping(me, start, end, str(path), 0, inode) is None
        now_ns = monotonic_ns()
        assert placer.take_postponed(now_ns) == []
        assert placer.take_postponed(now_ns + 1_500_000_000) == [me]
        assert placer.take_postponed(now_ns + 1_500_000_000) == []  # it is being looked at
        assert placer.examine_mapping(me, start, end, str(path), 0, inode) is None
        placer.settle_postponed(me)
        assert placer.take_postponed(now_ns + 1_900_000_000) == []  # ever more seldom
        assert placer.take_postponed(now_ns + 3_900_000_000) == [me]
    found = placer.examine_mapping(me, start, end, str(path), 0, inode)
    placer.settle_postponed(me)
    assert found is not None and found.symbols == ("cudaMalloc",)
    assert placer.take_postponed(1 << 62) == []
    assert placer.counters["file_postponed"] == 2 and placer.counters["file_unreadable"] == 0


def test_probes_are_taken_off_a_file_that_is_written_over(
    placer: ProbePlacer, program: Program, build: Callable[..., Path], tmp_path: Path
) -> None:
    path = build("libcudart.so.12", "cudaMalloc")
    assert placer.examine_file(path) is not None
    before = Link.detached
    path.write_bytes(build("other.so", "a", "b", "cudaFree").read_bytes())
    probed_file = placer.examine_file(path)
    assert probed_file is not None and probed_file.symbols == ("cudaFree",)
    assert Link.detached == before + 1
    assert placer.counters["probed_file_changed"] == 1
    assert [found.symbols for found in placer.probed_files] == [("cudaFree",)]


def test_what_has_taken_the_path_of_a_mapped_file_is_not_taken_for_it(
    placer: ProbePlacer, program: Program, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build("libcudart.so.12", "cudaMalloc")
    start, end, _ = mapped(path)
    path.with_name("new").write_bytes(build("other.so", "cudaFree").read_bytes())
    path.with_name("new").replace(path)
    for name in ("cached_status", "open_regular"):
        truly = getattr(probes, name)

        def without_map_files(path: str, truly: Callable[[str], Any] = truly) -> Any:
            if "map_files" in path:
                raise PermissionError(1, "Operation not permitted", path)
            return truly(path)

        monkeypatch.setattr(probes, name, without_map_files)
    assert placer.examine_mapping(os.getpid(), start, end, str(path), 0) is None
    assert program.put == []
    assert placer.counters["mapping_vanished"] + placer.counters["mapped_file_replaced"] == 1


GO_PROGRAMS = ("uprobe/go:a.(*B).Read", "uprobe/go_returns:a.(*B).Read", "uprobe/go:a.(*B).Close")


def test_a_go_program_s_functions_are_probed_at_each_of_their_returns(tmp_path: Path) -> None:
    entry, returns, close = programs = [Program(section) for section in GO_PROGRAMS]
    placer = ProbePlacer(hooks(programs), session_function_finder(), with_returns=True)  # type: ignore[arg-type]
    path = tmp_path / "serve"
    path.write_bytes(go_elf({"a.(*B).Read": FUNCTION, "a.(*B).Close": FUNCTION, "main.main": b"\x06"}))
    probed_file = placer.examine_file(path)
    at = path.read_bytes().index(FUNCTION)
    assert (entry.put, returns.put, close.put) == ([(at,)], [(at + 6, at + 8)], [(at + 32,)])
    assert probed_file is not None and probed_file.symbols == ("a.(*B).Close", "a.(*B).Read")
    assert len(probed_file.links) == 3 and not placer.counters["go_program_unknown"]


def test_what_go_programs_need_is_loaded_for_the_first_of_them_and_no_other_file(
    placer: ProbePlacer, build: Callable[..., Path], tmp_path: Path
) -> None:
    entry, returns, _ = programs = [Program(section) for section in GO_PROGRAMS]
    loaded: list[str] = []

    def load() -> None:
        loaded.append("go")
        placer.add(hooks(programs))  # type: ignore[arg-type]

    placer.add_later({"a.(*B).Read": "go_returns", "a.(*B).Close": "go", "c.Serve": "libgo"}, load)
    assert placer.examine_file(build("libcudart.so.12", "cudaMalloc")) is not None
    path = tmp_path / "plain"
    path.write_bytes(go_elf({"main.main": b"\x06"}))
    assert placer.examine_file(path) is None
    assert loaded == []
    for name in ("serve", "another"):
        path = tmp_path / name
        path.write_bytes(go_elf({"a.(*B).Read": FUNCTION, "main.main": b"\x06"}))
        assert placer.examine_file(path) is not None
    assert loaded == ["go"]
    assert (len(entry.put), len(returns.put)) == (2, 2)


def test_of_a_go_program_that_is_not_understood_nothing_is_probed_and_that_is_counted(tmp_path: Path) -> None:
    programs = [Program(section) for section in GO_PROGRAMS]
    placer = ProbePlacer(hooks(programs), session_function_finder(), with_returns=True)  # type: ignore[arg-type]
    path = tmp_path / "serve"
    path.write_bytes(go_elf({"a.(*B).Read": FUNCTION, "a.(*B).Close": b"\x06"}))
    assert placer.examine_file(path) is None
    assert not any(each.put for each in programs)
    assert placer.counters["go_program_unknown"] == 1


def test_without_probes_to_place_nothing_is_looked_at(build: Callable[..., Path]) -> None:
    placer = ProbePlacer((), session_function_finder(), with_returns=True)
    assert placer.examine_mapping(os.getpid(), 0, 1, "libcudart.so.12", 0) is None
    assert placer.counters.total() == 0


def test_a_family_is_loaded_for_the_first_file_that_needs_it_and_no_other(
    placer: ProbePlacer, build: Callable[..., Path]
) -> None:
    loaded: list[str] = []
    late = Program("usession/libnccl:ncclAllReduce")

    def load() -> None:
        loaded.append("nccl")
        placer.add(hooks([late]))  # type: ignore[list-item]

    placer.add_later({"ncclAllReduce": "libnccl", "post_send": "verbs_posts"}, load)
    assert placer.is_wanted("libnccl.so.2")
    assert placer.examine_file(build("libcudart.so.12", "cudaMalloc")) is not None
    assert (
        placer.examine_file(build("libother.so", "post_send")) is None
    )  # of that library_name is no library
    assert loaded == []
    for number in (2, 3):
        probed_file = placer.examine_file(build(f"libnccl.so.{number}", "ncclAllReduce"))
        assert probed_file is not None
        assert probed_file.symbols == ("ncclAllReduce",)
    assert loaded == ["nccl"]
    assert len(late.put) == 2


def test_a_file_of_a_family_that_could_not_be_loaded_has_no_probes(
    placer: ProbePlacer, build: Callable[..., Path]
) -> None:
    placer.add_later({"ncclAllReduce": "libnccl"}, lambda: None)
    for number in (2, 3):
        assert placer.examine_file(build(f"libnccl.so.{number}", "ncclAllReduce")) is None
    both = placer.examine_file(build("libboth.so", "ncclAllReduce", "cudaFree"))
    assert both is not None
    assert both.symbols == ("cudaFree",)


def released(placer: ProbePlacer, after_s: float, used: Sequence[ProbedFile] = ()) -> list[str]:
    now_ns = monotonic_ns() + int(after_s * 1e9)
    return [Path(each.path).name for each in placer.release(used, now_ns, keep_ns=60_000_000_000)]


def test_a_file_that_nobody_has_any_more_loses_its_probes_and_gets_new_ones_when_it_is_back(
    placer: ProbePlacer, program: Program, build: Callable[..., Path]
) -> None:
    path = build("libcudart.so.12", "cudaMalloc")
    probed_file = found_mapped(placer, path)
    assert probed_file is not None
    before = Link.detached
    assert released(placer, 30) == []
    assert released(placer, 50, [probed_file]) == []
    assert released(placer, 100) == []  # 50 s after it was in use
    assert released(placer, 111) == ["libcudart.so.12"]
    assert (placer.probed_files, Link.detached - before) == ([], 1)
    assert found_mapped(placer, path) is not None
    assert len(program.put) == 2


def test_a_file_that_some_process_has_or_will_have_keeps_its_probes(
    placer: ProbePlacer, build: Callable[..., Path]
) -> None:
    path = build("libcudart.so.12", "cudaMalloc")
    assert placer.examine_file(build("libcuda.so.1", "cuMemAlloc_v2")) is not None
    start, end, inode = mapped(path)  # and nobody reported of it since
    assert placer.examine_mapping(os.getpid(), start, end, str(path), 0, inode) is not None
    assert released(placer, 1000) == []


def found_mapped(placer: ProbePlacer, path: Path) -> ProbedFile | None:
    """What is placed on a file that this process has mapped only meanwhile."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE),
    ):
        found = next(each for each in executable_mappings(os.getpid()) if each.path == str(path))
        return placer.examine_mapping(os.getpid(), found.start, found.end, str(path), 0)


def test_a_fifo_in_a_library_s_place_keeps_nobody_waiting(placer: ProbePlacer, tmp_path: Path) -> None:
    fifo = tmp_path / "libcudart.so.12"
    os.mkfifo(fifo)
    assert placer.examine_file(fifo) is None
    assert placer.counters["file_unreadable"] == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((7, False), (7, False), True),
        ((7, False), (8, False), False),
        (("overlay", False), (7, False), True),  # a file of a layer, seen in the image and below it
        (("overlay", False), ("overlay", False), True),
        (("overlay", False), (7, True), False),  # whoever mounts a tmpfs chooses what its files look like
    ],
)
def test_one_file_stands_for_another_only_where_nobody_can_make_it_look_so(
    one: tuple[int | str, bool], other: tuple[int | str, bool], same: bool
) -> None:
    assert probes._may_be_one(one, other) is probes._may_be_one(other, one) is same


def test_a_new_link_to_a_probed_file_is_no_other_content() -> None:
    before = (1, 100, 5, 5)
    assert not probes._is_written(before, (1, 100, 5, 9))
    assert probes._is_written(before, (1, 100, 6, 9))


def test_whose_files_have_most_of_the_probes_gets_no_more_and_others_do(
    placer: ProbePlacer, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "PROBED_FILES", 5)
    owner = ["/attacker"]
    monkeypatch.setattr(probes, "owner_of", lambda tgid: (owner[0], 1))

    def is_probed(name: str) -> bool:
        path = build(name, "cudaMalloc", value=len(name))
        return placer.examine_mapping(os.getpid(), *mapped(path)[:2], str(path), 0) is not None

    assert [is_probed(f"liba{'x' * number}.so") for number in range(6)] == [True] * 3 + [False] * 3
    assert placer.counters["probe_share_spent"] == 3
    owner[0] = "/victim"
    assert [is_probed(f"libv{'x' * number}.so") for number in range(2)] == [True, False]


def test_probes_that_are_taken_off_leave_room(
    placer: ProbePlacer, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "PROBED_FILES", 1)
    monkeypatch.setattr(probes, "list_processes", list)
    paths = [build(f"lib{'x' * number}.so", "cudaMalloc", value=number) for number in range(2)]
    assert [placer._examine(str(path), str(path), mapped_ns=0) is not None for path in paths] == [True, False]
    placer.release([], monotonic_ns(), keep_ns=0)
    other = build("libother.so", "cudaMalloc", value=7)
    assert placer._examine(str(other), str(other), mapped_ns=0) is not None
