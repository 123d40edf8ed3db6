"""Flight Recorder dumps, as pickle and JSON: what has not ended is evidence, and a pickle runs nothing."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otelgpu.store import Store, open_inputs
from otelgpu.store.readers.flight_recorder import decoded

NOW = 1_724_779_239_936_775_119


def entry(
    sequence: int, *, state: str = "completed", duration_ms: float | None = None, **others: Any
) -> dict[str, Any]:
    """As version 2.10 of the dump has it."""
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 17}],
        "record_id": sequence - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": NOW + sequence * 1_000_000,
        "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": NOW + sequence * 1_000_000 + 500_000
        if state == "completed"
        else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        **({} if duration_ms is None else {"duration_ms": duration_ms}),
        **others,
    }


def dump(*entries: Any) -> dict[str, Any]:
    return {
        "version": "2.10",
        "nccl_version": "2.27.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 2, "last_started_collective": -1}},
        "entries": list(entries),
    }


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


def as_pickle(content: Any) -> bytes:
    return pickle.dumps(content, protocol=2)  # PyTorch's


def select(store: Store, query: str) -> list[tuple[Any, ...]]:
    return store.connection.sql(query).fetchall()


@pytest.mark.parametrize("pack", [as_json, as_pickle])
def test_a_collective_with_device_time_is_an_operation(tmp_path: Path, pack: Callable[[Any], bytes]) -> None:
    for rank in (0, 1):
        content = dump(entry(1, duration_ms=1.5 + rank), entry(2, duration_ms=2.5, is_p2p=True, p2p_seq_id=7))
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pack(content))
    with open_inputs([str(tmp_path)]) as store:
        assert select(
            store, "SELECT rank, kind, grp, seq, n, step, round(t1 - t0, 6), bytes FROM ops ORDER BY ALL"
        ) == [
            (0, "coll", "0 of rank 0", 1, 2, -1, 0.0015, 48),
            (0, "p2p", "0 of rank 0", 7, 2, -1, 0.0025, 48),
            (1, "coll", "0 of rank 0", 1, 2, -1, 0.0025, 48),
            (1, "p2p", "0 of rank 0", 7, 2, -1, 0.0025, 48),
        ]
        assert store.limits == ["Flight Recorder dumps do not say in which step a collective was"]


def test_what_has_not_ended_is_evidence_and_how_far_the_rank_has_come(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(as_pickle(dump(entry(1))))
    (tmp_path / "nccl_trace_rank_1").write_bytes(as_pickle(dump(entry(1), entry(2, state="scheduled"))))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT rank, max(seq) FROM ops GROUP BY rank ORDER BY rank") == [(0, 1), (1, 2)]
        assert select(store, "SELECT rank, name, value, text FROM evidence") == [
            (1, "collective_pending", 2.0, "nccl:all_reduce 2 of group 0 of rank 0: scheduled")
        ]
        assert any("no device time of collectives in the dumps of ranks 0–1" in each for each in store.limits)


def test_what_a_later_dump_shows_as_ended_is_not_pending(tmp_path: Path) -> None:
    earlier, later = dump(entry(1), entry(2, state="started")), dump(entry(1), entry(2))
    for folder, content in (("a", later), ("b", earlier)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nccl_trace_rank_0").write_bytes(as_pickle(content))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT seq, round(t1 - t0, 6) FROM ops ORDER BY seq") == [
            (1, 0.0005),
            (2, 0.0005),
        ]
        assert select(store, "SELECT * FROM evidence") == []


def test_dumps_of_two_ranks_that_are_alike_are_no_copies(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(dump(entry(1))))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT rank FROM ops ORDER BY rank") == [(0,), (1,)]
        assert not store.rejected


class Attack:
    """A pickle that makes a file, where classes are admitted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_with_code_in_it_is_counted_and_runs_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (tmp_path / "nccl_trace_rank_0").write_bytes(as_pickle(dump(entry(1), Attack(made))))
    with open_inputs([str(tmp_path)]) as store:
        assert store.rejected == {"files_unreadable": 1}
    assert not made.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02" + b"r\xff\xff\xff\x7f" + b".",  # a memo of 2^31 entries
        b"\x80\x05" + b"\x96" + b"\xff" * 7 + b"\x7f" + b".",  # a bytearray of 2^62 bytes
        b"\x80\x02" + b"(" * 100_000 + b"." + b"t" * 100_000,
        b"\x80\x02" + b"]" + b"q\x00" + b"h\x00" + b"a" + b".",  # a list in itself
        b"\x80\x02}.",
        b"\x80\x02",
        b"\x80\x02cos\nsystem\n.",
        b'{"entries": ' + b"[" * 100_000,
    ],
)
def test_hostile_dumps_are_refused_by_one_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        decoded(content)


def test_entries_that_cannot_be_read_cost_no_others(tmp_path: Path) -> None:
    wrong = [
        17,
        entry(2, time_created_ns=-1),
        entry(3, input_sizes=[[2] * 65]),
        entry(4, collective_seq_id="four"),
    ]
    (tmp_path / "rank0.json").write_bytes(as_json(dump(entry(1), *wrong)))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT seq FROM ops") == [(1,)]
        assert store.rejected == {"entries_unreadable": 4}


def test_dumps_without_a_rank_and_copies_are_counted(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(as_pickle(dump(entry(1))))
    (tmp_path / "trace_1").write_bytes(as_pickle(dump(entry(2))))
    (tmp_path / "trace_1.copy").write_bytes(as_pickle(dump(entry(2))))
    with open_inputs([str(tmp_path)]) as store:
        assert select(store, "SELECT rank FROM ops") == [(1,)]
        assert store.rejected == {"files_without_rank": 1, "files_repeated": 1}
