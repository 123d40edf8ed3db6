"""``--export parquet:DIR``: files that are whole, bounded, and read as what the same spans in lines are."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

duckdb = pytest.importorskip("duckdb")

from otelgpu.cli.commands import cli  # noqa: E402
from otelgpu.export.base import ExportError  # noqa: E402
from otelgpu.export.parquet import EXPORTER, ParquetDestination  # noqa: E402
from otelgpu.export.parquet.exporter import ParquetExporter  # noqa: E402
from otelgpu.export.parquet.folder import Bounds, ParquetFolder  # noqa: E402
from otelgpu.model.resource import resource  # noqa: E402
from otelgpu.model.spans import Attribute, SpanColumns, constant_text  # noqa: E402
from otelgpu.store import Store, observed, open_inputs  # noqa: E402
from otelgpu.store.followed import FollowedInputs  # noqa: E402
from otelgpu.store.queries import tuples  # noqa: E402
from otelgpu.store.readers import otlp  # noqa: E402
from otelgpu.store.tables import OF_HOSTS  # noqa: E402
from tests.unit.export.builders import spans, text  # noqa: E402
from tests.unit.store.otlp_spans import Rank  # noqa: E402

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "training_job.capture"
BOUNDS = Bounds(max_bytes=1 << 30, max_age_s=3600)


PROCESS = resource(
    {
        "service.name": "llama",
        "host.name": "h",
        "process.pid": 7,
        "otelgpu.job.rank": 0,
        "otelgpu.job.world_size": 1,
    }
)


def steps(count: int, first: int = 1) -> SpanColumns:
    """Of one process, one after the other."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return spans(
        count,
        scope="otelgpu.training",
        resource=PROCESS,
        span_id=numbers.astype(">u8").view(np.uint8).reshape(-1, 8),
        start_unix_ns=numbers * np.uint64(1_000_000),
        end_unix_ns=(numbers + np.uint64(1)) * np.uint64(1_000_000),
        name=constant_text("training step", count),
        attributes=(
            Attribute(key="otelgpu.step.number", values=numbers),
            Attribute(key="otelgpu.step.file.duration", values=np.full(count, 0.5)),
            Attribute(key="otelgpu.step.slowest_file", values=text([*[""] * (count - 1), "a.bin"])),
        ),
    )


def hits(count: int) -> SpanColumns:
    """Of a user's own probe, of the same process; the last one stands for several."""
    several = np.arange(count) == count - 1
    return spans(
        count,
        scope="otelgpu.probe",
        resource=PROCESS,
        attributes=(
            Attribute(key="otelgpu.probe.name", values=constant_text("gc", count)),
            Attribute(key="otelgpu.host.duration", values=np.full(count, 0.25), present=several),
        ),
    )


def exporter(folder: Path, bounds: Bounds = BOUNDS, every_s: float = 3600) -> ParquetExporter:
    return ParquetExporter(str(folder), bounds, every_s=every_s)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def operations(store: Store) -> list[object]:
    return store.connection.sql("SELECT * FROM ops ORDER BY ALL").fetchall()


def evidence(store: Store) -> list[object]:
    return store.connection.sql("SELECT * FROM evidence ORDER BY ALL").fetchall()


def test_a_recorded_job_is_read_as_it_is_from_lines(tmp_path: Path) -> None:
    lines, tables = tmp_path / "job.jsonl", tmp_path / "tables"
    exports = ["--export", f"file:{lines}", "--export", f"parquet:{tables}"]
    done = CliRunner().invoke(cli, ["replay", "--quiet", str(GOLDEN), *exports])
    assert done.exit_code == 0, done.output
    with open_inputs([str(lines)]) as one, open_inputs([str(tables)]) as other:
        assert operations(one) == operations(other)
        assert evidence(one) == evidence(other)
        assert {row[7] for row in operations(other)} >= {"coll", "p2p", "step", "input", "host", "file"}
        assert one.limits == other.limits
        assert not other.rejected
    verdict = CliRunner().invoke(cli, ["diagnose", "ranks", str(tables)])
    assert verdict.exit_code == 4, verdict.output
    assert "it takes" in verdict.output


