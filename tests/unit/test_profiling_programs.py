"""What runs for which kinds of profiles, and what C and Python say twice is the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otelgpu.families.profiles.discover import programs as profiling
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import Image, LoadedFamily, read_image, record_struct
from otelgpu.kernel.perf_events import attach_clocks, parse_cpus
from otelgpu.model.profiling import CALL_KINDS, ProfileKind, ProfileSettings
from otelgpu.model.samples import SampleKind, ThreadState
from tests.rig.unwind_rows import ROW, Cfa, Rbp


@pytest.fixture(scope="module")
def image() -> Image:
    return read_image("profile")


@pytest.mark.parametrize(
    ("kinds", "programs"),
    [
        ((ProfileKind.CPU,), {"cpu_x"}),
        ((ProfileKind.PYTHON,), {"cpu_x", "offcpu_x"}),
        ((ProfileKind.OFFCPU, ProfileKind.FILE), {"offcpu_x", "waker_x", "file_x"}),
        ((ProfileKind.BLOCK,), {"block_x"}),
        ((ProfileKind.SYSCALL,), {"syscall_x"}),
        *(((kind,), {"call_x"}) for kind in sorted(CALL_KINDS)),
        ((), set()),
    ],
)
def test_programs_are_those_of_the_kinds(kinds: tuple[ProfileKind, ...], programs: set[str]) -> None:
    chosen = filter(
        profiling.wanted(kinds),
        ("cpu_x", "offcpu_x", "waker_x", "syscall_x", "file_x", "block_x", "call_x"),
    )
    assert set(chosen) == programs


def test_kernels_without_clocks_have_all_but_time_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(profiling.features, "has_clock_programs", lambda: False)
    chosen = profiling.wanted((ProfileKind.CPU, ProfileKind.PYTHON, ProfileKind.OFFCPU))
    assert [name for name in ("cpu_x", "offcpu_x", "file_x") if chosen(name)] == ["offcpu_x"]
    assert "cpu, python cannot be profiled; use Linux 6.1" in caplog.text
    with pytest.raises(BpfError, match="no samples of time on the CPU: python cannot be profiled"):
        profiling.wanted((ProfileKind.PYTHON,))
    assert not profiling.wanted(())("cpu_x")


def test_every_program_is_of_some_kind(image: Image) -> None:
    source = "".join(path.read_text() for path in Path("bpf/profile").glob("*.h"))
    names = re.findall(r"^SEC\(.*\)\n(?:int )?(?:BPF_PROG\()?(\w+)", source, re.MULTILINE)
    names = [name for name in names if name != "int"]
    assert len(names) > 5
    everything = profiling.wanted(tuple(ProfileKind))
    assert [name for name in names if not everything(name)] == []


def test_every_constant_is_one_of_the_programs(image: Image) -> None:
    constants = profiling.constants(ProfileSettings(frequency_hz=99, off_cpu_least_us=3, file_slow_ms=2))
    assert constants["cpu_period_ns"] == 10_101_010
    assert constants.keys() <= image.variables(".rodata").keys()


def test_numbers_are_the_same_in_c_and_python(image: Image) -> None:
    btf = image.btf
    kinds = btf.enumerators("profile_kind")
    assert {name: kinds["PROFILE_" + name] for name in SampleKind.__members__} == SampleKind.__members__
    states = btf.enumerators("profile_state")
    assert {name.removeprefix("STATE_"): number for name, number in states.items()} == ThreadState.__members__
    rules = btf.enumerators("unwind_cfa")
    assert {name.removeprefix("UNWIND_"): number for name, number in rules.items()} == Cfa.__members__
    pointers = btf.enumerators("unwind_rbp")
    assert {name.removeprefix("UNWIND_RBP_"): number for name, number in pointers.items()} == Rbp.__members__


def test_a_row_is_the_same_in_c_and_python(image: Image) -> None:
    assert image.btf.dtype("unwind_row") == ROW


def test_samples_share_a_struct_and_stacks_have_their_own(image: Image) -> None:
    btf = image.btf
    assert record_struct(btf, "profile", "PROFILE_CPU") == "profile_sample"
    assert record_struct(btf, "profile", "PROFILE_STACK") == "profile_stack"
    calls = read_image("cuda").btf
    assert record_struct(calls, "cuda", "CUDA_FREE") == "cuda_call"


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0\n", [0]),
        ("0-3,8\n", [0, 1, 2, 3, 8]),
        ("", []),
        ("x,2-y,-,5", [5]),
        ("0-99999999", list(range(8193))),
    ],
)
def test_lists_of_cpus_are_read(text: str, cpus: list[int]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize("frequency_hz", [0, 18, 998, -1])
def test_a_frequency_out_of_range_is_refused(frequency_hz: int) -> None:
    with pytest.raises(BpfError, match="out of range"):
        attach_clocks(LoadedFamily.__new__(LoadedFamily), frequency_hz)
