"""``kubectl otelgpu diagnose``, against a cluster that is none and an ``otelgpu`` that a test plays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click
import pytest

from kubectl_otelgpu import diagnosis, members
from kubectl_otelgpu.arguments import DIAGNOSES
from kubectl_otelgpu.faults import Fault
from otelgpu.cli import device_memory, observe, stall, utilization
from otelgpu.cli.diagnose import diagnose
from otelgpu.cli.profile import profile
from otelgpu.config import Config, load_config
from tests.unit.kubectl.conftest import CONTAINER_ID, FakeCluster, job_pod, pod

NUMBER = "batch.kubernetes.io/job-completion-index"
WAITS = {"waiting": {"reason": "CrashLoopBackOff"}}
ENDED = {"terminated": {"reason": "Error", "exitCode": 1}}


def rank(number: int, *, state: dict[str, Any] | None = None, suffix: str = "") -> dict[str, Any]:
    return pod(f"train-{number}{suffix}", state=state, annotations={NUMBER: str(number)})


@pytest.fixture
def job(cluster: FakeCluster) -> FakeCluster:
    """Of two ranks, and an ``otelgpu`` that writes down what it was asked and says that something is found."""
    cluster.scenario |= {"pods": [rank(0), rank(1)], "job_pods": [job_pod()]}
    program = cluster.folder / "otelgpu"
    program.write_text(
        f"#!{sys.executable} -IS\n"
        "import os, sys\n"
        "open(os.environ['ASKED'], 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "print('Slow rank 1', flush=True)\n"
        "sys.exit(int(os.environ['CODE']))\n"
    )
    program.chmod(0o755)
    cluster.environment = {
        diagnosis.OTELGPU_VARIABLE: str(program),
        "ASKED": str(cluster.folder / "asked"),
        "CODE": "3",
    }
    return cluster


def without_otelgpu(cluster: FakeCluster) -> None:
    cluster.environment = {"PATH": "/usr/bin:/bin", diagnosis.OTELGPU_VARIABLE: ""}


@pytest.mark.slow
def test_ranks_of_a_job_are_recorded_side_by_side_and_compared_here(job: FakeCluster) -> None:
    done = job.run("diagnose", "job/train", "-d", "5")
    assert (done.returncode, done.stdout) == (3, "Slow rank 1\n"), done.stderr
    folder = job.folder / "train-ranks"
    assert {path.name for path in folder.iterdir()} == {"train-0.jsonl", "train-1.jsonl"}
    assert (folder / "train-1.jsonl").read_bytes() == job.result
    asked = (job.folder / "asked").read_text().split()
    files = ["train-ranks/train-0.jsonl", "train-ranks/train-1.jsonl"]
    assert asked == ["diagnose", "ranks", *files, "-o", "train-ranks/report.html", "--force"]
    assert "otelgpu diff --slow auto train-ranks" in done.stderr
    assert len(set(job.deleted())) == len(job.created()) == 2
    arguments = job.created()[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:5] == ["agent", "--container", CONTAINER_ID, "--profiles", "cpu,offcpu"]


@pytest.mark.slow
@pytest.mark.parametrize(("said", "code"), [("3", 3), ("0", 4), ("1", 1)])
def test_who_is_missing_is_said_with_its_reason_and_is_no_rank_that_is_well(
    job: FakeCluster, said: str, code: int
) -> None:
    job.environment["CODE"] = said
    job.scenario["pods"] = [rank(0), rank(1, state=WAITS), rank(2), rank(2, state=ENDED, suffix="-first")]
    done = job.run("diagnose", "-l", "app=train", "-d", "5", "-o", "found")
    assert done.returncode == code, done.stderr
    assert "2 of 3 pods were recorded; missing:" in done.stderr
    why = "container server of pod train-1 does not run: waiting (CrashLoopBackOff)"
    assert f"  train-1 (index 1): {why}\n" in done.stderr
    assert "train-2-first" not in done.stderr


@pytest.mark.slow
def test_a_job_of_which_nothing_was_recorded_leaves_no_folder(job: FakeCluster) -> None:
    job.scenario["job_pods"] = [job_pod({"terminated": {"exitCode": 1}})]
    job.scenario["log"] = "no process runs in container 8a3b\n"
    done = job.run("diagnose", "train", "-d", "5")
    assert done.returncode == 1
    assert (
        "nothing was recorded: train-0 (index 0): otelgpu ended with exit code 1: no process" in done.stderr
    )
    assert not (job.folder / "train-ranks").exists() and not (job.folder / "asked").exists()


@pytest.mark.slow
def test_without_an_otelgpu_here_ranks_are_recorded_and_it_is_said_what_compares_them(
    job: FakeCluster,
) -> None:
    without_otelgpu(job)
    done = job.run("diagnose", "train", "-d", "5")
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "pip install 'otelgpu[diagnose]'; otelgpu diagnose ranks train-ranks" in done.stderr
    assert (job.folder / "train-ranks/train-1.jsonl").exists()


@pytest.mark.slow
def test_without_an_otelgpu_here_a_pods_own_job_diagnoses_it(job: FakeCluster) -> None:
    without_otelgpu(job)
    job.scenario["verdict"] = "Stalls \x1b[1m of a file\nexit code 3"
    done = job.run("diagnose", "train", "--kind", "stall", "-d", "5")
    assert done.returncode == 3, done.stderr
    text = "Stalls \N{REPLACEMENT CHARACTER}[1m of a file"
    assert done.stdout == f"train-0:\n{text}\ntrain-1:\n{text}\n"
    pages = {path.name for path in (job.folder / "train-stall").iterdir() if path.suffix == ".html"}
    assert pages == {"train-0.html", "train-1.html"}
    made = job.created()[0]["spec"]["template"]["spec"]["containers"][0]
    assert made["env"] == [{"name": "OTELGPU_PROFILE_OFF_CPU_US", "value": "50"}]


@pytest.mark.slow
def test_one_pod_after_the_other_is_diagnosed_here_where_there_is_an_otelgpu(job: FakeCluster) -> None:
    job.environment["CODE"] = "4"
    done = job.run("diagnose", "train", "--kind", "memory", "-d", "5")
    assert (done.returncode, done.stdout) == (4, "train-0:\nSlow rank 1\ntrain-1:\nSlow rank 1\n"), (
        done.stderr
    )
    first, second = (job.folder / "asked").read_text().splitlines()
    assert first == "diagnose memory train-memory/train-0.jsonl -o train-memory/train-0.html --force"
    assert second == first.replace("train-0", "train-1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose"], "give a job, or its pods by -l"),
        (["diagnose", "a", "-l", "b=c"], "give a job, or its pods by -l"),
        (["diagnose", "a=b,c"], "'a=b,c' is no name of a job"),
        (["diagnose", "nobodys"], "there is no pod of a job nobodys in namespace serving"),
        (["diagnose", "-l", "b=c"], "there is no pod in namespace serving with labels b=c"),
        (["diagnose", "a", "--kind", "mood"], "invalid choice: 'mood'"),
        (["diagnose", "a", "-d", "2d"], "no duration"),
    ],
)
def test_bad_input_is_refused_in_words_before_anything_is_made(
    cluster: FakeCluster, arguments: list[str], words: str
) -> None:
    done = cluster.run(*arguments)
    assert done.returncode in (1, 2)
    assert words in done.stderr and "Traceback" not in done.stderr
    assert cluster.created() == []


@pytest.mark.slow
def test_recordings_are_not_mixed_with_what_is_there(job: FakeCluster) -> None:
    (job.folder / "train-ranks").mkdir()
    (job.folder / "train-ranks/old.jsonl").write_text("{}")
    done = job.run("diagnose", "train")
    assert (done.returncode, job.created()) == (1, [])
    assert "there is something in train-ranks" in done.stderr


@pytest.mark.slow
def test_an_otelgpu_that_is_named_and_not_there_is_said_before_anything_is_made(job: FakeCluster) -> None:
    job.environment[diagnosis.OTELGPU_VARIABLE] = "/nowhere/otelgpu"
    done = job.run("diagnose", "train")
    assert (done.returncode, job.created()) == (1, [])
    assert "there is no program /nowhere/otelgpu" in done.stderr


def test_kinds_are_those_of_otelgpu_diagnose() -> None:
    assert set(DIAGNOSES) == diagnosis.RECORDINGS.keys()
    assert set(DIAGNOSES) <= diagnose.commands.keys()


@pytest.mark.parametrize("kind", DIAGNOSES)
def test_what_records_for_a_diagnosis_is_a_command_line_of_otelgpu(kind: str) -> None:
    recording = diagnosis.RECORDINGS[kind]
    command: click.Command = {"agent": observe.agent, "profile": profile}[recording.command]
    arguments = ["--container", CONTAINER_ID, *recording.arguments, "-d", "5", "--export", "file:a.jsonl"]
    command.make_context(recording.command, arguments)
    config = load_config(None, recording.variables, {})
    assert config != Config() or not recording.variables


@pytest.mark.parametrize(
    ("kind", "recorded"),
    [("stall", stall.KINDS), ("utilization", utilization.KINDS), ("memory", device_memory.KINDS)],
)
def test_a_kind_has_recorded_what_the_command_records_itself(kind: str, recorded: frozenset[str]) -> None:
    arguments = diagnosis.RECORDINGS[kind].arguments
    assert set(arguments[arguments.index("-t") + 1].split(",")) == {str(each) for each in recorded}


def test_a_job_is_found_by_whichever_label_its_controller_gives() -> None:
    class Kubeflow:
        def items(self, kind: str, namespace: str, *arguments: str) -> list[Mapping[str, Any]]:
            assert (kind, namespace) == ("pods", "ml")
            return [rank(0)] if arguments == ("-l", "training.kubeflow.org/job-name=train") else []

    assert members.pods_of(Kubeflow(), "pytorchjob/train", None, "ml") == [rank(0)]  # type: ignore[arg-type]


def test_a_job_of_which_no_pod_runs_says_why() -> None:
    with pytest.raises(Fault, match=r"no pod of the job runs: train-0 \(index 0\): container server"):
        members.members_of([rank(0, state=WAITS)], None)


def test_a_job_of_too_many_pods_is_refused() -> None:
    with pytest.raises(Fault, match="the job has 65 pods: 64 at most"):
        members.members_of([rank(number) for number in range(65)], None)


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        (
            [
                ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
                ("2026-01-01T00:00:50Z", "2026-01-01T00:01:50Z"),
            ],
            10,
        ),
        (
            [
                ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
                ("2026-01-01T00:02:00Z", "2026-01-01T00:03:00Z"),
            ],
            -60,
        ),
        ([("", ""), ("2026-01-01T00:02:00Z", "2026-01-01T00:03:00Z")], None),
    ],
)
def test_how_long_all_recordings_went_on_at_once(spans: list[tuple[str, str]], seconds: float | None) -> None:
    assert diagnosis.common_seconds(spans) == seconds


@pytest.mark.slow
def test_recordings_that_have_little_time_in_common_are_said_to(job: FakeCluster) -> None:
    terminated = {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:02Z"}
    job.scenario["job_pods"] = [job_pod({"terminated": terminated})]
    done = job.run("diagnose", "train", "-d", "5")
    assert "the recordings have 2 of 5 s in common" in done.stderr


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 3, 4], 3), ([0, 4], 4), ([0, 1, 4], 1), ([0, 0], 0), ([], 0)]
)
def test_the_exit_code_of_several_is_that_of_what_was_found(codes: list[int], code: int) -> None:
    assert diagnosis.worst(codes) == code
