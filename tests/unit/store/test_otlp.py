"""Our own spans become operations: what is a rank's own, which rank it is, and steps that agree between ranks."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from otelgpu.cli.commands import cli
from otelgpu.store import Store, open_inputs
from tests.unit.store.otlp_spans import START, Rank, job

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "training_job.capture"


def opened(folder: Path, ranks: Sequence[Rank]) -> Store:
    """A store of their spans, a file for each."""
    for number, rank in enumerate(ranks):
        (folder / f"{number}.jsonl").write_bytes(rank.line())
    return open_inputs([str(folder)])


def select(store: Store, query: str) -> list[tuple[object, ...]]:
    return store.connection.sql(query).fetchall()


def test_a_recorded_job_is_read_as_what_its_ranks_did(tmp_path: Path) -> None:
    lines = tmp_path / "job.jsonl"
    done = CliRunner().invoke(cli, ["replay", "--quiet", str(GOLDEN), "--export", f"file:{lines}"])
    assert done.exit_code == 0, done.output
    with open_inputs([str(lines)]) as store:
        stalls = select(
            store, "SELECT rank, step, round(t1 - t0, 3) FROM ops WHERE kind = 'input' ORDER BY ALL"
        )
        assert stalls == [
            (rank, step, stall)
            for rank, stalls_of_rank in enumerate(((0.501, 0.501), (0.504, 0.721), (0.507, 0.941)))
            for step, stall in enumerate(stalls_of_rank, 6)
        ]
        shared = select(
            store, "SELECT grp, seq, n, count(*) FROM ops WHERE kind = 'coll' GROUP BY ALL HAVING n = 3"
        )
        assert len(shared) == 7
        assert {(group, count) for group, _, _, count in shared} == {("ab1e5eed00000001", 3)}
        assert any("no device time of ranks 0–2 of training" in each for each in store.limits)
        assert select(store, "SELECT rank, name, value, text FROM evidence") == [
            (-1, "xid", 79.0, "Xid 79: GPU has fallen off the bus.")
        ]


def test_parts_of_a_step_begin_with_it_and_are_the_ranks_own(tmp_path: Path) -> None:
    rank = Rank(0, ranks=1)
    rank.step(0, data_loader_stall=0.01, host_overhead=0.02, wait=0.03, call=0.04, file=0.005)
    rank.collective(0)
    with opened(tmp_path, [rank]) as store:
        found = select(
            store, "SELECT kind, t0, round(t1 - t0, 6) FROM ops WHERE kind <> 'coll' ORDER BY kind"
        )
        begin = START * 1e-9
        assert found == [
            ("file", begin, 0.005),
            ("host", begin, 0.02),
            ("input", begin, 0.01),
            ("step", begin, 0.1),
        ]
        assert store.limits == [
            "no device time of rank 0 of llama: what their devices computed and copied is not known"
        ]


def test_device_time_is_what_the_device_computed_and_copied(tmp_path: Path) -> None:
    rank = Rank(0, ranks=1)
    rank.step(0, **{"device.compute": 0.05, "device.copy": 0.01, "host_to_device_copy": 0.03})
    rank.collective(0)
    with opened(tmp_path, [rank]) as store:
        found = select(
            store, "SELECT kind, round(t1 - t0, 6) FROM ops WHERE kind IN ('compute', 'copy') ORDER BY ALL"
        )
        assert found == [("compute", 0.05), ("copy", 0.01)]
        assert not store.limits


@pytest.mark.parametrize("pack", [lambda line: line, gzip.compress], ids=["plain", "gzip"])
def test_compressed_lines_are_read_alike(tmp_path: Path, pack: type[bytes]) -> None:
    for number, rank in enumerate(job()):
        (tmp_path / f"{number}").write_bytes(pack(rank.line()))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT count(DISTINCT rank), count(*) FROM ops WHERE kind = 'coll'") == [
            (4, 40)
        ]


def test_lines_in_zstandard_are_read_alike(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "a").write_bytes(b"".join(zstandard.compress(rank.line()) for rank in job()))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT count(DISTINCT rank), count(*) FROM ops WHERE kind = 'coll'") == [
            (4, 40)
        ]


def test_what_two_gateways_delivered_is_there_once(tmp_path: Path) -> None:
    ranks = job()
    with opened(tmp_path, [*ranks, ranks[0]]) as store:
        assert select(store, "SELECT count(*) FROM ops WHERE rank = 0 AND kind = 'step'") == [(10,)]
        assert select(store, "SELECT count(*) FROM ops WHERE rank = 0 AND kind = 'coll'") == [(10,)]
        assert store.rejected == {"spans_repeated": 20}


def test_ranks_that_were_seen_later_number_their_steps_alike(tmp_path: Path) -> None:
    ranks = [Rank(0), Rank(1, first=3), Rank(2, first=5), Rank(3)]
    for rank in ranks:
        for step in range(rank.first, 10):
            rank.step(step)
            rank.collective(step)
    with opened(tmp_path, ranks) as store:
        spread = select(
            store,
            "SELECT step, count(DISTINCT t0), count(*) FROM ops WHERE kind = 'step' GROUP BY ALL ORDER BY ALL",
        )
        assert [(step, begins) for step, begins, _ in spread] == [(number, 1) for number in range(1, 11)]
        assert [count for _, _, count in spread] == [2, 2, 2, 3, 3, 4, 4, 4, 4, 4]
        inside = "SELECT count(*) FROM ops c JOIN ops s USING (step, rank) WHERE c.kind = 'coll' AND s.kind = 'step'"
        assert select(store, f"{inside} AND c.t0 BETWEEN s.t0 AND s.t1") == [(32,)]


def test_spans_of_steps_have_the_numbers_that_all_ranks_share(tmp_path: Path) -> None:
    ranks = [Rank(0, ranks=2), Rank(1, ranks=2, first=2)]
    for rank in ranks:
        for step in range(rank.first, 5):
            rank.step(step, host_overhead=0.02)
            rank.collective(step)
    with opened(tmp_path, ranks) as store:
        found = select(
            store, "SELECT rank, min(step), max(step), count(*) FROM step_spans GROUP BY rank ORDER BY rank"
        )
        ((first, last, steps),) = select(
            store, "SELECT min(step), max(step), count(*) FROM ops WHERE rank = 0 AND kind = 'step'"
        )
        assert found == [(0, first, last, steps), (1, int(str(first)) + 2, last, 3)]
        ((link,),) = select(store, f"SELECT link FROM step_spans WHERE rank = 1 AND step = {last}")
        assert link == f"{'ab' * 16}-{ranks[1].spans['otelgpu.training'][-1]['spanId']}"


def test_steps_of_ranks_that_share_nothing_are_of_no_step(tmp_path: Path) -> None:
    ranks = job()
    for step in range(10):
        ranks[3].spans["otelgpu.nccl"][2 * step]["traceId"] = f"{step + 1:032x}"
    with opened(tmp_path, ranks) as store:
        assert select(store, "SELECT DISTINCT rank FROM ops WHERE step = -1") == [(3,)]
        assert any(each.startswith("the steps of rank 3 of llama cannot be matched") for each in store.limits)


def test_durations_of_one_collective_are_all_of_one_clock(tmp_path: Path) -> None:
    ranks = job(steps=2, device_ms=1)
    del ranks[2].spans["otelgpu.nccl"][0]["attributes"][-1]  # of one call the device's time is missing
    with opened(tmp_path, ranks) as store:
        found = select(
            store,
            "SELECT step, list(DISTINCT round(t1 - t0, 6)) FROM ops WHERE kind = 'coll' GROUP BY ALL ORDER BY ALL",
        )
        assert found == [(1, [0.002]), (2, [0.001])]


def test_a_call_that_runs_its_collective_is_the_wait_for_it(tmp_path: Path) -> None:
    with opened(tmp_path, job(run_ms=7)) as store:
        assert select(store, "SELECT DISTINCT round(t1 - t0, 6) FROM ops WHERE kind = 'coll'") == [(0.007,)]
        assert not any("collectives" in each for each in store.limits)


def test_collectives_of_which_no_end_was_seen_are_said_to_be_missing(tmp_path: Path) -> None:
    with opened(tmp_path, job(wait_ms=None)) as store:
        assert select(store, "SELECT count(*) FROM ops WHERE kind = 'coll'") == [(0,)]
        assert any(
            each.startswith("calls of collectives with neither") and each.endswith(": 40")
            for each in store.limits
        )


def test_functions_that_count_for_themselves_are_not_one_collective(tmp_path: Path) -> None:
    ranks = job()
    for rank in ranks:
        for step in range(10):
            rank.collective(step, wait_ms=3, operation="AllGather")
    with opened(tmp_path, ranks) as store:
        names = "SELECT count(DISTINCT name), count(*) FROM ops WHERE kind = 'coll' GROUP BY grp, seq"
        assert set(select(store, names)) == {(1, 4)}


def test_a_process_whose_rank_nothing_says_is_left_out(tmp_path: Path) -> None:
    ranks = job()
    ranks[1].spans["otelgpu.nccl"].clear()
    with opened(tmp_path, ranks) as store:
        assert select(store, "SELECT DISTINCT rank FROM ops ORDER BY ALL") == [(0,), (2,), (3,)]
        assert store.rejected == {"ranks_unknown": 10}
        assert any(
            each.startswith("processes with steps whose rank is not known") and each.endswith(": 1")
            for each in store.limits
        )


def test_a_rank_without_collectives_is_the_one_that_its_launcher_says(tmp_path: Path) -> None:
    ranks = job()
    for rank in ranks:
        rank.launched = {"otelgpu.job.id": "17", "otelgpu.job.rank": rank.rank, "otelgpu.job.world_size": 4}
    ranks[1].spans["otelgpu.nccl"].clear()
    with opened(tmp_path, ranks) as store:
        known = "SELECT DISTINCT job, rank, step >= 0 FROM ops WHERE kind = 'input' ORDER BY ALL"
        assert select(store, known) == [
            ("llama", 0, True),
            ("llama", 1, False),
            ("llama", 2, True),
            ("llama", 3, True),
        ]
        assert store.rejected == {}


def test_calls_that_do_not_know_how_many_ranks_there_are_change_nothing(tmp_path: Path) -> None:
    ranks = job()
    for rank in ranks:
        for span in rank.spans["otelgpu.nccl"][:4]:
            span["attributes"] = [
                each for each in span["attributes"] if each["key"] != "nccl.communicator.ranks"
            ]
        rank.communicator, rank.rank, rank.ranks = "pair", rank.rank % 2, 2
        rank.collective(9)
    with opened(tmp_path, ranks) as store:
        assert select(store, "SELECT DISTINCT rank FROM ops ORDER BY ALL") == [(0,), (1,), (2,), (3,)]


def test_two_jobs_of_one_name_are_two_jobs(tmp_path: Path) -> None:
    other = [Rank(rank, communicator="c1", host="elsewhere") for rank in range(4)]
    for rank in other:
        rank.step(0)
        rank.collective(0)
    with opened(tmp_path, [*job(), *other]) as store:
        assert select(store, "SELECT DISTINCT job FROM ops ORDER BY ALL") == [("llama c0",), ("llama c1",)]
        assert any(each.startswith("llama: 2 communicators") for each in store.limits)


def test_hits_of_a_users_own_probes_are_evidence_of_their_rank(tmp_path: Path) -> None:
    ranks = job(2)
    ranks[1].probe(3, "gc_collect_main", 0.03)
    ranks[1].probe(4, "gc_collect_main", 0.08, otelgpu_host_duration=0.02)  # several in one span
    with opened(tmp_path, ranks) as store:
        columns = "job, rank, host, round(t1 - t0, 6), name, round(value, 6), text"
        assert select(store, f"SELECT {columns} FROM evidence ORDER BY t0") == [
            ("llama", 1, "host-0", 0.03, "otelgpu.probe", 0.03, "seconds in gc_collect_main"),
            ("llama", 1, "host-0", 0.08, "otelgpu.probe", 0.02, "seconds in gc_collect_main"),
        ]


def test_the_slowest_file_of_a_step_is_evidence_of_its_rank(tmp_path: Path) -> None:
    ranks = job(2)
    ranks[0].step(10, file=0.02, slowest_file="shard-7.bin")
    ranks[0].collective(10)
    with opened(tmp_path, ranks) as store:
        assert select(store, "SELECT rank, name, value, text FROM evidence") == [
            (0, "otelgpu.step.file.duration", 0.02, "seconds in files, slowest shard-7.bin")
        ]


def test_a_step_is_named_for_what_its_rank_did_in_it_beside_training(tmp_path: Path) -> None:
    """By what it wrote, or by the name of a probe that was hit in it; a log is no checkpoint. Steps count from 1."""
    ranks = job(steps=8)
    ranks[0].step(10, written_bytes=8 << 20)
    ranks[0].step(11, written_bytes=(8 << 20) - 1)
    ranks[1].probe(5, "Save_Checkpoint", 0.03)
    ranks[1].probe(6, "run_evaluation", 0.03)
    ranks[1].probe(7, "gc", 0.03)
    marked = "SELECT rank, step, name FROM ops WHERE kind = 'step' AND name <> 'training step' ORDER BY ALL"
    with opened(tmp_path, ranks) as store:
        assert select(store, marked) == [
            (0, 11, "checkpoint"),
            (1, 6, "checkpoint"),
            (1, 7, "evaluation"),
        ]
        assert select(store, "SELECT count(*) FROM ops WHERE kind = 'host' AND name <> 'host overhead'") == [
            (0,)
        ]


def test_what_kept_a_rank_from_running_is_evidence_of_it(tmp_path: Path) -> None:
    ranks = job(steps=4)
    ranks[1].step(5, major_faults=7, **{"cpu.throttled": 1.25})
    with opened(tmp_path, ranks) as store:
        assert select(store, "SELECT rank, name, value, text FROM evidence ORDER BY name") == [
            (
                1,
                "otelgpu.step.cpu.throttled.duration",
                1.25,
                "seconds throttled by the CPU quota of its cgroup",
            ),
            (1, "otelgpu.step.major_faults", 7.0, "page faults that waited for a disk"),
        ]
