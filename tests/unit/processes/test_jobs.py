"""What launchers say of a process's place in a job; what is no sense is not said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.processes.jobs import MOST_RANKS, VARIABLES, job_attributes


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "run-1"},
            {"rank": 5, "world_size": 8, "local_rank": 1, "id": "run-1"},
        ),
        (
            {"SLURM_PROCID": "3", "SLURM_NTASKS": "16", "SLURM_LOCALID": "3", "SLURM_JOB_ID": "4711"},
            {"rank": 3, "world_size": 16, "local_rank": 3, "id": "4711"},
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            {"rank": 0, "world_size": 2, "local_rank": 0},
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, {"rank": 1, "world_size": 2}),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"},
            {"rank": 1, "world_size": 2, "id": "10.0.0.7:29500"},
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a b", "MASTER_PORT": "29500"},
            {"rank": 1, "world_size": 2},
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node-3"},
            {"rank": 1, "world_size": 2},
        ),
    ],
)
def test_each_launcher_s_words_are_read(environ: dict[str, str], found: dict[str, str | int]) -> None:
    assert job_attributes(environ) == {f"otelgpu.job.{name}": value for name, value in found.items()}


def test_under_slurm_the_ranks_of_torchrun_count() -> None:
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "17"}
    found = job_attributes(
        slurm | {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}
    )
    assert (found["otelgpu.job.rank"], found["otelgpu.job.world_size"]) == (9, 16)
    assert found["otelgpu.job.id"] == "17"


PROXY = (
    "/opt/mpich/bin/hydra_pmi_proxy --control-port node-3:35267 --rmk user --pgid 0 --retries 10 --proxy-id 1"
)
OF_HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("ancestors", "job"),
    [
        ([PROXY, "mpiexec -n 4 ./a"], "node-3:35267/0"),
        (["sh -c ./a", PROXY.replace("35267", "35268")], "node-3:35268/0"),  # of the job beside it
        ([PROXY.replace("--pgid 0", "--pgid 1")], "node-3:35267/1"),  # by MPI_Comm_spawn
        ([PROXY.replace("node-3:", "[fe80::1]:")], "[fe80::1]:35267/0"),
        ([PROXY.replace("node-3:35267", "node-3")], None),
        ([PROXY.replace("node-3", "\x1b[31m")], None),
        ([PROXY.replace("node-3", "n" * 200)], None),
        ([PROXY.replace("--pgid 0", "--pgid x")], None),
        ([PROXY.partition(" --pgid")[0]], None),  # what Hydra has at its end was cut off
        (["hydra_pmi_proxy --control-port"], None),
        (["vim hydra_pmi_proxy --control-port node-3:35267 --pgid 0", ""], None),
        ([], None),
    ],
)
def test_hydra_s_job_is_where_its_proxies_meet(ancestors: list[str], job: str | None) -> None:
    commands = [tuple(each.split()) for each in ancestors]
    assert job_attributes(OF_HYDRA, commands).get("otelgpu.job.id") == job


@pytest.mark.parametrize("environ", [OF_HYDRA | {"PBS_JOBID": "17"}, {"RANK": "1", "WORLD_SIZE": "2"}, {}])
def test_ancestors_are_asked_for_only_where_hydra_alone_names_the_job(environ: dict[str, str]) -> None:
    ancestors = iter([tuple(PROXY.split())])
    assert job_attributes(environ, ancestors).get("otelgpu.job.id") in ("17", None)
    assert len(list(ancestors)) == 1


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "1"},  # of how many?
        {"RANK": "8", "WORLD_SIZE": "8"},
        {"RANK": "-1", "WORLD_SIZE": "8"},
        {"RANK": "0x1", "WORLD_SIZE": "8"},
        {"RANK": "١", "WORLD_SIZE": "8"},
        {"RANK": "1", "WORLD_SIZE": str(MOST_RANKS)},
        {"SLURM_JOB_ID": "17"},  # a job with one process: no ranks
    ],
)
def test_what_is_no_rank_says_nothing(environ: dict[str, str]) -> None:
    assert job_attributes(environ) == {}


@pytest.mark.parametrize("job", ["none", "NONE", "", "a b", "x" * 200, "\x1b[31m", "a\nb", "é"])
def test_what_is_no_name_of_a_job_is_left_out(job: str) -> None:
    found = job_attributes({"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": job})
    assert "otelgpu.job.id" not in found
    assert found["otelgpu.job.rank"] == 0


@given(st.dictionaries(st.sampled_from(sorted(VARIABLES)), st.text(max_size=8) | st.integers().map(str)))
def test_no_environment_is_too_strange(environ: dict[str, str]) -> None:
    found = job_attributes(environ)
    if found:
        rank, size = found["otelgpu.job.rank"], found["otelgpu.job.world_size"]
        assert isinstance(rank, int) and isinstance(size, int)
        assert 0 <= rank < size < MOST_RANKS