def test_files_have_the_columns_that_are_documented(tmp_path: Path) -> None:
    CliRunner().invoke(cli, ["replay", "--quiet", str(GOLDEN), "--export", f"parquet:{tmp_path}"])
    sent = exporter(tmp_path)
    sent.export_spans([hits(1)])
    sent.close(1)
    found = {
        path.name.partition("-")[0]: {
            name: of_type
            for name, of_type, *_ in duckdb.sql(f"DESCRIBE FROM read_parquet('{path}')").fetchall()
        }
        for path in files(tmp_path)
    }
    assert found.pop("evidence").keys() < {"job", "rank", "host", "t0", "t1", "name", "value", "text"}
    assert found == {
        table: {column.name: column.type for column in columns} for table, columns in OF_HOSTS.items()
    }


def test_evidence_of_a_rank_is_read(tmp_path: Path) -> None:
    sent = exporter(tmp_path)
    sent.export_spans([steps(2), hits(2)])
    sent.close(1)
    with open_inputs([str(tmp_path)]) as store:
        found = store.run("SELECT job, rank, host, name, value, text FROM evidence ORDER BY value, text")
        assert tuples(found) == [
            ("llama", 0, "h", "otelgpu.probe", pytest.approx(5e-7), "seconds in gc"),
            ("llama", 0, "h", "otelgpu.probe", 0.25, "seconds in gc"),
            ("llama", 0, "h", "otelgpu.step.file.duration", 0.5, "seconds in files, slowest a.bin"),
        ]


def test_a_folder_that_grows_is_followed_each_file_read_once(tmp_path: Path) -> None:
    sent = exporter(tmp_path)
    sent.export_spans([steps(2)])
    sent.flush(1)
    with FollowedInputs([str(tmp_path)]) as followed:
        for number in range(1, 4):
            store = followed.look(0.0)
            found = store.run("SELECT step FROM ops WHERE kind = 'step' ORDER BY step")["step"]
            assert found.tolist() == [*range(1, 2 * number + 1)]
            assert len(store.run("SELECT * FROM evidence")["rank"]) == number
            assert not store.rejected
            sent.export_spans([steps(2, first=2 * number + 1)])
            sent.flush(1)
    sent.close(1)


def test_hosts_that_write_tables_and_hosts_that_write_lines_are_one_job(tmp_path: Path) -> None:
    """Their steps are numbered together, by the collectives that they share."""
    ranks = [Rank(0, ranks=2), Rank(1, ranks=2, first=3)]
    for rank in ranks:
        for step in range(rank.first, 10):
            rank.step(step)
            rank.collective(step)
    first, second = (tmp_path / f"{number}.jsonl" for number in range(2))
    for path, rank in zip((first, second), ranks, strict=True):
        path.write_bytes(rank.line())
    with open_inputs([str(first), str(second)]) as store:
        wanted = operations(store)
    (folder := tmp_path / "tables").mkdir()
    with Store() as store:
        otlp.read(store, [second])
        store.observed().steps.flush()
        store.observed().calls.flush()
        store.observed().waits.flush()
        owner = "'host-0' AS host, 'llama' AS service, '101' AS instance"
        steps_of = f"SELECT {owner}, * EXCLUDE (process) FROM otlp_steps"
        calls_of = (
            f"SELECT {owner}, span, trace, operation, hash, rank, ranks, seq // 16 AS number, t0, device_s, bytes "
            "FROM otlp_calls"
        )
        waits_of = "SELECT call, t1 AS ended FROM otlp_waits"
        for name, query in (("s", steps_of), ("c", calls_of), ("w", waits_of)):
            store.connection.sql(query).write_parquet(str(folder / f"{name}.parquet"))
    with open_inputs([str(first), str(folder)]) as store:
        assert operations(store) == wanted
        assert not store.rejected


