"""`otelgpu diff` of two jobs: what differs is said, what is as in any two runs is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.cli.diff import diff
from otelgpu.cli.job_watch import read_process
from otelgpu.diagnose.utilization.diagnosis import diagnose
from otelgpu.diagnose.utilization.differences import differences
from otelgpu.diagnose.utilization.job_facts import (
    GROUPS,
    LONGEST_VALUE,
    MOST_NAMES,
    calls_by_name,
    facts_of,
    libraries_of,
)
from otelgpu.diagnose.utilization.job_processes import JobProcess
from otelgpu.diagnose.utilization.verdicts import Fact
from otelgpu.model.spans import Text
from tests.rig.examples import examples
from tests.unit.diagnose.gpu_jobs import GpuTimeline, device, job
from tests.unit.export.builders import spans


def text(name: str, value: str, group: str = "library") -> Fact:
    return Fact(group=group, name=name, text=value)


def number(name: str, value: float, unit: str = "MHz", group: str = "device") -> Fact:
    return Fact(group=group, name=name, value=value, unit=unit)


def named(before: list[Fact], after: list[Fact]) -> list[str]:
    return [each.name for each in differences(before, after)]


def test_texts_differ_where_they_are_not_equal_or_one_is_missing() -> None:
    assert named([text("a", "1"), text("b", "1")], [text("a", "1"), text("b", "2"), text("c", "1")]) == [
        "b",
        "c",
    ]
    found = {each.name: (each.before, each.after) for each in differences([text("b", "1")], [text("c", "")])}
    assert found == {"b": ("1", None), "c": (None, "")}


@pytest.mark.parametrize(
    ("before", "after", "unit", "differs"),
    [
        (1980.0, 1900.0, "MHz", False),
        (1980.0, 1410.0, "MHz", True),
        (0.30, 0.315, "1", False),
        (0.01, 0.02, "1", False),
        (0.30, 0.50, "1", True),
        (0.0, 0.0, "1/s", False),
        (0.0, 5.0, "1/s", True),
    ],
)
def test_numbers_differ_by_a_tenth_and_shares_by_some_of_the_time(
    before: float, after: float, unit: str, differs: bool
) -> None:
    assert bool(named([number("x", before, unit)], [number("x", after, unit)])) == differs
    assert bool(named([number("x", after, unit)], [number("x", before, unit)])) == differs


def test_a_share_that_only_one_has_is_passed_over_where_it_is_small() -> None:
    assert named([number("x", 0.01, "1")], []) == []
    assert named([number("x", 0.1, "1")], []) == ["x"]


def test_groups_come_in_their_order_and_large_ratios_first() -> None:
    before = [number("k", 10, "1/s", "kernel"), number("clock", 1000), number("power", 700, "W")]
    after = [
        number("k", 1, "1/s", "kernel"),
        number("clock", 500),
        number("power", 500, "W"),
        text("v", "1", "own"),
    ]
    found = differences(before, after)
    assert [each.name for each in found] == ["clock", "power", "k", "v"]
    assert [each.ratio for each in found] == [0.5, pytest.approx(5 / 7), 0.1, None]


_FACTS = st.lists(
    st.builds(
        Fact,
        group=st.sampled_from((*GROUPS, "own")),
        name=st.sampled_from("abc"),
        text=st.text(max_size=3),
        value=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        unit=st.sampled_from(("", "1", "MHz")),
    ),
    max_size=6,
)


@examples(100)
@given(_FACTS, _FACTS)
def test_nothing_differs_from_itself_and_all_that_differs_is_written(
    one: list[Fact], two: list[Fact]
) -> None:
    assert differences(one, one) == []
    json.dumps(msgspec.to_builtins(differences(one, two)))


# -- facts ---------------------------------------------------------------------------------------------------


def test_versions_are_those_of_the_names_of_files() -> None:
    files = [
        "libcudart-d0da41ae.so.11.0",
        "libcudnn_ops.so.9.1.0",
        "libtorch_cuda.so",
        "libcuda.so.570.86.10",
        "x",
    ]
    assert libraries_of(files) == {"libcudart": "11.0", "libcudnn_ops": "9.1.0", "libcuda": "570.86.10"}


def test_calls_are_summed_by_kernel_and_by_function() -> None:
    names = Text(
        codes=np.array([0, 0, 1], dtype=np.intp),
        table=("cudaLaunchKernel flash", "cudaMemcpy MemcpyHostToDevice"),
    )
    found = calls_by_name([spans(3, name=names), spans(1, scope="other")])
    assert found.launches == {"flash": 2}
    assert found.seconds == {"cudaLaunchKernel": pytest.approx(1e-6), "cudaMemcpy": pytest.approx(5e-7)}


def test_of_many_kernels_the_most_frequent_are_facts() -> None:
    names = Text(
        codes=np.arange(100).astype(np.intp), table=tuple(f"cudaLaunchKernel k{n}" for n in range(100))
    )
    found = facts_of([], [], {}, calls_by_name([spans(100, name=names)]), 2.0, [], [])
    assert len([each for each in found if each.group == "kernel"]) == MOST_NAMES
    assert found[0].value == 0.5


def test_variables_are_of_a_closed_list_and_short(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text("7 (python) S 1 7 7 0 -1 0 " + "0 " * 30)
    (folder / "cmdline").write_bytes(b"python\0")
    (folder / "comm").write_text("python\n")
    (folder / "cgroup").write_text("0::/\n")
    (folder / "status").write_text("NSpid:\t7\nUid:\t0\t0\t0\t0\n")
    (folder / "environ").write_bytes(b"NCCL_P2P_DISABLE=" + b"1\n" * 500 + b"\0AWS_SECRET_ACCESS_KEY=x\0")
    (folder / "maps").write_text("")
    found = read_process(7, proc=tmp_path)
    assert found is not None
    assert set(found.environment) == {"NCCL_P2P_DISABLE"}
    assert len(found.environment["NCCL_P2P_DISABLE"]) <= LONGEST_VALUE


# -- the command ---------------------------------------------------------------------------------------------


def report(path: Path, clock: float = 1980.0, **environment: str) -> Path:
    timeline = GpuTimeline()
    for _ in range(40):
        timeline.launch()
        timeline.synchronize(40)
    process = JobProcess(pid=7, has_cuda=True, environment=environment, libraries={"libnccl": "2.21.5"})
    use = msgspec.structs.replace(device(), sm_clock_mhz=clock, driver="570.86.10")
    found, _ = diagnose(job(timeline, devices=(use,), process=process))
    path.write_bytes(msgspec.json.encode(found))
    return path


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(diff, [str(each) for each in arguments])


def test_two_reports_are_compared(tmp_path: Path) -> None:
    one = report(tmp_path / "one.json")
    two = report(tmp_path / "two.json", 1200.0, NCCL_P2P_DISABLE="1")
    said = run(one, two)
    assert said.exit_code == 0, said.output
    assert "GPU 0 SM clock" in said.output and "×0.606" in said.output
    assert "NCCL_P2P_DISABLE" in said.output
    assert "libnccl" not in said.output
    document = json.loads(run(one, two, "--json").output)
    assert (document["before"], document["after"]) == ("one.json", "two.json")
    assert [each["name"] for each in document["differences"]] == ["GPU 0 SM clock", "NCCL_P2P_DISABLE"]
    assert "Nothing differs" in run(one, one).output


def test_what_is_no_report_beside_one_is_an_error(tmp_path: Path) -> None:
    one, other = report(tmp_path / "one.json"), tmp_path / "other.json"
    for content in (
        b"main;f 1\n",
        b'{"facts": 1}',
        b'{"facts": []}',
        b'{"facts": [{}]}',
        b'{"facts": [{"group": "a", "name": "b", "value": 1e999}]}',
        b"{" * 100_000,
    ):
        other.write_bytes(content)
        said = run(one, other)
        assert said.exit_code == 1, content[:20]
        assert "has no facts of a job" in str(said.exception)
    assert run(one, one, "-o", tmp_path / "x.html").exit_code == 2
