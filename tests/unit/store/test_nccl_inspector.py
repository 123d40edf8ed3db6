"""Lines of NCCL's Inspector: durations of collectives, by the ranks of the largest communicator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from otelgpu.store import Store, open_inputs


def line(rank: int, number: int, *, micros: float = 400, **others: Any) -> str:
    """As format v5.0 has it."""
    document = {
        "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 2, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v5.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1_748_030_377_748_202 + number * 1000,
            "hostname": f"gpu-{rank}",
            "pid": 1_639_453,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": number,
            "coll_msg_size_bytes": 2_097_152,
            "coll_exec_time_us": micros,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 277.2,
            "coll_busbw_gbs": 485.1,
        },
    }
    for section, fields in others.items():
        document[section] |= fields
    return json.dumps(document) + "\n"


def select(store: Store, query: str) -> list[tuple[Any, ...]]:
    return store.connection.sql(query).fetchall()


def test_the_same_collective_of_two_ranks_has_one_number(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"{rank}.log").write_text(
            "".join(line(rank, number, micros=400 + rank) for number in range(3))
        )
    with open_inputs([str(tmp_path)]) as store:
        ranks = "count(DISTINCT rank), count(DISTINCT host)"
        calls = f"SELECT {ranks}, round(max(t1 - t0), 6), max(n), max(step), max(bytes)"
        assert (
            select(store, f"{calls} FROM ops WHERE kind = 'coll' GROUP BY grp, seq")
            == [(2, 2, 0.000401, 2, -1, 2_097_152)] * 3
        )


def test_functions_are_numbered_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(line(0, 1) + line(0, 1, coll_perf={"coll": "AllGather"}))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT count(DISTINCT seq) FROM ops") == [(2,)]


def test_lines_that_cannot_be_read_and_copies_are_counted(tmp_path: Path) -> None:
    wrong = [
        line(0, 2, header={"rank": -1}),
        line(0, 3, coll_perf={"coll_exec_time_us": "long"}),
        line(0, 4, metadata={"dump_timestamp_us": 1 << 70}),
        "{\n",
    ]
    (tmp_path / "a").write_text(line(0, 1) + "".join(wrong) + "\n" + line(0, 1))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT count(*) FROM ops") == [(1,)]
        assert store.rejected == {"lines_unreadable": 4, "lines_repeated": 1}