def test_rows_that_cannot_be_are_counted(tmp_path: Path) -> None:
    row = "SELECT 1::UBIGINT AS span, 1 AS number, 1.0 AS t0, 2.0 AS t1, 'h' AS host"
    wrong = [row.replace("1 AS number", "NULL AS number"), row.replace("1.0 AS t0", "NULL AS t0")]
    duckdb.sql(" UNION ALL ".join([row, *wrong])).write_parquet(str(tmp_path / "a.parquet"))
    with open_inputs([str(tmp_path)]) as store:
        assert store.rejected == {"rows_incomplete": 2, "ranks_unknown": 1}


def test_a_send_to_nobody_is_counted(tmp_path: Path) -> None:
    call = "SELECT 1::UBIGINT AS span, 2::UBIGINT AS trace, 'Send' AS operation, 0 AS rank, 1.0 AS t0"
    duckdb.sql(call).write_parquet(str(tmp_path / "a.parquet"))
    with open_inputs([str(tmp_path)]) as store:
        assert store.rejected == {"rows_incomplete": 1}


def test_processes_beyond_the_most_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "MOST_PROCESSES", 1)
    row = "SELECT 1::UBIGINT AS span, 1 AS number, 1.0 AS t0, 2.0 AS t1"
    duckdb.sql(f"{row}, 'h' AS host UNION ALL {row}, 'i' AS host").write_parquet(str(tmp_path / "a.parquet"))
    with open_inputs([str(tmp_path)]) as store:
        assert store.rejected == {"resources_unreadable": 1, "ranks_unknown": 1}


def test_what_was_not_measured_may_be_nan(tmp_path: Path) -> None:
    process = "'h' AS host, '0' AS job_id, 0 AS job_rank, 1 AS job_size"
    row = (
        f"SELECT 1::UBIGINT AS span, 1 AS number, 1.0 AS t0, 2.0 AS t1, {process}, 'nan'::DOUBLE AS compute_s"
    )
    duckdb.sql(row).write_parquet(str(tmp_path / "a.parquet"))
    with open_inputs([str(tmp_path)]) as store:
        assert not store.rejected
        assert "compute" not in store.run("SELECT kind FROM ops")["kind"]
        assert any(limit.startswith("no device time of rank 0") for limit in store.limits)


def test_a_file_of_each_table_is_written_when_it_is_due(tmp_path: Path) -> None:
    sent = exporter(tmp_path)
    sent.export_spans([steps(3), spans(5)])
    assert files(tmp_path) == []
    assert sent.stats()["spans_queued"] == sent.stats()["spans_given"] == 3
    sent.flush(1)
    assert [path.name.partition("-")[0] for path in files(tmp_path)] == ["steps"]
    assert sent.stats()["spans_accepted"] == 3
    sent.export_spans([steps(2, first=4)])
    sent.close(1)
    sent.export_spans([steps(1, first=6)])
    assert sent.stats()["spans_lost_shutdown"] == 1
    assert len(files(tmp_path)) == 2
    assert sorted(tmp_path.iterdir()) == files(tmp_path)


def test_without_spans_metrics_are_the_time_to_write(tmp_path: Path) -> None:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    sent = exporter(tmp_path, every_s=0)
    sent._due_s = float("inf")
    sent.export_spans([steps(3)])
    sent._due_s = 0
    sent.export_metrics(MetricsData(), 0)
    assert len(files(tmp_path)) == 1


