"""``clickhouse://``: tables that lie there give what the same operations give in files."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("duckdb")
pytest.importorskip("chdb", reason="chdb-core is not installed; make setup does it")

from otelgpu.cli.commands import cli
from otelgpu.cli.rank_reports import looks
from otelgpu.store import StoreError, open_inputs
from otelgpu.store.clickhouse.spans import REQUIRED
from otelgpu.store.inputs import open_tables
from otelgpu.store.queries import Tables, named
from tests.rig.certificates import make_certificate
from tests.rig.clickhouse import differences
from tests.rig.clickhouse_server import PASSWORD, USER, Server, serving
from tests.rig.clickhouse_spans import fill_spans
from tests.rig.jobs.simulation import simulate
from tests.rig.jobs.table import write
from tests.unit.store.otlp_spans import Rank, job
from tests.unit.store.parquet_files import ops, row
from tests.unit.store.test_two_engines import QUERIES, RANKS, VALUES

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "training_job.capture"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


def unlike(one: Tables, other: Tables) -> dict[str, list[str]]:
    """By query, what is not the same."""
    answers = (
        (name, *(named(tables.run, package)(name, **VALUES.get(name, {})) for tables in (one, other)))
        for package, name in QUERIES
    )
    return {name: found for name, here, there in answers if (found := differences(here, there))}


def recorded(folder: Path) -> list[bytes]:
    lines = folder / "job.jsonl"
    done = CliRunner().invoke(cli, ["replay", "--quiet", str(GOLDEN), "--export", f"file:{lines}"])
    assert done.exit_code == 0, done.output
    return lines.read_bytes().splitlines(keepends=True)


def made(folder: Path) -> list[bytes]:
    """Ranks that were seen late, and one that a launcher named, on the device, with evidence; some delivered twice."""
    ranks = [*job(device_ms=1.5), Rank(1, first=3, ranks=2, communicator="c1")]
    ranks[0].launched = {"otelgpu.job.rank": 0, "otelgpu.job.world_size": 4, "otelgpu.job.id": "7"}
    ranks[-1].launched = {"process.pid": 999}
    for step in range(3, 9):
        ranks[-1].step(step, **{"device.compute": 0.02})
        ranks[-1].collective(step, wait_ms=None)
    ranks[-1].collective(9, run_ms=3)
    ranks[2].step(20, file=0.5, slowest_file=r"it's \t.bin")
    ranks[2].step(21, major_faults=7, **{"cpu.throttled": 1.25})
    ranks[2].step(22, written_bytes=8 << 20)
    ranks[1].probe(5, "Save_Checkpoint", 0.03)
    ranks[1].probe(6, "run_evaluation", 0.03)
    ranks[2].probe(4, "gc", 0.03)
    ranks[2].probe(5, "gc", 0.08, otelgpu_host_duration=0.02)  # several in one span
    ranks[2].probe(6, "gc", 0.03)
    ranks[2].spans["otelgpu.probe"][-1]["attributes"].clear()
    return [*(rank.line() for rank in ranks), ranks[2].line()]


def test_a_recorded_job_gives_what_it_gives_in_files(server: Server, tmp_path: Path) -> None:
    lines = recorded(tmp_path)
    (folder := tmp_path / "lines").mkdir()
    (folder / "all.jsonl").write_bytes(b"".join(lines))
    fill_spans(server.engine, "spans", lines)
    with open_inputs([str(folder)]) as here, open_tables([server.url("spans")]) as there:
        assert unlike(here, there) == {}
        assert len(here.run("SELECT * FROM evidence")["t0"]) == 1
        of_steps = [each.run("SELECT * FROM step_spans") for each in (here, there)]
        assert len(of_steps[0]["link"]) > 3
        assert differences(*of_steps) == []
        assert dict(here.rejected) == dict(there.rejected)
        assert here.limits == there.limits


def test_operations_give_what_they_give_in_files(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "ops.parquet"
    write(path, simulate("one link", 2))
    with open_inputs([str(path)]) as here:
        server.engine.copy(here.connection, "simulated")
        with open_tables([server.url("simulated/ops")]) as there:
            asked = len(server.questions)
            assert unlike(here, there) == {}
            assert not there.rejected
            questions = [question for question, _ in server.questions[asked:]]
            assert not any("kind NOT IN" in question for question in questions)  # no row is checked again


def test_a_command_says_of_it_what_it_says_of_the_file(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "ops.parquet"
    write(path, simulate("slow compute", 3))
    with open_inputs([str(path)]) as here:
        server.engine.copy(here.connection, "simulated")
    outputs = [
        CliRunner().invoke(cli, ["diagnose", "ranks", given, "--json"])
        for given in (str(path), server.url("simulated/ops"))
    ]
    assert [done.exit_code for done in outputs] == [3, 3], outputs[1].output
    page = tmp_path / "page.html"
    CliRunner().invoke(cli, ["diagnose", "ranks", server.url("simulated/ops"), "-o", str(page)])
    assert f"<title>clickhouse://127.0.0.1:{server.port}/simulated/ops" in page.read_text()
    assert "s3cret" not in page.read_text()
    assert outputs[0].stdout[:400] == outputs[1].stdout[:400]
    assert PASSWORD not in outputs[1].output


@pytest.fixture(params=["sums are kept there", "only reading is allowed"])
def asked(server: Server, request: pytest.FixtureRequest) -> Iterator[Server]:
    """With the temporary table, and without."""
    server.may_remember = request.param == "sums are kept there"
    server.questions.clear()
    yield server
    server.may_remember = True


def test_who_may_only_read_gets_the_same(asked: Server, tmp_path: Path) -> None:
    lines = made(tmp_path)
    (folder := tmp_path / "lines").mkdir()
    (folder / "all.jsonl").write_bytes(b"".join(lines))
    fill_spans(asked.engine, "spans", lines)
    with (
        open_inputs([str(folder)], job="llama c0") as here,
        open_tables([asked.url("spans")], job="llama c0") as there,
    ):
        assert unlike(here, there) == {}
        assert len(here.run("SELECT * FROM ops")["step"])
        assert dict(here.rejected) == dict(there.rejected) != {}
        assert here.limits == there.limits
    sums = [query for query, _ in asked.questions if "checked_sums AS (" in query]
    assert bool(sums) != asked.may_remember


def test_without_evidence_there_is_none(server: Server, tmp_path: Path) -> None:
    fill_few(server, tmp_path)
    server.engine.ask("DROP TABLE few.evidence")
    with open_tables([server.url("few/ops")]) as there:
        assert list(named(there.run, RANKS)("pending")) == ["grp", "kind", "name", "rank", "seq", "waited_s"]
        assert len(named(there.run, RANKS)("observations")["t0"]) == 0


def test_evidence_that_lacks_what_it_needs_is_none(server: Server, tmp_path: Path) -> None:
    fill_few(server, tmp_path)
    server.engine.ask("DROP TABLE few.evidence")
    server.engine.ask(
        "CREATE TABLE few.evidence (t0 Nullable(Float64), t1 Float64, name String) ENGINE = Memory AS "
        "SELECT if(number = 0, NULL, 1.5), 2.5, 'xid' FROM numbers(2)"
    )
    with open_tables([server.url("few/ops")]) as there:
        assert named(there.run, RANKS)("observations")["t0"].tolist() == [1.5]


def test_texts_may_be_coded(server: Server, tmp_path: Path) -> None:
    """As tables of many rows have them: LowCardinality."""
    good = [row(rank=rank, kind="coll", grp=f"g{rank % 2}", seq=1, t1=1.5 + rank) for rank in range(4)]
    with open_inputs([ops(tmp_path / "ops.parquet", *good)]) as here:
        server.engine.copy(here.connection, "coded")
        for name in ("job", "host", "kind", "grp"):
            server.engine.ask(f"ALTER TABLE coded.ops MODIFY COLUMN {name} LowCardinality(String)")
        with open_tables([server.url("coded/ops")]) as there:
            assert unlike(here, there) == {}
            assert named(there.run, RANKS)("groups")["grp"].dtype == object


def test_rows_that_cannot_be_are_counted_there_too(asked: Server, tmp_path: Path) -> None:
    server = asked
    good = [row(rank=rank, step=step, t1=1.5) for rank in range(2) for step in range(4)]
    path = ops(tmp_path / "ops.parquet", *good)
    with open_inputs([path]) as here:
        server.engine.copy(here.connection, "wrong")
    two_hosts = ", ".join(
        f"('j', 5, '{host}', {step}, 'compute', 1, 2)" for host in "hk" for step in range(3)
    )
    columns = "(job, rank, host, step, kind, t0, t1)"
    bad = "('j', -1, 'h', 1, 'compute', 1, 2), ('j', 0, 'h', 1, 'compute', 1, nan), ('j', 0, 'h', 1, 'coll', 1, nan)"
    server.engine.ask(f"INSERT INTO wrong.ops {columns} VALUES {bad}, {two_hosts}")
    with open_tables([server.url("wrong/ops")]) as there:
        assert there.rejected == {
            "ranks_invalid": 1,
            "times_invalid": 1,
            "calls_pending": 1,
            "ranks_on_two_hosts": 6,
        }
        assert there.limits == ["rank 5 of j had two hosts in one step: two jobs share the name"]
        assert len(there.run("SELECT * FROM ops")["rank"]) == len(good)


def test_it_is_kept_as_files(server: Server, tmp_path: Path) -> None:
    path = ops(tmp_path / "ops.parquet", *(row(rank=rank, name=r"a\b'c") for rank in range(3)))
    with open_inputs([path]) as here:
        server.engine.copy(here.connection, "kept")
        with open_tables([server.url("kept/ops")], job="j") as there:
            there.keep(tmp_path / "tables")
        with open_inputs([str(tmp_path / "tables")]) as again:
            assert unlike(here, again) == {}
            assert again.run("SELECT DISTINCT name FROM ops")["name"].tolist() == [r"a\b'c"]


def test_a_job_s_name_cannot_leave_its_quotes(server: Server, tmp_path: Path) -> None:
    name = r"it's \' OR 1=1 --"
    path = ops(tmp_path / "ops.parquet", row(job=name), row(job="other"))
    with open_inputs([path]) as here:
        server.engine.copy(here.connection, "quoted")
    with open_tables([server.url("quoted/ops")], job=name) as there:
        assert there.run("SELECT DISTINCT job FROM ops")["job"].tolist() == [name]


def test_only_the_days_that_are_asked_for_are_read(server: Server, tmp_path: Path) -> None:
    lines = [rank.line() for rank in job()]  # their calls end with the waits
    fill_spans(server.engine, "spans", lines)
    server.questions.clear()
    begin_s, end_s = 1_700_000_000, 1_700_000_000.351  # the last call was asked for, and its wait is later
    with open_tables([server.url("spans")], begin_s=begin_s, end_s=end_s) as there:
        assert set(there.run("SELECT DISTINCT step FROM ops")["step"].tolist()) == {1, 2, 3, 4}
        assert there.run("SELECT count(*) AS n FROM ops WHERE kind = 'coll'")["n"].tolist() == [16]
    asked = [query for query, _ in server.questions if "FROM spans.otel_traces" in query]
    assert asked
    for bound in (">= fromUnixTimestamp64Nano(1699913600", "< fromUnixTimestamp64Nano(1700086400"):
        assert all(f"Timestamp {bound}" in query for query in asked)


def test_it_is_followed_by_asking_again(server: Server, tmp_path: Path) -> None:
    fill_few(server, tmp_path)
    with looks([server.url("few/ops")], None) as look_again:
        facts, _ = look_again(0.0)
        server.engine.ask(
            "INSERT INTO few.ops SELECT * REPLACE (rank + 1 AS rank, t0 + 10 AS t0, t1 + 10 AS t1) FROM few.ops"
        )
        more, _ = look_again(0.0)
        late, _ = look_again(5.0)
    assert [len(each.ranks) for each in (facts, more, late)] == [1, 2, 1]


def fill_few(server: Server, folder: Path) -> None:
    """A database with one operation."""
    with open_inputs([ops(folder / "few.parquet", row())]) as here:
        server.engine.copy(here.connection, "few")


ERRORS = {
    "no table": ("few/none", r"there is no such table"),
    "another table": ("few/other", r"neither the columns of ops nor"),
    "an error of its own": ("nowhere/ops", r"there is no such table|answers with an error"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_not_there_is_said(server: Server, name: str, tmp_path: Path) -> None:
    fill_few(server, tmp_path)
    server.engine.ask("CREATE TABLE few.other (x Int32) ENGINE = Memory")
    path, said = ERRORS[name]
    with pytest.raises(StoreError, match=said):
        open_tables([server.url(path)])


def test_credentials_come_from_the_environment_and_are_never_said(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill_few(server, tmp_path)
    url = f"clickhouse://127.0.0.1:{server.port}/few/ops"
    with pytest.raises(StoreError, match=r"refuses the user 'default'") as refused:
        open_tables([url])
    assert "CLICKHOUSE_PASSWORD" in str(refused.value)
    monkeypatch.setenv("CLICKHOUSE_USER", USER)
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", PASSWORD)
    open_tables([url])
    with pytest.raises(StoreError, match=r"refuses the user") as wrong:
        open_tables([server.url("few/ops").replace("s3cret%20word", "an%27other")])
    assert "an'other" not in str(wrong.value)
    assert "an%27other" not in str(wrong.value)


def test_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    with serving(certificate) as server:
        fill_few(server, tmp_path)
        with pytest.raises(StoreError, match=r"cannot be asked: .*certificate verify failed"):
            open_tables([server.url("few/ops", "?secure=true")])
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with open_tables([server.url("few/ops", "?secure=true").replace("127.0.0.1", "localhost")]) as there:
            assert len(there.run("SELECT * FROM ops")["rank"])


def test_a_server_that_is_not_there_is_said() -> None:
    with pytest.raises(
        StoreError, match=r"clickhouse://127.0.0.1:1/default/otel_traces cannot be asked: .*refused"
    ):
        open_tables(["clickhouse://u:secret@127.0.0.1:1"])


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"clickhouse://u:secret@127.0.0.1:{silent.getsockname()[1]}?timeout=0.2"
        with pytest.raises(StoreError, match=r"did not answer within 0.2 s") as given_up:
            open_tables([url])
    assert "secret" not in str(given_up.value)


def test_what_is_no_clickhouse_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            other, _ = listening.accept()
            with other:
                other.recv(1 << 16)
                other.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(StoreError, match=r"does not answer as ClickHouse does"):
            open_tables([f"clickhouse://127.0.0.1:{listening.getsockname()[1]}"])
        thread.join()


def test_attributes_of_another_type_are_said(server: Server, tmp_path: Path) -> None:
    fill_few(server, tmp_path)
    cells = ", ".join(f"{name} String" for name in REQUIRED)
    server.engine.ask(f"CREATE TABLE few.otel_traces ({cells}) ENGINE = Memory")
    with pytest.raises(StoreError, match=r"attributes are of type String, not of Map"):
        open_tables([server.url("few")])


@pytest.mark.parametrize(
    "url",
    [
        *(
            "clickhouse://",
            "clickhouse://u:secret@h:port",
            "clickhouse://u:secret@h/a/b/c",
            "clickhouse://u:secret@h/a;b",
        ),
        *(
            "clickhouse://u:secret@h?secure=yes",
            "clickhouse://u:secret@h?timeout=0",
            "clickhouse://u:secret@h?tls=true",
        ),
    ],
)
def test_an_address_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(StoreError, match=r"cannot be read\nwrite clickhouse://") as said:
        open_tables([url])
    assert "secret" not in str(said.value)


def test_other_inputs_beside_it_are_refused() -> None:
    with pytest.raises(StoreError, match=r"cannot be read together"):
        open_tables(["clickhouse://h", "a.jsonl"])