def test_the_oldest_go_where_there_are_too_many_bytes(tmp_path: Path) -> None:
    sent = exporter(tmp_path)
    sent.export_spans([steps(10)])
    sent.flush(1)
    size = files(tmp_path)[0].stat().st_size
    foreign = tmp_path / "ops.parquet"
    foreign.write_bytes(b"PAR1" * 1000)
    bounded = exporter(tmp_path, Bounds(max_bytes=int(3.5 * size), max_age_s=3600))
    for first in range(8):
        bounded.export_spans([steps(10, first=10 * first)])
        bounded.flush(1)
    found = [path for path in files(tmp_path) if path != foreign]
    assert len(found) == 3
    assert foreign.exists(), "it has no writer's name"
    numbers = duckdb.sql(f"SELECT min(number) FROM read_parquet({[str(path) for path in found]})").fetchall()
    assert numbers == [(50,)]


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    old = tmp_path / "steps-0000000000000000001-1.parquet"
    old.write_bytes(b"")
    sent = exporter(tmp_path)
    sent.export_spans([steps(1)])
    sent.flush(1)
    assert not old.exists()
    assert len(files(tmp_path)) == 1


def test_what_a_killed_writer_leaves_is_no_input_and_is_removed(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from otelgpu.export.parquet.folder import Bounds, ParquetFolder\n"
        "folder = ParquetFolder(sys.argv[1], Bounds(max_bytes=1 << 30, max_age_s=60))\n"
        "(folder._writing / 'steps-1.parquet').write_bytes(b'PAR1 half a file')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    left = list(tmp_path.glob(".writing-*/*"))
    assert len(left) == 1
    with open_inputs([str(tmp_path)]) as store:
        assert not store.rejected
    other = tmp_path / f".writing-{socket.gethostname()}-{os.getpid()}-x"  # of a process that is there
    other.mkdir()
    exporter(tmp_path).close(1)
    assert list(tmp_path.iterdir()) == [other]


def test_a_disk_that_takes_nothing_is_counted_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tables"
    sent = exporter(folder)
    shutil.rmtree(folder)
    folder.write_bytes(b"a file")
    for first in (1, 4):
        sent.export_spans([steps(3, first=first)])
        sent.flush(1)
    assert sent.stats()["spans_lost_write_failed"] == 6
    assert sent.deliveries()[0].failing_s > 0
    folder.unlink()
    folder.mkdir()
    sent.export_spans([steps(3, first=7)])
    sent.flush(1)
    found = sent.stats()
    assert (found["spans_accepted"], found["spans_queued"]) == (3, 0)
    assert found["spans_given"] == 9
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["cannot", "writing"]


def test_a_file_that_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    """The limit of a file's size stands for a full disk: what is written is cut in its middle."""
    program = (
        "import resource, signal, sys\n"
        "import numpy as np\n"
        "from otelgpu.export.parquet.folder import Bounds, ParquetFolder\n"
        "folder = ParquetFolder(sys.argv[1], Bounds(max_bytes=1 << 30, max_age_s=60))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    folder.write('steps', {'span': np.random.default_rng(1).integers(0, 1 << 62, 100_000)})\n"
        "except OSError as error:\n"
        "    print('failed')\n"
        "print([path.name for path in folder._writing.iterdir()])\n"
        "folder.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split("\n")[:2] == ["failed", "[]"], done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ExportError, match=r"cannot write to"):
        exporter(tmp_path / "file" / "tables")


def test_nobody_else_can_put_a_link_where_a_file_is_written(tmp_path: Path) -> None:
    folder = ParquetFolder(str(tmp_path), BOUNDS)
    assert folder._writing.stat().st_mode & 0o077 == 0
    folder.close()


def test_options_are_read() -> None:
    assert EXPORTER.parse("/var/tables?max_bytes=2GiB&seconds=5") == ParquetDestination(
        "/var/tables", max_bytes=2 << 30, seconds=5
    )
    for wrong, said in (
        (None, "names no folder"),
        ("a?max_hour=1", "max_hours"),
        ("a?seconds=0", "1 at least"),
    ):
        with pytest.raises(ValueError, match=said):
            EXPORTER.parse(wrong)
